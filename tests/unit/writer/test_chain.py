"""The four stages one after the other, in one process: from files to rows that are read back, and every number balances."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindstream_cleaning.config import CleaningConfig
from mindstream_cleaning.stage import DECLARATION as CLEANING
from mindstream_cleaning.stage import CleaningStage
from mindstream_common import ids
from mindstream_common.claims import MemoryClaims
from mindstream_common.events import CatalogShard, Event, FileBundle, Object, SourceFile
from mindstream_common.stage import Declaration, Product, Work
from mindstream_ingest.config import IngestConfig
from mindstream_ingest.stage import DECLARATION as INGEST
from mindstream_ingest.stage import IngestStage
from mindstream_tokenizer import vocabulary
from mindstream_tokenizer.config import TokenizerConfig
from mindstream_tokenizer.stage import DECLARATION as TOKENIZER
from mindstream_tokenizer.stage import TokenizerStage
from mindstream_writer import mindrecord
from mindstream_writer.config import WriterConfig
from mindstream_writer.stage import DECLARATION as WRITER
from mindstream_writer.stage import WriterStage

DEFAULT = TokenizerConfig(held_out=0.1)
HANZI = [chr(point) for point in range(0x4E00, 0x4E00 + 400)]


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"。，？abc0123456789", *HANZI]
    path.write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8", newline="\n")
    return path


def files(folder: Path) -> list[Path]:
    """Real shapes, invented text: jsonl.gz with duplicates and rubbish, a GB18030 csv, pages, a broken file."""
    draw = random.Random(3)

    def text(size: int) -> str:
        return "".join("。" if draw.random() < 0.08 else draw.choice(HANZI) for _ in range(size))

    texts = [text(draw.randint(8, 500)) for _ in range(120)]
    lines = [
        json.dumps({"text": t}, ensure_ascii=False) for t in [*texts, *texts[:20], "", "12345", "好", "锟斤拷锟斤拷"]
    ]
    folder.mkdir(parents=True)
    made = {
        "a.jsonl.gz": gzip.compress("\n".join([*lines, "{broken", '{"id": 1}']).encode(), mtime=0),
        "b.csv": ("id,text\n" + "".join(f"{n},我们认为第{n}个问题很重要。需要进一步讨论\n" for n in range(60))).encode(
            "gb18030"
        ),
        "c.html": f"<html><body><p>{text(30)}</p><p>{texts[0]}</p></body></html>".encode(),
        "d.txt": text(3000).encode(),
        "e.txt": b"caf\xe9 tr\xe8s bon",
        "f.txt": text(3000).encode("utf-8-sig"),
    }
    for name, data in made.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in made]


def run(
    stage: Any,
    declaration: Declaration,
    inputs: Sequence[tuple[Event, tuple[Path, ...]]],
    folder: Path,
    claims: MemoryClaims,
) -> list[tuple[Event, Product]]:
    """What the runner does, without servers: each product becomes the next event."""
    made: list[tuple[Event, Product]] = []
    for event, paths in inputs:
        scratch = folder / f"{declaration.name}-{event.id}"
        scratch.mkdir()
        for part, product in enumerate(stage.run(Work(event=event, files=paths, folder=scratch, claims=claims))):
            product.counts.check()
            objects = tuple(
                Object(key=p.name, size=p.stat().st_size, sha256=ids.sha256_file(p)) for p in product.files.values()
            )
            following: Any = declaration.makes(
                id=ids.shard_id(declaration.name, (event.id,), stage.configuration, part), domain="test", objects=objects, created=0.0,
                root=getattr(event, "root", event.id), parents=(event.id,), documents=product.counts.documents_out, **product.fields,
            )  # fmt: skip
            made.append((following, product))
    return made


def chain(folder: Path, vocab: Path, tokenizer: TokenizerConfig = DEFAULT) -> dict[str, list[tuple[Event, Product]]]:
    paths = files(folder / "files")
    loaded = vocabulary.load(vocab)
    event = FileBundle(
        id="f" * 32, domain="test", created=0.0, files=tuple(SourceFile(name=path.name) for path in paths),
        objects=tuple(Object(key=p.name, size=p.stat().st_size, sha256=ids.sha256_file(p)) for p in paths),
    )  # fmt: skip
    stages: list[tuple[Any, Declaration]] = [
        (IngestStage(IngestConfig(shard_documents=50)), INGEST),
        (CleaningStage(CleaningConfig()), CLEANING),
        (TokenizerStage(tokenizer, vocab), TOKENIZER),
        (WriterStage(WriterConfig(), len(loaded), loaded.sha256), WRITER),
    ]
    claims, inputs = MemoryClaims(), [(event, tuple(paths))]
    made: dict[str, list[tuple[Event, Product]]] = {}
    for stage, declaration in stages:
        made[declaration.name] = run(stage, declaration, inputs, folder, claims)  # type: ignore[arg-type]
        inputs = [(e, tuple(p.files.values())) for e, p in made[declaration.name] if e.objects]  # type: ignore[misc]
    return made


@pytest.mark.mindspore
def test_numbers_balance_from_files_to_rows(tmp_path: Path, vocab: Path) -> None:
    made = chain(tmp_path / "run", vocab)
    ingested, cleaned, tokenized, written = made.values()
    assert [error.split(":")[0] for _, product in ingested for _, error in product.dead] == ["e.txt"]
    dropped = Counter(d.reason for of in made.values() for _, product in of for d in product.drops)
    assert dropped == {
        "malformed": 1,
        "no_text": 1,
        "empty": 1,
        "symbols_only": 1,
        "too_short": 1,
        "mojibake": 1,
        "exact_duplicate": 20,
    }
    for before, after in ((ingested, cleaned), (cleaned, tokenized), (tokenized, written)):
        assert sum(p.counts.documents_out for _, p in before) == sum(p.counts.documents_in for _, p in after)
    assert len(ingested) == 5
    assert sum(p.counts.documents_in for _, p in ingested) == 209
    assert sum(p.counts.documents_out for _, p in written) == 209 - sum(dropped.values())
    assert sum(p.counts.tokens_in for _, p in tokenized) == sum(p.counts.tokens_out for _, p in written)

    documents: set[str] = set()
    tokens = rows = 0
    for event, product in written:
        assert isinstance(event, CatalogShard)
        kind = np.dtype(event.dtype).newbyteorder("<")
        found = []
        for block in mindrecord.read(product.files[".mindrecord"]):
            sizes = np.frombuffer(block["sizes"], "<i4")
            parts = np.split(np.frombuffer(block["tokens"], kind), np.cumsum(sizes)[:-1])
            found += list(zip(block["documents"].split("\n"), parts, strict=True))
        assert len(found) == event.rows == sum(group.rows for group in event.groups)
        lengths = [group.length for group in event.groups for _ in range(group.rows)]
        for (document, row), length in zip(found, lengths, strict=True):
            assert (row[0], row[-1]) == (2, 3)
            assert len(row) <= length
            documents.add(document)
            tokens += len(row) - 2
        rows += len(found)
    assert len(documents) == sum(p.counts.documents_out for _, p in written)
    assert tokens == sum(p.counts.tokens_in for _, p in tokenized)
    assert rows == sum(p.counts.rows for _, p in tokenized)


@pytest.mark.mindspore
def test_the_same_files_give_the_same_objects_all_the_way(tmp_path: Path, vocab: Path) -> None:
    first, second = (chain(tmp_path / name, vocab) for name in ("one", "two"))
    for name in first:
        assert [event for event, _ in first[name]] == [event for event, _ in second[name]]  # ids, sizes, sha256
        assert [product.counts for _, product in first[name]] == [product.counts for _, product in second[name]]


@pytest.mark.mindspore
def test_packed_rows_with_words_are_found_again_by_the_trainer(tmp_path: Path, vocab: Path) -> None:
    from mindstream_trainer.reader import read
    from mindstream_trainer.rundir import ShardFile

    config = TokenizerConfig(packing="full", whole_word=True, max_length=64, held_out=0.1)
    made = chain(tmp_path / "run", vocab, config)
    kept = {document: text for _, product in made["cleaning"] for document, text in _texts(product)}
    spelt: dict[str, str] = {}
    entries = vocabulary.load(vocab).entries
    for event, product in made["writer"]:
        assert isinstance(event, CatalogShard)
        path = str(product.files[".mindrecord"])
        data = read(ShardFile(shard=event.id, path=path, dtype=event.dtype, groups=event.groups), event.vocab_size)
        assert int(data.opens.sum()) == event.documents
        for number in range(event.rows):
            row, marks = data.row(number), data.continues(number)
            spans = data.spans(number)
            assert len(row) == 1 + sum(stop - start + 1 for _, start, stop in spans)
            for document, start, stop in spans:
                assert not marks[start]
                assert row[stop] == 3
                spelt[document] = spelt.get(document, "") + "".join(
                    entries[id].removeprefix("##") for id in row[start:stop]
                )
    assert sum(p.counts.tokens_out for _, p in made["writer"]) == sum(p.counts.tokens_in for _, p in made["tokenizer"])
    assert set(spelt) == set(kept)
    hanzi = {d: "".join(c for c in text if c in HANZI) for d, text in kept.items()}
    assert {d: "".join(c for c in text if c in HANZI) for d, text in spelt.items()} == hanzi


def _texts(product: Product) -> list[tuple[str, str]]:
    import pyarrow.parquet as pq

    tables = [pq.read_table(path, columns=["id", "text"]).to_pylist() for path in product.files.values()]
    return [(row["id"], row["text"]) for rows in tables for row in rows]
