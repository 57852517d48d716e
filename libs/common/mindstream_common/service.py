"""The composition root of a stage's service: read the environment and the run's file, build the clients, run."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mindstream_common import bus, config, logs, metrics, settings
from mindstream_common.errors import MindStreamError, Transient
from mindstream_common.pin import pin_tokenizer
from mindstream_common.runner import PipelineConfig, Runner
from mindstream_common.settings import Settings
from mindstream_common.stage import Declaration
from mindstream_common.store import S3Store
from mindstream_common.worker import Factory

Build = Callable[[dict[str, Any]], Factory]
Beside = Callable[[dict[str, Any], Settings], Awaitable[None]]


def main(declaration: Declaration, build: Build, beside: Beside | None = None, *, pins_tokenizer: bool = False) -> None:
    """Run a stage's service from the command line; never returns.

    Args:
        declaration: what the stage takes and makes.
        build: from the run's file to a picklable callable that makes the stage (it is called in the worker's process).
        pins_tokenizer: whether the stage depends on ``base.vocab``, which a pipeline cannot change.
        beside: what else this service does, as long as it runs (ingest listens); cancelled when the stage has drained.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m mindstream_{declaration.name}",
        description=f"MindStream's {declaration.name} service. Addresses and secrets come from MINDSTREAM_* variables.",
        epilog=f"example: python -m mindstream_{declaration.name} --config configs/demo.yaml --slots 2",
    )
    parser.add_argument("--config", required=True, type=Path, help="the run's file (YAML)")
    parser.add_argument("--scratch", type=Path, help="folder for temporary files; it is emptied (default: a new one)")
    parser.add_argument("--slots", type=int, default=1, help="shards to work on at the same time (default 1)")
    arguments = parser.parse_args()
    logs.configure(service=declaration.name)
    exit_with(lambda: asyncio.run(_serve(declaration, build, beside, pins_tokenizer, arguments)))


def exit_with(call: Callable[[], None]) -> None:
    """Call, and end the process: 0 when it returns, 2 with one line on an error that a person can put right."""
    try:
        call()
    except MindStreamError as error:
        logs.get().error("cannot go on", error=str(error))
        sys.exit(2)
    sys.exit(0)


async def _serve(
    declaration: Declaration, build: Build, beside: Beside | None, pins_tokenizer: bool, arguments: argparse.Namespace
) -> None:
    where = settings.from_environment()
    data = config.load(arguments.config)
    pipeline = config.section(data, "pipeline", PipelineConfig, arguments.config)
    factory = build(data)
    if pins_tokenizer:
        await pin(where, pipeline, config.vocabulary(data, arguments.config))
    with contextlib.ExitStack() as stack:
        scratch = arguments.scratch or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mindstream-")))
        stage = asyncio.ensure_future(run_stage(declaration, factory, where, pipeline, scratch, arguments.slots))
        others = [asyncio.ensure_future(beside(data, where))] if beside else []
        try:
            await asyncio.wait([stage, *others], return_when=asyncio.FIRST_COMPLETED)
            for done in (task for task in others if task.done()):
                done.result()  # its error ends the service
            await stage
        finally:
            for task in (stage, *others):
                task.cancel()
            await asyncio.gather(stage, *others, return_exceptions=True)


async def pin(where: Settings, pipeline: PipelineConfig, vocab: Path) -> None:
    """Make sure that ``vocab`` is the pipeline's tokenizer (see :func:`mindstream_common.pin.pin_tokenizer`)."""
    with contextlib.closing(S3Store.from_settings(where)) as store:
        await asyncio.to_thread(pin_tokenizer, store, pipeline.name, vocab)


async def run_stage(
    declaration: Declaration, factory: Factory, where: Settings, pipeline: PipelineConfig, scratch: Path, slots: int = 1
) -> None:
    """Connect and run a stage until SIGTERM or SIGINT."""
    connection = await bus.connect(where.nats_url, name=declaration.name)
    runner = Runner(
        declaration, factory, bus=connection, settings=where, pipeline=pipeline, scratch=scratch, slots=slots
    )
    drain_on_signals(runner.drain)
    metrics.serve(host=where.metrics_host, port=where.metrics_port, ready=lambda: runner.not_ready)
    try:
        await ensure_streams(connection, pipeline)
        await runner.run()
    finally:
        await connection.close()


async def ensure_streams(connection: bus.Bus, pipeline: PipelineConfig) -> None:
    """Make the streams, waiting for the bus for as long as it takes."""
    while True:
        try:
            return await connection.ensure(queue_events=pipeline.queue_events)
        except Transient as error:
            logs.get().warning("waiting for the bus", error=str(error))
            await asyncio.sleep(0.5)


def drain_on_signals(drain: Callable[[], None]) -> None:
    """SIGTERM and SIGINT drain; the process ends by itself when the work in hand is done."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, drain)
