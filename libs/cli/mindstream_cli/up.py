"""``mindstream up`` and ``down``: the local stack in the foreground or in the background."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mindstream_cleaning.config import CleaningConfig
from mindstream_common import config
from mindstream_common.errors import ConfigError, MindStreamError
from mindstream_common.runner import PipelineConfig
from mindstream_ingest.config import IngestConfig
from mindstream_tokenizer.config import TokenizerConfig, default_buckets
from mindstream_trainer.config import BaseConfig, TrainerConfig
from mindstream_trainer.vocabulary import Vocabulary
from mindstream_writer.config import WriterConfig
from rich.console import Console

from mindstream_cli import stack
from mindstream_cli.hints import command, commands
from mindstream_cli.stack import Stack

SECTIONS: dict[str, Any] = {
    "pipeline": PipelineConfig,
    "ingest": IngestConfig,
    "cleaning": CleaningConfig,
    "tokenizer": TokenizerConfig,
    "writer": WriterConfig,
    "trainer": TrainerConfig,
}


def check(data: dict[str, Any], source: str | Path) -> None:
    """Decode every section, and check the base model against vocabulary and row length, before anything starts.

    Raises:
        ConfigError: the first thing that is wrong, with its section and key.
    """
    decoded = {name: config.section(data, name, type, source) for name, type in SECTIONS.items()}
    vocabulary = Vocabulary.read(config.vocabulary(data, source))
    model = config.section(data, "base", BaseConfig, source).model(len(vocabulary))
    rows: TokenizerConfig = decoded["tokenizer"]
    model.check_length(max(rows.buckets or default_buckets(rows.max_length)))


def file_of(path: Path | None, state: Path) -> Path:
    """The run's file: the one that was named, else the one that this state ran last, else ``configs/local.yaml``."""
    before = state / "run.yaml"
    return path or (before if before.exists() else Path("configs/local.yaml"))


def run(path: Path, settings: list[str], scale: list[str], state: Path, console: Console) -> None:
    """Start, watch until Ctrl-C or SIGTERM, drain, stop."""
    data = stack.assemble(path, settings)
    check(data, path)
    refuse_second(state)
    running = Stack(state, data, scale=stack.parse_scale(scale), say=lambda text: console.print(text, markup=False))
    with stopping() as asked:
        try:
            began = time.monotonic()
            running.start()
            while running.starting() and not asked.wait(0.1):
                running.watch()
            console.print(
                f"MindStream is up after {time.monotonic() - began:.1f} s; its state lies in {state}, logs in {state / 'logs'}.",
                soft_wrap=True,
            )
            for name, child in running.children.items():
                if child.port:
                    console.print(f"  {name:<12} metrics http://127.0.0.1:{child.port}/metrics", highlight=False)
            console.print(f"In another terminal: {commands(state, 'submit PATH --domain D', 'status')}", soft_wrap=True)
            console.print("Ctrl-C here drains and stops.")
            while not asked.wait(0.2):
                running.watch()
            console.print("Draining: work in hand is finished, then the servers stop ...")
        finally:
            running.stop()
    console.print(f"Stopped. `{command('up', state)}` goes on from here, with the same settings.", soft_wrap=True)


def detach(path: Path, settings: list[str], scale: list[str], state: Path, console: Console) -> None:
    """The same as :func:`run` in a process of its own; returns when it is up."""
    check(stack.assemble(path, settings), path)
    refuse_second(state)
    stack.parse_scale(scale)
    state.mkdir(parents=True, exist_ok=True)
    log = state / "logs" / "up.log"
    log.parent.mkdir(exist_ok=True)
    arguments = ["up", "--config", str(path), "--state", str(state)]
    arguments += [part for text in settings for part in ("--set", text)] + [
        part for text in scale for part in ("--scale", text)
    ]
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "mindstream_cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + 60
    while stack.running(state) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(encoding="utf-8").splitlines()[-8:]
            raise ConfigError(f"the stack did not start; last lines of {log}:\n" + "\n".join(tail))
        time.sleep(0.1)
    wait_ready(state, deadline)
    console.print(
        f"MindStream is up in the background (process {process.pid}); its state lies in {state}, its log in {log}.",
        soft_wrap=True,
    )
    console.print(f"Now: {commands(state, 'submit PATH --domain D', 'status', 'down')}", soft_wrap=True)


def wait_ready(state: Path, deadline: float) -> None:
    """Wait until every service of a stack in another process can work.

    Raises:
        ConfigError: one has stopped for good; the others go on.
    """
    while time.monotonic() < deadline:
        found = stack.running(state)
        if found is None:
            raise ConfigError(f"the stack has stopped again; see {state / 'logs' / 'up.log'}")
        if found.ended:
            what = "; ".join(f"{name}: {reason}" for name, reason in found.ended.items())
            raise ConfigError(
                f"the stack is up, but {what} Stop it with `{command('down', state)}`, mend this, and start it again."
            )
        if all(stack.ready(port) for port in found.services.values()):
            return
        time.sleep(0.1)


def down(state: Path, erase: bool, console: Console) -> None:
    """Stop a stack that runs in another process."""
    found = stack.running(state)
    if found is None and not erase:
        raise ConfigError(f"no stack runs under {state}.")
    if found is not None:
        os.kill(found.pid, signal.SIGTERM)
        console.print("Draining ...")
        deadline = time.monotonic() + 90
        while stack.running(state) is not None:
            if time.monotonic() > deadline:
                raise MindStreamError(
                    f"process {found.pid} has not stopped within 90 s; its log is {state / 'logs' / 'up.log'}"
                )
            time.sleep(0.1)
        console.print("Stopped.")
    if erase and state.exists():
        erase_state(state)
        console.print(f"Deleted {state}.")


def erase_state(state: Path) -> None:
    """Delete a state folder. Raises ConfigError when it is none."""
    if not (state / "servers.json").exists():
        raise ConfigError(f"{state} is no state folder (it has no servers.json); nothing was deleted.")
    shutil.rmtree(state)


def refuse_second(state: Path) -> None:
    """Raises ConfigError when a stack runs under ``state`` already."""
    found = stack.running(state)
    if found is not None:
        raise ConfigError(
            f"a stack runs under {state} already (process {found.pid}). Stop it with `mindstream down`, or use another --state."
        )


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second SIGINT interrupts at once."""
    asked = threading.Event()

    def ask(number: int, frame: Any) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    before: list[tuple[int, Any]] = [(number, signal.signal(number, ask)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield asked
    finally:
        for number, handler in before:
            signal.signal(number, handler)
