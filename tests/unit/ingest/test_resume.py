"""After a crash the work goes on at the first record that is in no stored part, and the parts are the same bytes."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ingest_files import parquet, tarred, warc, zipped
from mindstream_common.claims import MemoryClaims
from mindstream_common.events import FileBundle, SourceFile
from mindstream_common.stage import Product, Work
from mindstream_common.store import MemoryStore
from mindstream_common.worker import Workshop
from mindstream_ingest.config import IngestConfig
from mindstream_ingest.fields import Fields
from mindstream_ingest.record import Record
from mindstream_ingest.shard import OpenShard
from mindstream_ingest.stage import DECLARATION, IngestStage

Bundle = Callable[..., Work[FileBundle]]
CONFIG = IngestConfig(shard_documents=7)


def jsonl(number: int, name: str) -> bytes:
    lines = [json.dumps({"text": f"{name}{n}"}) if n % 5 else "{broken" for n in range(number)]
    return "\n\n".join(lines).encode()


FILES = {
    "a.jsonl": jsonl(20, "a"),
    "dead.jsonl.gz": gzip.compress(b"x" * 999)[:-9],
    "b.csv.gz": gzip.compress(b"text\n" + b"".join(b'"b\n%d"\n' % n for n in range(25))),
    "c.json": json.dumps([{"text": f"c{n}"} for n in range(16)]).encode(),
    "d.parquet": parquet([{"text": f"d{n}"} for n in range(23)], row_group_size=4),
    "e.warc": b"".join(warc("response" if n % 3 else "request", f"http://{n}/", "text/html", b"<p>%d" % n) for n in range(30)),
    "f.zip": zipped({"1.jsonl": jsonl(9, "f"), "2.txt": b"f", "bad.jsonl.gz": b"x", "3.jsonl": jsonl(18, "ff"), "x.jpg": b""}),
    "g.tar.gz": gzip.compress(tarred({"1.jsonl": jsonl(9, "g"), "2.txt": b"g", "3.tsv": b"text\n" + b"x\n" * 12})),
    "h.txt": b"h",
}  # fmt: skip


def result(product: Product) -> Any:
    files = [path.read_bytes() for path in product.files.values()]
    return product.counts, list(product.drops), list(product.dead), files


def run(work: Work[FileBundle], config: IngestConfig = CONFIG) -> list[Any]:
    with contextlib.closing(IngestStage(config)) as stage:
        return [result(product) for product in stage.run(work)]


def test_every_part_can_be_the_last_that_was_stored(bundle: Bundle) -> None:
    claims = MemoryClaims()
    whole = run(bundle(FILES, claims=claims))
    assert len(whole) > 20
    assert sum(len(dead) for _, _, dead, _ in whole) == 3
    for stored in range(1, len(whole)):
        known = tuple(counts for counts, *_ in whole[:stored])
        rest = run(bundle(FILES, claims=claims, known=known))
        assert [counts for counts, *_ in rest[:stored]] == list(known)
        assert [files for *_, files in rest[:stored]] == [[]] * stored  # not done again
        assert rest[stored:] == whole[stored:], stored


def test_with_other_claims_the_parts_that_follow_are_still_whole(bundle: Bundle) -> None:
    """The answers were forgotten: who held a file still holds it."""
    claims = MemoryClaims()
    files = {"a.jsonl": jsonl(40, "a"), "b.jsonl": jsonl(40, "b"), "again.jsonl": jsonl(40, "a")}
    whole = run(bundle(files, claims=claims))
    claims._answers.clear()
    known = tuple(counts for counts, *_ in whole[:3])
    assert run(bundle(files, claims=claims, known=known))[3:] == whole[3:]


def test_a_file_that_has_become_unreadable_is_told(bundle: Bundle) -> None:
    """It was readable when the first part was stored (a slow pdf on a busy machine): its dead letter must not be lost."""
    whole = run(bundle({"a.jsonl": jsonl(40, "a"), "b.txt": b"b" * 50}))
    known = (whole[0][0],)
    changed = IngestConfig(shard_documents=7, record_bytes=40)
    rest = run(bundle({"a.jsonl": jsonl(40, "a"), "b.txt": b"b" * 50}, known=known), changed)
    assert [dead.files[0].name for dead, _ in rest[1][2]] == ["b.txt"]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "json"])
def test_records_of_stored_parts_are_not_parsed_again(
    bundle: Bundle, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [{"text": f"第{n}条"} for n in range(100)]
    data = {
        "jsonl": "\n".join(json.dumps(record) for record in records),
        "json": json.dumps(records),
        "csv": "text\n" + "\n".join(record["text"] for record in records),
    }[kind].encode()
    parsed: list[int] = []
    record = Fields.record

    def counted(self: Fields, *arguments: Any) -> Record:
        parsed.append(arguments[-1])
        return record(self, *arguments)

    whole = run(bundle({f"a.{kind}": data}))
    monkeypatch.setattr(Fields, "record", counted)
    run(bundle({f"a.{kind}": data}, known=tuple(counts for counts, *_ in whole[:-1])))
    assert len(parsed) == 100 % 7


def test_the_worker_goes_on_where_the_manifests_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was killed after its third part; the manifests say to the next one where to go on."""
    whole, cut = MemoryStore(), MemoryStore()
    claims = MemoryClaims()
    for store in (whole, cut):
        objects = [store.put_bytes(f"files/{name}", data) for name, data in FILES.items()]
    event = FileBundle(
        id="0" * 32,
        domain="test",
        objects=tuple(objects),
        created=1.0,
        files=tuple(SourceFile(name=name) for name in FILES),
    )

    def worker(store: MemoryStore) -> Workshop:
        return Workshop(DECLARATION, IngestStage(CONFIG), store, claims, tmp_path / "scratch")

    expected = [stored.manifest for stored in worker(whole).work(event)]
    first = worker(cut).work(event)
    for _ in range(3):
        next(first)
    first.close()  # type: ignore[attr-defined]
    closed: list[Any] = []
    close = OpenShard.close
    monkeypatch.setattr(OpenShard, "close", lambda *arguments: closed.append(arguments) or close(*arguments))
    stored = list(worker(cut).work(event))
    assert [one.repeated for one in stored] == [True] * 3 + [False] * (len(expected) - 3)
    assert len(closed) == len(expected) - 3
    assert [(m.manifest.counts, m.manifest.event.objects, m.manifest.dead) for m in stored] == [
        (m.counts, m.event.objects, m.dead) for m in expected
    ]
