"""``mindstream status``: sums of what the stages have stored, what waits, and the runs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from mindstream_cli import status as module
from mindstream_cli.connection import Connection
from mindstream_cli.ledger import STAGES, Ledger
from mindstream_cli.status import Status
from mindstream_common import manifests
from mindstream_common.bus import Waiting
from mindstream_common.bus_memory import MemoryBus
from mindstream_common.events import RawShard
from mindstream_common.manifests import Manifest
from mindstream_common.stage import Counts
from mindstream_common.store import MemoryStore
from mindstream_common.topology import manifest_key
from mindstream_trainer.progress import Progress, ProgressFile
from rich.console import Console


class Bus(MemoryBus):
    """Says how much waits, by stream and consumer."""

    async def waiting(self, stream: str, durable: str) -> Waiting:
        assert (stream, durable) in {
            ("FILES", "ingest"),
            ("RAW", "cleaning"),
            ("CLEAN", "tokenizer"),
            ("TOKENS", "writer"),
        }
        return Waiting(pending=3, working=1) if durable == "cleaning" else Waiting(pending=0, working=0)


def store_raw(store: MemoryStore, number: int, domain: str) -> None:
    id = f"{number:032x}"
    event = RawShard(id=id, domain=domain, objects=(), created=0.0, root=id, parents=("a" * 32,), documents=4)
    counts = Counts(documents_in=5, documents_out=4, dropped={"empty": 1}, bytes_in=50, bytes_out=40)
    manifest = Manifest(
        stage="ingest", input="a" * 32, part=0, last=True, event=event, counts=counts, configuration="1"
    )
    store.put_bytes(manifest_key(RawShard, domain, id), manifests.encode(manifest))


async def gathered(state: Path, store: MemoryStore) -> Status:
    bus = Bus()
    await bus.ensure(queue_events=10)
    ends: Any = (bus, store, None)
    return await module.gather(Connection(*ends), Ledger(store, bus), state)


async def test_an_empty_pipeline(tmp_path: Path) -> None:
    found = await gathered(tmp_path, MemoryStore())
    assert list(found.stages) == list(STAGES)
    assert (found.catalog, found.dead_letters, found.runs, found.services) == ({}, 0, [], {})


async def test_sums_over_domains(tmp_path: Path) -> None:
    store = MemoryStore()
    for number, domain in enumerate(("medical", "medical", "finance")):
        store_raw(store, number, domain)
    found = await gathered(tmp_path, store)
    ingest = found.stages["ingest"]
    assert (ingest.documents_in, ingest.documents_out, ingest.shards) == (15, 12, 3)
    assert ingest.dropped == {"empty": 3}
    assert (found.stages["cleaning"].waiting, found.stages["cleaning"].working) == (3, 1)
    printed = json.loads(module.encode(found))
    assert printed["stages"]["ingest"]["dropped"] == {"empty": 3}
    console = Console(file=io.StringIO(), width=200)
    module.show(found, console)
    assert isinstance(console.file, io.StringIO)
    assert "empty 3" in console.file.getvalue()


async def test_a_manifest_is_read_once(tmp_path: Path) -> None:
    class Counting(MemoryStore):
        reads = 0

        def get_bytes(self, key: str) -> bytes:
            self.reads += 1
            return super().get_bytes(key)

    store = Counting()
    store_raw(store, 1, "medical")
    ledger = Ledger(store, Bus())
    ledger.refresh_manifests()
    ledger.refresh_manifests()
    store_raw(store, 2, "medical")
    ledger.refresh_manifests()
    assert (store.reads, len(ledger.manifests["ingest"])) == (2, 2)


def test_the_runs_of_a_state_folder(tmp_path: Path) -> None:
    for name in ("b", "a"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        ProgressFile(folder, Progress(run=name)).close()
    (tmp_path / "runs" / "a.yaml").write_text("")
    assert [run.run for run in module.runs(tmp_path)] == ["a", "b"]
    assert module.runs(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (Progress(run="r"), "run r: starting, step 0, loss –, 0 tokens/s, window 0/0, checkpoint –"),
        (
            Progress(
                run="r",
                state="training",
                step=50,
                steps=200,
                loss=2.34567,
                tokens_per_second=12345.6,
                step_seconds=2.0,
                window=2,
                windows=3,
                checkpoint_step=40,
            ),
            "run r: training, step 50/200, loss 2.346, 12,346 tokens/s, 300 s left, window 2/3, checkpoint 40",
        ),
        (Progress(run="r", state="incident", message="NaN in row 3"), "run r: incident (NaN in row 3), step 0"),
    ],
)
def test_a_run_in_one_line(progress: Progress, words: str) -> None:
    assert module.run_line(progress).startswith(words)
