"""Dropped documents are shown with their reasons, and those that are sent in again are not dropped for them again."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
from mindstream_cleaning.config import CleaningConfig
from mindstream_cleaning.stage import DECLARATION, CleaningStage
from mindstream_cli import drops, restore
from mindstream_cli.audit import audit
from mindstream_cli.drops import Selection
from mindstream_cli.ledger import Ledger
from mindstream_common import documents, events, manifests
from mindstream_common.bus_memory import MemoryBus
from mindstream_common.claims import MemoryClaims
from mindstream_common.documents import Document
from mindstream_common.errors import ConfigError, InputError, Transient
from mindstream_common.events import FileBundle, RawShard, SourceFile, encode
from mindstream_common.store import MemoryStore
from mindstream_common.topology import RAW, subject_of
from mindstream_common.worker import Workshop
from mindstream_ingest import stage as ingest
from mindstream_ingest.config import IngestConfig
from rich.console import Console

TEXTS = ["高血压患者可以吃党参吗", "好", "12345", "高血压患者可以吃党参吗", "<p>少</p>", "糖尿病患者可以吃西瓜吗"]


class Pipeline:
    """Ingest and cleaning over a store and a bus in memory: events are worked off one by one."""

    def __init__(self, folder: Path) -> None:
        self.store, self.bus, self.claims = MemoryStore(), MemoryBus(), MemoryClaims()
        self._folder = folder
        self.cleaned: list[str] = []

    @property
    def ledger(self) -> Ledger:
        ledger = Ledger(self.store, self.bus)
        ledger.refresh_manifests()
        return ledger

    async def submit(self, texts: list[str], domain: str = "medical") -> None:
        data = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts) + "{bad\n"
        object = self.store.put_bytes(f"files/{domain}/a.jsonl", data.encode())
        bundle = FileBundle(
            id=f"{len(self.store.objects):032x}", domain=domain, objects=(object,), created=0.0,
            files=(SourceFile(name="a.jsonl"),),
        )  # fmt: skip
        stage = ingest.IngestStage(IngestConfig())
        shop = Workshop(ingest.DECLARATION, stage, self.store, self.claims, self._folder / "ingest")
        for stored in shop.work(bundle):
            event = stored.manifest.event
            await self.bus.publish(subject_of(event), encode(event), id=event.id)
        await self.clean()

    async def clean(self) -> None:
        """Work off what waits for cleaning."""
        stage = CleaningStage(CleaningConfig())
        shop = Workshop(DECLARATION, stage, self.store, self.claims, self._folder / "cleaning")
        async for record in self.bus.read(RAW):
            for stored in shop.work(events.decode(record.data)):
                event = stored.manifest.event
                if stored.manifest.publishes:
                    await self.bus.publish(subject_of(event), encode(event), id=event.id)
            await self.bus.remove(RAW, record.seq)

    def kept(self) -> list[str]:
        """The texts of all clean shards."""
        found = []
        for manifest in self.ledger.manifests["cleaning"].values():
            for object in manifest.event.objects:
                path = self._folder / "read.parquet"
                self.store.get_file(object, path)
                found += [document.text for document in documents.read(path)]
        return sorted(found)

    def report(self, selection: Selection, show: int = 5) -> str:
        console = Console(file=io.StringIO(), width=300, color_system=None)
        drops.report(self.ledger, selection, show, False, console)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    async def restore(self, limit: int | None = None, **selection: str) -> restore.Result:
        return await restore.restore(self.ledger, self.bus, Selection(**selection), limit)

    async def balanced(self) -> bool:
        report = await audit(Ledger(self.store, self.bus))
        return not report.problems and all(flow.balanced for flow in report.flows.values())


@pytest.fixture
async def pipeline(tmp_path: Path) -> Pipeline:
    made = Pipeline(tmp_path)
    await made.bus.ensure(queue_events=100)
    await made.submit(TEXTS)
    return made


async def test_counts_and_documents_with_their_reasons(pipeline: Pipeline) -> None:
    assert drops.counts(pipeline.ledger) == {
        ("medical", "cleaning", "exact_duplicate"): 1,
        ("medical", "cleaning", "symbols_only"): 1,
        ("medical", "cleaning", "too_short"): 2,
        ("medical", "ingest", "malformed"): 1,
    }
    shown = pipeline.report(Selection(reason="too_short", domain="medical"), show=1)
    assert "medical · cleaning.too_short · a.jsonl#2" in shown
    assert "text: 好" in shown
    assert "a.jsonl#5" not in shown


async def test_a_duplicate_is_shown_with_the_text_that_was_kept(pipeline: Pipeline) -> None:
    shown = pipeline.report(Selection(reason="exact_duplicate"))
    assert "cleaning.exact_duplicate · a.jsonl#4" in shown
    assert "· a.jsonl#1: 高血压患者可以吃党参吗" in shown


async def test_one_document_by_its_id(pipeline: Pipeline) -> None:
    [found] = drops.find(pipeline.ledger, Selection(reason="symbols_only"))
    assert f"document {found.drop.document}" in pipeline.report(Selection(document=found.drop.document), show=0)


async def test_an_unknown_reason_names_the_known_ones(pipeline: Pipeline) -> None:
    with pytest.raises(InputError, match="Reasons so far: exact_duplicate, malformed, symbols_only, too_short"):
        pipeline.report(Selection(reason="too_shrt"))


def test_json(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    drops.report(pipeline.ledger, Selection(reason="exact_duplicate"), 5, True, Console())
    found = json.loads(capsys.readouterr().out)
    assert found["counts"] == [{"domain": "medical", "stage": "cleaning", "reason": "exact_duplicate", "documents": 1}]
    assert found["documents"][0]["kept_text"] == TEXTS[0]


@pytest.mark.parametrize(
    ("reason", "texts"), [("too_short", ["好", "少"]), ("symbols_only", ["12345"]), ("exact_duplicate", [TEXTS[3]])]
)
async def test_restored_documents_are_kept_and_the_audit_balances(
    pipeline: Pipeline, reason: str, texts: list[str]
) -> None:
    before = pipeline.kept()
    result = await pipeline.restore(reason=reason)
    assert (result.restored, result.before) == (len(texts), 0)
    assert await pipeline.balanced()
    await pipeline.clean()
    assert pipeline.kept() == sorted(before + texts)
    assert await pipeline.balanced()


async def test_twice_does_nothing_twice(pipeline: Pipeline) -> None:
    assert (await pipeline.restore(reason="too_short", limit=1)).restored == 1
    assert (await pipeline.restore(reason="too_short")).restored == 1
    again = await pipeline.restore(reason="too_short")
    assert (again.restored, again.before) == (0, 2)
    await pipeline.clean()
    assert pipeline.kept().count("好") == pipeline.kept().count("少") == 1
    assert await pipeline.balanced()


async def test_a_document_may_still_be_dropped_for_another_reason_and_sent_in_once_more(pipeline: Pipeline) -> None:
    await pipeline.submit(["好"], domain="other")
    await pipeline.restore(reason="too_short")
    await pipeline.clean()
    assert pipeline.kept().count("好") == 1  # the second one is a duplicate now
    assert drops.counts(pipeline.ledger)["other", "cleaning", "exact_duplicate"] == 1
    await pipeline.restore(reason="exact_duplicate", domain="other")
    await pipeline.clean()
    assert pipeline.kept().count("好") == 2  # spared both reasons
    assert await pipeline.balanced()


async def test_source_and_format_are_kept(pipeline: Pipeline) -> None:
    await pipeline.restore(reason="too_short")
    [manifest] = [m for m in pipeline.ledger.manifests["ingest"].values() if "restored" in m.counts.extra]
    path = Path(pipeline._folder / "restored.parquet")
    pipeline.store.get_file(manifest.event.objects[0], path)
    assert list(documents.read(path)) == [
        Document(id=f"{manifest.event.id}/0", source="a.jsonl#2", format="text", text="好", spared="too_short"),
        Document(id=f"{manifest.event.id}/1", source="a.jsonl#5", format="html", text="<p>少</p>", spared="too_short"),
    ]


@pytest.mark.parametrize("cut", ["object", "manifest", "publish"])
async def test_a_call_that_was_cut_off_is_finished_by_the_next(
    pipeline: Pipeline, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Transient("cut off")

    monkeypatch.setattr(restore, "PATIENCE", 0.0)
    place = {"publish": pipeline.bus, "object": pipeline.store, "manifest": manifests}[cut]
    name = {"publish": "publish", "object": "put_file", "manifest": "encode"}[cut]
    with monkeypatch.context() as broken:
        broken.setattr(place, name, fail)
        with pytest.raises(Transient):
            await pipeline.restore(reason="too_short")
    result = await pipeline.restore(reason="too_short")
    assert (result.restored, result.before) == (0, 2)
    await pipeline.clean()
    assert pipeline.kept().count("好") == 1
    assert await pipeline.balanced()


async def test_two_calls_at_the_same_time_restore_each_document_once(pipeline: Pipeline) -> None:
    results = await asyncio.gather(*(pipeline.restore(reason="too_short") for _ in range(4)))
    assert sum(result.restored for result in results) == 2
    await pipeline.clean()
    assert pipeline.kept().count("好") == 1
    assert await pipeline.balanced()


async def test_what_ingest_could_not_read_stays_dropped(pipeline: Pipeline) -> None:
    result = await pipeline.restore(reason="malformed")
    assert (result.restored, result.unread) == (0, 1)


async def test_documents_whose_raw_shard_was_deleted_are_told(pipeline: Pipeline) -> None:
    [raw] = pipeline.ledger.manifests["ingest"].values()
    assert isinstance(raw.event, RawShard)
    pipeline.store.delete(raw.event.objects[0].key)
    result = await pipeline.restore(reason="too_short")
    assert (result.restored, result.gone) == (0, 2)


async def test_nothing_meant_is_an_error(pipeline: Pipeline) -> None:
    with pytest.raises(InputError, match="no dropped document is meant"):
        await pipeline.restore(document="x/1")
    with pytest.raises(ConfigError, match="name what to restore"):
        restore.need_choice("", "")
