"""A whole local stack for a test: a tiny model, made-up Chinese text, and a thread that looks after the processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
from mindstream_cli.audit import Report, audit
from mindstream_cli.connection import connect
from mindstream_cli.ledger import Ledger
from mindstream_cli.stack import Child, Stack
from mindstream_ingest import submit
from mindstream_trainer import progress
from mindstream_trainer.progress import Progress

HANZI = "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面而方后多定行学法所民得经"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_vocabulary(path: Path) -> Path:
    """A vocabulary of single characters."""
    path.write_text("\n".join([*SPECIAL, *HANZI, "。", "，"]) + "\n", encoding="utf-8")
    return path


def run_config(vocab: Path, **trainer: Any) -> dict[str, Any]:
    """A run of a tiny model that compiles in a second or two."""
    return {
        "pipeline": {"ack_wait_seconds": 3.0, "retry_seconds": 0.2, "drain_seconds": 5.0},
        "base": {
            "vocab": str(vocab),
            "config": {
                "hidden_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "max_position_embeddings": 64,
            },
        },
        "ingest": {"shard_documents": 40},
        "tokenizer": {"max_length": 32, "held_out": 0.05},
        "trainer": {
            "run": "test",
            "steps": 60,
            "global_batch": 8,
            "learning_rate": 1e-3,
            "checkpoint_every": 10,
            "window": {"rows": 128, "seconds": 1.0},
            "repeat": True,
            "max_restarts": 20,
            **trainer,
        },
    }


def write_documents(path: Path, number: int, seed: int) -> int:
    """A jsonl file of ``number`` documents, one in ten of them a copy of another, some too short; returns ``number``."""
    random_ = random.Random(seed)
    documents: list[str] = []
    for _ in range(number):
        if documents and random_.random() < 0.1:
            documents.append(random_.choice(documents))
        elif random_.random() < 0.05:
            documents.append("好。")
        else:
            sentences = [
                "".join(random_.choices(HANZI, k=random_.randint(6, 18))) + "。" for _ in range(random_.randint(1, 4))
            ]
            documents.append("".join(sentences))
    lines = [msgspec.json.encode({"text": text}) for text in documents]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return number


class Local:
    """A running stack. Everything that dies is started again, as ``mindstream up`` does it."""

    def __init__(self, state: Path, config: dict[str, Any], **options: Any) -> None:
        self.state = state
        self.said: list[str] = []
        self.stack = Stack(state, config, say=self.said.append, **options)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch")

    def start(self) -> None:
        """Start it, and the thread."""
        self.stack.start()
        self._thread.start()

    def stop(self) -> None:
        """Drain and stop."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self.stack.stop(10)

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            self.stack.watch()

    def child(self, name: str) -> Child:
        """A watched process by name."""
        return self.stack.children[name]

    def kill(self, name: str) -> int:
        """``kill -9`` a server or a service; returns the pid."""
        process = self.child(name).server.process
        assert process is not None
        process.kill()
        return process.pid

    def rank(self) -> int | None:
        """The pid of the trainer's rank."""
        process = self.child("trainer").server.process
        with contextlib.suppress(psutil.Error):
            if process is not None and process.poll() is None:
                for child in psutil.Process(process.pid).children():
                    if "mindstream_trainer.rank" in " ".join(child.cmdline()):
                        return child.pid
        return None

    def kill_rank(self) -> bool:
        """``kill -9`` the rank; False when there is none at the moment."""
        pid = self.rank()
        if pid is None:
            return False
        os.kill(pid, signal.SIGKILL)
        return True

    def submit(self, path: Path, domain: str) -> None:
        """Hand a file to ingest."""

        async def call() -> None:
            async with connect(self.state) as connection:
                found, _ = submit.find([path])
                async for _ in submit.submit(
                    found, domain=domain, text_fields=(), store=connection.store, bus=connection.bus
                ):
                    pass

        asyncio.run(call())

    def audit(self) -> Report:
        """The audit's result."""

        async def call() -> Report:
            async with connect(self.state) as connection:
                return await audit(Ledger(connection.store, connection.bus))

        return asyncio.run(call())

    def settled(self, accepted: int, seconds: float = 90.0) -> Report:
        """Wait until ``accepted`` documents have come in and none is under way."""
        deadline = time.monotonic() + seconds
        while True:
            report = self.audit()
            if sum(flow.accepted for flow in report.flows.values()) >= accepted and not report.waiting:
                return report
            assert time.monotonic() < deadline, (report, self.said, self.tails())
            time.sleep(0.5)

    def progress(self, run: str = "test") -> Progress:
        """A run's progress."""
        return progress.read(self.state / "runs" / run) or Progress(run=run)

    def until(self, condition: Callable[[], bool], seconds: float = 90.0) -> None:
        """Wait for something."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, (self.progress(), self.said, self.tails())
            time.sleep(0.05)

    def tails(self) -> str:
        """The ends of all logs, for a failed assertion."""
        return "\n".join(child.server.tail(8) for child in self.stack.children.values() if child.kind != "server")


@contextlib.contextmanager
def local(state: Path, config: dict[str, Any], **options: Any) -> Iterator[Local]:
    """A stack for the length of a test."""
    found = Local(state, config, **options)
    try:
        found.start()
        yield found
    finally:
        found.stop()
