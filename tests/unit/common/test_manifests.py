"""Manifests: where they lie, which parts there are, and numbers that must balance; documents beside them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from mindstream_common import documents, manifests
from mindstream_common.documents import Document
from mindstream_common.events import CleanShard, FileBundle, RawShard
from mindstream_common.ids import shard_id
from mindstream_common.manifests import Manifest
from mindstream_common.stage import Counts
from mindstream_common.store import MemoryStore
from mindstream_common.topology import manifest_key

BUNDLE = FileBundle(id="a" * 32, domain="medical", objects=(), created=0.0, files=())


def store_part(store: MemoryStore, part: int, last: bool) -> Manifest:
    id = shard_id("ingest", (BUNDLE.id,), "c", part)
    event = RawShard(id=id, domain="medical", objects=(), created=0.0, root=id, parents=(BUNDLE.id,), documents=0)
    manifest = Manifest(
        stage="ingest", input=BUNDLE.id, part=part, last=last, event=event, counts=Counts(), configuration="c"
    )
    store.put_bytes(
        manifest_key(RawShard, "medical", manifests.slot("ingest", BUNDLE.id, part)), manifests.encode(manifest)
    )
    return manifest


def parts(store: MemoryStore) -> list[Manifest]:
    return list(manifests.parts(store, "ingest", RawShard, BUNDLE))


def test_parts_end_at_the_last_or_at_the_first_that_is_missing() -> None:
    store = MemoryStore()
    assert parts(store) == []
    first = store_part(store, 0, last=False)
    assert parts(store) == [first]
    third = store_part(store, 2, last=True)
    assert parts(store) == [first]
    second = store_part(store, 1, last=False)
    store_part(store, 3, last=True)
    assert parts(store) == [first, second, third]


def test_every_manifest_of_a_kind_is_listed() -> None:
    store = MemoryStore()
    made = {manifests.slot("ingest", store_part(store, part, last=False).input, part) for part in range(3)}
    store.put_bytes("shards/raw/medical/x.parquet", b"")
    store.put_bytes("shards/rawer/medical/y.manifest.json", b"")
    assert {id for _, id in manifests.all_of(store, RawShard)} == made
    assert list(manifests.all_of(store, CleanShard)) == []


def test_an_empty_shard_is_not_published() -> None:
    assert not store_part(MemoryStore(), 0, last=True).publishes


@pytest.mark.parametrize(
    "counts",
    [
        Counts(documents_in=3, documents_out=2),
        Counts(documents_in=3, documents_out=2, dropped={"a": 1, "b": 1}),
        Counts(tokens_in=5, tokens_out=3, tokens_dropped=1),
    ],
)
def test_counts_that_do_not_balance_are_a_bug(counts: Counts) -> None:
    with pytest.raises(AssertionError):
        counts.check()


def test_counts_that_balance() -> None:
    Counts().check()
    Counts(documents_in=3, documents_out=1, dropped={"a": 2}, tokens_in=5, tokens_out=3, tokens_dropped=2).check()


def docs(number: int) -> list[Document]:
    return [
        Document(id=f"{'b' * 32}/{row}", source=f"qa.jsonl#{row}", format="text", text=f"高血压\n\u2028🙂 {row}")
        for row in range(number)
    ]


@pytest.mark.parametrize("number", [0, 1, 2500])
def test_documents_are_written_and_read_in_order(tmp_path: Path, number: int) -> None:
    path = tmp_path / "x.parquet"
    documents.write(path, docs(number))
    assert list(documents.read(path)) == docs(number)
    assert pq.read_schema(path).names == ["id", "source", "format", "text"]


def test_the_same_documents_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        documents.write(tmp_path / name, docs(100))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_manifest_of_another_version_is_refused() -> None:
    data = manifests.encode(store_part(MemoryStore(), 0, last=True)).replace(b"manifest.v1", b"manifest.v2")
    with pytest.raises(msgspec.ValidationError, match=r"manifest\.v2"):
        manifests.decode(data)
