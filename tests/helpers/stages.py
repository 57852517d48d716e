"""Stages that misbehave in a chosen way. They live in a module of their own because the worker's process imports them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from mindstream_common import documents
from mindstream_common.errors import Poison
from mindstream_common.events import CleanShard, RawShard
from mindstream_common.stage import Counts, Declaration, Product, Work

DECLARATION = Declaration(name="cleaning", takes=RawShard, makes=CleanShard, claims=True)


class Copy:
    """Copies documents. What else it does is said by the shard's domain: slow, failing, dying, poison."""

    def __init__(self, seconds: float = 0.0, runs: Path | None = None, configuration: str = "copy-1") -> None:
        self.configuration = configuration
        self._seconds = seconds
        self._runs = runs

    def run(self, work: Work[RawShard]) -> Iterator[Product]:
        """One product."""
        if self._runs is not None:
            with self._runs.open("a") as file:
                file.write(f"{work.event.id}\n")
        claimed = work.claims.claim(f"{work.event.id}/0", [bytes.fromhex(work.event.id)], [work.event.id])
        assert claimed == [""], claimed
        match work.event.domain:
            case "slow":
                time.sleep(self._seconds)
            case "failing":
                raise RuntimeError("this shard cannot be done")
            case "dying":
                os.kill(os.getpid(), signal.SIGKILL)
            case "poison":
                raise Poison("this shard can never be done")
        found = [document for path in work.files for document in documents.read(path)]
        path = work.folder / "out.parquet"
        documents.write(path, found)
        yield Product(files={".parquet": path}, counts=Counts(documents_in=len(found), documents_out=len(found)))
