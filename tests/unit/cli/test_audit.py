"""The audit finds what is lost, doubled and unbalanced; every place where a document may be is counted once."""

from __future__ import annotations

import contextlib
import io
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from mindstream_cli import audit as module
from mindstream_cli import audit_report
from mindstream_cli.audit import Flow, Report, audit
from mindstream_cli.ledger import STAGES, Ledger
from mindstream_common import events, manifests
from mindstream_common.bus_memory import MemoryBus
from mindstream_common.events import (
    DeadLetter,
    FileBundle,
    Object,
    RowGroup,
    RunStarted,
    SourceFile,
    Window,
    WindowShard,
)
from mindstream_common.ids import shard_id
from mindstream_common.manifests import Manifest
from mindstream_common.stage import Counts
from mindstream_common.store import MemoryStore
from mindstream_common.topology import DEAD, STREAM_OF, manifest_key, subject_of
from mindstream_trainer.plan import plan
from rich.console import Console

ORDER = list(STAGES)
TOKENS: dict[str, Any] = {"vocab_size": 100, "tokenizer_sha256": "0" * 64}
FIELDS: dict[str, dict[str, Any]] = {
    "ingest": {},
    "cleaning": {},
    "tokenizer": {"rows": 2, "tokens": 90, **TOKENS},
    "writer": {"rows": 2, "tokens": 90, "dtype": "uint16", "groups": (), **TOKENS},
}
COUNTS = {
    "ingest": Counts(documents_in=10, documents_out=9, dropped={"empty": 1}),
    "cleaning": Counts(documents_in=9, documents_out=6, dropped={"too_short": 1, "duplicate": 2}),
    "tokenizer": Counts(documents_in=6, documents_out=6, rows=2, tokens_in=100, tokens_out=90, tokens_dropped=10),
    "writer": Counts(documents_in=6, documents_out=6, rows=2, tokens_in=90, tokens_out=90),
}


class Pipeline:
    """Writes what the stages would have written: manifests to a store, events to a bus."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.bus = MemoryBus()

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.store, self.bus)

    async def bundle(self, name: str = "a") -> FileBundle:
        """A bundle that waits for ingest."""
        bundle = FileBundle(
            id=shard_id("submit", (name,), "1"),
            domain="medical",
            objects=(Object(key="k", size=1, sha256="0" * 64),),
            created=0.0,
            files=(SourceFile(name=name),),
        )
        await self.send(bundle)
        return bundle

    async def send(self, event: events.StageEvent, again: str = "") -> None:
        await self.bus.publish(subject_of(event), events.encode(event), id=f"{event.id}{again}")

    async def take(self, event: events.StageEvent) -> None:
        """Ack the event."""
        stream = STREAM_OF[type(event)]
        async for record in self.bus.read(stream):
            if events.decode(record.data).id == event.id:
                await self.bus.remove(stream, record.seq)

    def store_manifest(
        self,
        stage: str,
        input: Any,
        counts: Counts | None = None,
        *,
        configuration: str = "1",
        part: int = 0,
        last: bool = True,
    ) -> Manifest:
        """What ``stage`` stores about ``input``."""
        counts = counts or COUNTS[stage]
        makes = STAGES[stage]
        id = shard_id(stage, (input.id,), configuration, part)
        objects = (Object(key=id, size=1, sha256="0" * 64),) if counts.documents_out else ()
        values: dict[str, Any] = {
            "id": id,
            "domain": input.domain,
            "objects": objects,
            "created": 0.0,
            "root": getattr(input, "root", id),
            "parents": (input.id,),
            "documents": counts.documents_out,
        }
        event: Any = makes(**(values | FIELDS[stage]))
        manifest = Manifest(
            stage=stage, input=input.id, part=part, last=last, event=event, counts=counts, configuration=configuration
        )
        self.store.put_bytes(manifest_key(makes, input.domain, id), manifests.encode(manifest))
        return manifest

    async def run(self, stage: str, input: Any, counts: Counts | None = None, **changes: Any) -> Any:
        """Store, publish and ack, in the stages' order."""
        manifest = self.store_manifest(stage, input, counts, **changes)
        if manifest.publishes:
            await self.send(manifest.event)
        await self.take(input)
        return manifest.event

    async def run_to(self, stage: str, name: str = "a") -> Any:
        """From a bundle to what ``stage`` made of it."""
        event: Any = await self.bundle(name)
        for each in ORDER[: ORDER.index(stage) + 1]:
            event = await self.run(each, event)
        return event

    async def bury(self, stage: str, event: events.StageEvent) -> None:
        letter = DeadLetter(
            stage=stage,
            domain=event.domain,
            subject=subject_of(event),
            event=msgspec.Raw(events.encode(event)),
            kind="poison",
            error="no",
            attempts=1,
            at=0.0,
        )
        await self.bus.publish(f"dead.{stage}.{event.domain}", events.encode(letter), id=f"dead:{event.id}")
        await self.take(event)


@pytest.fixture
async def pipeline(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """An empty pipeline, and an audit that does not wait for events that are between two places."""
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    made = Pipeline()
    await made.bus.ensure(queue_events=1000)
    return made


def balanced(report: Report) -> bool:
    """The verdict and each flow's own must agree when there is no problem."""
    return audit_report.balanced(report)


async def test_nothing_balances(pipeline: Pipeline) -> None:
    report = await audit(pipeline.ledger)
    assert (report.flows, report.problems, report.waiting) == ({}, [], 0)
    assert balanced(report)


async def test_a_whole_way_balances(pipeline: Pipeline) -> None:
    for name in ("a", "b"):
        await pipeline.run_to("writer", name)
    report = await audit(pipeline.ledger)
    assert report.problems == []
    assert report.flows["medical"] == Flow(
        accepted=20,
        dropped={"ingest.empty": 2, "cleaning.too_short": 2, "cleaning.duplicate": 4},
        catalogued=12,
        rows=4,
        tokens=200,
        tokens_dropped=20,
        tokens_catalogued=180,
    )
    assert report.shards == {"catalog_events": 2, "catalogued": 2}
    assert report.stages["cleaning"] == {"documents_in": 18, "documents_out": 12, "dropped": 6, "shards": 2}
    assert balanced(report)


@pytest.mark.parametrize("stage", ORDER[:-1])
async def test_documents_under_way_are_counted_at_every_stage(pipeline: Pipeline, stage: str) -> None:
    await pipeline.run_to(stage)
    report = await audit(pipeline.ledger)
    flow = report.flows["medical"]
    assert flow.waiting == report.waiting == COUNTS[stage].documents_out
    assert flow.tokens_waiting == (90 if stage == "tokenizer" else 0)
    assert balanced(report)


@pytest.mark.parametrize("stage", ORDER)
async def test_what_a_worker_has_in_hand_is_under_way(pipeline: Pipeline, stage: str) -> None:
    """The worker has stored its manifest and has not published yet; its input is still in the queue, unacked."""
    event = await pipeline.run_to(ORDER[ORDER.index(stage) - 1]) if stage != "ingest" else await pipeline.bundle()
    pipeline.store_manifest(stage, event)
    report = await audit(pipeline.ledger)
    assert report.flows["medical"].waiting == COUNTS[stage].documents_out
    assert balanced(report)


async def test_a_bundle_that_waits_for_ingest_is_under_way(pipeline: Pipeline) -> None:
    await pipeline.bundle()
    report = await audit(pipeline.ledger)
    assert report.files_waiting == report.waiting == 1
    assert balanced(report)


@pytest.mark.parametrize("stage", ORDER)
async def test_a_lost_event_is_found_at_every_stage(pipeline: Pipeline, stage: str) -> None:
    """The next stage's event was never published, or it was acked without a manifest."""
    event = await pipeline.run_to(ORDER[ORDER.index(stage) - 1]) if stage != "ingest" else await pipeline.bundle()
    lost = pipeline.store_manifest(stage, event)
    await pipeline.take(event)
    report = await audit(pipeline.ledger)
    (problem,) = report.problems
    assert problem.startswith(f"LOST: {COUNTS[stage].documents_out} documents")
    assert lost.event.id in problem
    assert not report.flows["medical"].balanced
    assert not balanced(report)


async def test_other_shards_do_not_hide_a_lost_one(pipeline: Pipeline) -> None:
    await pipeline.run_to("writer", "a")
    await pipeline.take(await pipeline.run_to("cleaning", "b"))
    report = await audit(pipeline.ledger)
    (problem,) = report.problems
    assert problem.startswith("LOST: 6 documents of cleaning's shard")


async def test_a_doubled_shard_is_found(pipeline: Pipeline) -> None:
    """The same raw shard reached the catalog twice, under two configurations."""
    clean = await pipeline.run_to("cleaning")
    for configuration in ("1", "2"):
        token = await pipeline.run("tokenizer", clean, configuration=configuration)
        await pipeline.run("writer", token)
    report = await audit(pipeline.ledger)
    (problem,) = report.problems
    assert problem.startswith(f"DOUBLED: raw shard {clean.root} was catalogued as ")
    assert not balanced(report)


async def test_an_event_that_came_twice_is_no_double(pipeline: Pipeline) -> None:
    shard = await pipeline.run_to("writer")
    await pipeline.send(shard, again="-again")
    report = await audit(pipeline.ledger)
    assert report.problems == []
    assert report.shards == {"catalog_events": 2, "catalogued": 1}
    assert report.flows["medical"].catalogued == 6
    assert balanced(report)


@pytest.mark.parametrize(
    ("stage", "counts"),
    [
        ("cleaning", Counts(documents_in=8, documents_out=6, dropped={"too_short": 2})),
        ("tokenizer", Counts(documents_in=7, documents_out=7, tokens_in=100, tokens_out=90, tokens_dropped=10)),
        ("writer", Counts(documents_in=6, documents_out=6, tokens_in=80, tokens_out=80)),
        ("writer", Counts(documents_in=5, documents_out=5, tokens_in=90, tokens_out=90)),
    ],
)
async def test_a_stage_that_read_other_numbers_is_found(pipeline: Pipeline, stage: str, counts: Counts) -> None:
    event: Any = await pipeline.bundle()
    for each in ORDER:
        event = await pipeline.run(each, event, counts if each == stage else None)
    report = await audit(pipeline.ledger)
    assert any(problem.startswith("UNBALANCED: ") and f"{stage} read" in problem for problem in report.problems)
    assert not balanced(report)


@pytest.mark.parametrize("stage", ORDER[1:])
async def test_dead_letters_are_counted(pipeline: Pipeline, stage: str) -> None:
    event = await pipeline.run_to(ORDER[ORDER.index(stage) - 1])
    await pipeline.bury(stage, event)
    report = await audit(pipeline.ledger)
    flow = report.flows["medical"]
    assert (flow.dead, report.dead_letters, flow.waiting) == (event.documents, 1, 0)
    assert flow.tokens_dropped == (100 if stage == "writer" else 0)
    assert balanced(report)


async def test_a_dead_bundle_has_brought_no_documents(pipeline: Pipeline) -> None:
    await pipeline.bury("ingest", await pipeline.bundle())
    report = await audit(pipeline.ledger)
    assert (report.flows, report.dead_letters) == ({}, 1)
    assert balanced(report)


async def test_a_dead_letter_that_was_retried_is_under_way_and_then_done(pipeline: Pipeline) -> None:
    event = await pipeline.run_to("cleaning")
    await pipeline.bury("tokenizer", event)
    await pipeline.bus.remove(DEAD, 1)
    await pipeline.send(event, again="retry")
    ledger = pipeline.ledger
    report = await audit(ledger)
    assert (report.flows["medical"].dead, report.flows["medical"].waiting) == (0, 6)
    assert balanced(report)
    await pipeline.run("writer", await pipeline.run("tokenizer", event))
    report = await audit(ledger)  # the same ledger reads what is new
    assert (report.flows["medical"].catalogued, report.waiting) == (6, 0)
    assert balanced(report)


@pytest.mark.parametrize("whole", [True, False])
async def test_the_last_part_of_a_bundle_must_be_there(pipeline: Pipeline, whole: bool) -> None:
    """A big bundle gives several raw shards; a worker that died in between has acked nothing."""
    bundle = await pipeline.bundle()
    for part in (0, 1):
        manifest = pipeline.store_manifest("ingest", bundle, part=part, last=whole and part == 1)
        await pipeline.send(manifest.event)
    assert balanced(await audit(pipeline.ledger))
    await pipeline.take(bundle)
    report = await audit(pipeline.ledger)
    assert report.flows["medical"].accepted == 20
    assert balanced(report) is whole
    if not whole:
        words = f"LOST: ingest has stored 2 parts of {bundle.id}, and the last one is not among them"
        assert report.problems == [words]
        await pipeline.bury("ingest", bundle)
        assert balanced(await audit(pipeline.ledger))


async def test_a_shard_without_documents_ends_where_it_is(pipeline: Pipeline) -> None:
    raw = await pipeline.run_to("ingest")
    await pipeline.run("cleaning", raw, Counts(documents_in=9, dropped={"too_short": 9}))
    report = await audit(pipeline.ledger)
    assert report.flows["medical"].dropped == {"ingest.empty": 1, "cleaning.too_short": 9}
    assert balanced(report)


async def test_dropped_documents_that_are_not_named_do_not_balance(pipeline: Pipeline) -> None:
    """A manifest whose own numbers do not add up, as a buggy stage would write it."""
    event: Any = await pipeline.bundle()
    for each in ORDER:
        event = await pipeline.run(each, event, Counts(documents_in=10, documents_out=9) if each == "ingest" else None)
    report = await audit(pipeline.ledger)
    assert not report.flows["medical"].balanced
    assert not balanced(report)


async def test_domains_are_kept_apart(pipeline: Pipeline) -> None:
    await pipeline.run_to("writer")
    bundle = msgspec.structs.replace(await pipeline.bundle("f"), domain="finance")
    pipeline.store_manifest("ingest", bundle)
    report = await audit(pipeline.ledger)
    assert set(report.flows) == {"medical", "finance"}
    assert report.flows["medical"].waiting == 0
    assert report.flows["finance"].accepted == 10


async def test_it_waits_for_an_event_between_two_places(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 5.0)
    event = await pipeline.run_to("cleaning")
    await pipeline.take(event)
    ledger = pipeline.ledger
    refresh, looks = ledger.refresh_catalog, 0

    async def later() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            await pipeline.send(event, again="late")
        await refresh()

    monkeypatch.setattr(ledger, "refresh_catalog", later)
    report = await audit(ledger)
    assert report.problems == []
    assert balanced(report)


async def window(pipeline: Pipeline, number: int, *shards: tuple[int, int], run: str = "default") -> None:
    parts = tuple(
        WindowShard(seq=seq, shard=f"{seq:032x}", domain="medical", epoch=epoch, groups=()) for seq, epoch in shards
    )
    record = Window(run=run, number=number, shards=parts, at=0.0)
    await pipeline.bus.publish(f"journal.{run}", events.encode(record), id=f"{run}{number}{shards}")


async def test_a_runs_journal_is_audited(pipeline: Pipeline) -> None:
    await window(pipeline, 1, (1, 0), (2, 0))
    await window(pipeline, 2, (1, 1))
    await window(pipeline, 1, (1, 0), run="other")
    report = await audit(pipeline.ledger)
    assert report.problems == []
    assert report.runs["default"] == {"windows": 2, "shards": 2, "passes": 3}
    assert report.runs["other"] == {"windows": 1, "shards": 1, "passes": 1}


async def test_a_shard_twice_in_a_pass_is_found(pipeline: Pipeline) -> None:
    await window(pipeline, 1, (1, 0))
    await window(pipeline, 2, (2, 0), (1, 0))
    report = await audit(pipeline.ledger)
    assert report.problems == ["DOUBLED: run 'default' has a shard twice in the same pass"]
    assert not balanced(report)


async def test_a_missing_window_is_found(pipeline: Pipeline) -> None:
    await window(pipeline, 1, (1, 0))
    await window(pipeline, 3, (2, 0))
    report = await audit(pipeline.ledger)
    assert report.problems == ["LOST: the journal of run 'default' lacks a window"]


@pytest.mark.parametrize(
    ("right", "batch", "said"),
    [
        (True, 8, []),
        (False, 8, ["LOST: window 2 of run 'default' does not carry 5 rows that the window before left over"]),
        (True, 12, ["LOST: window 2 of run 'default' does not carry 4 rows that the window before left over"]),
        (True, None, []),  # a start of the first version, which cannot be followed
    ],
)
async def test_rows_that_are_left_over_must_be_carried(
    pipeline: Pipeline, right: bool, batch: int | None, said: list[str]
) -> None:
    group = RowGroup(split="train", length=16, rows=21)
    shard = WindowShard(seq=1, shard="a" * 32, domain="medical", epoch=0, groups=(group,))
    started = RunStarted(run="default", seed=1, global_batch=batch, config_sha256="0" * 64, owner="o", at=0.0)
    first = Window(run="default", number=1, shards=(shard,), at=0.0)
    carry = plan(first, seed=1, global_batch=8).carry if right else ()
    for record in (started, first, Window(run="default", number=2, shards=(), carry=carry, at=0.0)):
        await pipeline.bus.publish("journal.default", events.encode(record), id=f"{record!r}")
    report = await audit(pipeline.ledger)
    assert report.problems == said
    assert balanced(report) is not bool(said)


def shown(report: Report) -> str:
    console = Console(file=io.StringIO(), width=200)
    audit_report.show(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def test_the_report_for_people(pipeline: Pipeline) -> None:
    await pipeline.run_to("writer")
    report = await audit(pipeline.ledger)
    text = shown(report)
    assert "The numbers balance: nothing lost, nothing twice." in text
    rows = {
        cells[0].strip(): cells[1].strip() for line in text.splitlines() if len(cells := line.split("│")[1:-1]) == 2
    }
    assert (rows["documents accepted"], rows["= catalogued"], rows["+ dropped"]) == ("10", "6", "4")
    assert (rows["cleaning.duplicate"], rows["tokens"], rows["= in rows"]) == ("2", "100", "90")
    await pipeline.take(await pipeline.run_to("cleaning", "b"))
    text = shown(await audit(pipeline.ledger))
    assert "The numbers do NOT balance." in text
    assert "LOST: 6 documents of cleaning's shard" in text


@pytest.mark.parametrize(("lost", "code"), [(False, 0), (True, 1)])
@pytest.mark.parametrize("as_json", [False, True])
async def test_the_exit_code(
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Any,
    lost: bool,
    code: int,
    as_json: bool,
) -> None:
    event = await pipeline.run_to("cleaning")
    if lost:
        await pipeline.take(event)

    @contextlib.asynccontextmanager
    async def connect(_: Any) -> AsyncIterator[Any]:
        yield pipeline

    monkeypatch.setattr(audit_report, "connect", connect)
    found = await audit_report.run(tmp_path, as_json, 0.0, Console(file=io.StringIO()))
    assert found == code
    if as_json:
        printed = msgspec.json.decode(capsys.readouterr().out, type=Report)
        assert balanced(printed) is (code == 0)
