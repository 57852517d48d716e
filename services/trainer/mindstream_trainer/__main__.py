"""``python -m mindstream_trainer --config FILE``: train a run from the catalog until it ends."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from mindstream_common import bus, config, logs, metrics, settings
from mindstream_common.ids import configuration_hash
from mindstream_common.runner import PipelineConfig
from mindstream_common.service import drain_on_signals, ensure_streams, exit_with, pin
from mindstream_common.store import S3Store

from mindstream_trainer.config import BaseConfig, TrainerConfig
from mindstream_trainer.rundir import RunFile
from mindstream_trainer.service import Service
from mindstream_trainer.vocabulary import Vocabulary


def main() -> None:
    """Parse the command line and run the service."""
    parser = argparse.ArgumentParser(
        prog="python -m mindstream_trainer",
        description="MindStream's trainer service. Addresses and secrets come from MINDSTREAM_* variables.",
        epilog="example: python -m mindstream_trainer --config configs/demo.yaml --runs .mindstream/runs",
    )
    parser.add_argument("--config", required=True, type=Path, help="the run's file (YAML)")
    parser.add_argument("--runs", required=True, type=Path, help="folder for the runs' local files")
    parser.add_argument("--replay-of", help="train on exactly what that run was trained on, from its journal")
    arguments = parser.parse_args()
    logs.configure(service="trainer")
    exit_with(lambda: sys.exit(asyncio.run(serve(arguments))))


def run_file(path: Path) -> RunFile:
    """What the run's file says, checked: base model against vocabulary."""
    data = config.load(path)
    trainer = config.section(data, "trainer", TrainerConfig, path)
    base = config.section(data, "base", BaseConfig, path)
    vocabulary = Vocabulary.read(config.vocabulary(data, path))
    model = base.model(len(vocabulary))
    return RunFile(
        run=trainer.run,
        seed=trainer.seed,
        trainer=trainer,
        model=model,
        vocab=vocabulary.path,
        weights=base.weights,
        config_sha256=configuration_hash([trainer, model]),
        tokenizer_sha256=vocabulary.sha256,
    )


async def serve(arguments: argparse.Namespace) -> int:
    """Connect, train, and return the exit code."""
    where = settings.from_environment()
    run = run_file(arguments.config)
    pipeline = config.section(config.load(arguments.config), "pipeline", PipelineConfig, arguments.config)
    await pin(where, pipeline, Path(run.vocab))
    store = S3Store.from_settings(where)
    connection = await bus.connect(where.nats_url, name=f"trainer:{run.run}")
    try:
        service = Service(
            run, bus=connection, store=store, runs=arguments.runs.absolute(), replay_of=arguments.replay_of
        )
        drain_on_signals(service.stop)
        metrics.serve(host=where.metrics_host, port=where.metrics_port, ready=lambda: service.not_ready)
        await ensure_streams(connection, pipeline)
        return await service.run()
    finally:
        await connection.close()
        store.close()


if __name__ == "__main__":
    main()
