from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mindstream_common.claims import MemoryClaims
from mindstream_common.errors import Poison
from mindstream_common.events import CatalogShard, TokenShard
from mindstream_common.ids import shard_id
from mindstream_common.stage import Product, Work
from mindstream_writer import mindrecord
from mindstream_writer.config import WriterConfig
from mindstream_writer.rows import Row
from mindstream_writer.stage import WriterStage

VOCAB = 1000
SHA = "d" * 64
Tokens = Sequence[tuple[str, str, int, Sequence[int]]]
Write = Callable[..., Product]


def work_of(
    folder: Path, rows: Tokens, vocab_size: int = VOCAB, said: dict[str, Any] | None = None
) -> Work[TokenShard]:
    """A shard of rows (document, split, length, tokens) as the tokenizer writes it; ``said`` is what its event says otherwise."""
    folder.mkdir(parents=True)
    kind = pa.uint16() if vocab_size <= 1 << 16 else pa.int32()
    names, splits, lengths, tokens = zip(*rows, strict=True) if rows else ((), (), (), ())
    columns = {
        "document": pa.array(names, pa.string()),
        "split": pa.array(splits, pa.string()),
        "length": pa.array(lengths, pa.int32()),
        "tokens": pa.array(tokens, pa.large_list(kind)),
    }
    pq.write_table(pa.table(columns), folder / "in.parquet", row_group_size=100)
    event = {
        "id": "e" * 32, "domain": "test", "objects": (), "created": 1.0, "root": "e" * 32, "parents": (), "documents": len(set(names)),
        "rows": len(rows), "tokens": sum(len(t) - 2 for t in tokens), "vocab_size": vocab_size, "tokenizer_sha256": SHA,
    } | (said or {})  # fmt: skip
    return Work(event=TokenShard(**event), files=(folder / "in.parquet",), folder=folder, claims=MemoryClaims())


def some_rows(count: int, vocab_size: int = VOCAB) -> Tokens:
    random = np.random.default_rng(7)
    rows = []
    for n in range(count):
        size = int(random.integers(3, 129))
        split = "held_out" if n % 17 == 0 else "train"
        rows.append((f"文档/{n // 3}", split, 64 if size <= 64 else 128, random.integers(0, vocab_size, size).tolist()))
    return rows


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Run the stage over rows, in a folder of its own, and check that the product balances."""
    numbers = itertools.count()

    def run(rows: Tokens, vocab_size: int = VOCAB, said: dict[str, Any] | None = None) -> Product:
        work = work_of(tmp_path / str(next(numbers)), rows, vocab_size, said)
        [product] = WriterStage(WriterConfig(), vocab_size, SHA).run(work)
        product.counts.check()
        return product

    return run


@pytest.mark.mindspore
def test_rows_come_back_sorted_by_split_and_length_and_otherwise_in_order(write: Write) -> None:
    rows = some_rows(2345)
    product = write(rows)
    expected = sorted(rows, key=lambda row: (row[1], row[2]))
    found = list(mindrecord.read(product.files[".mindrecord"]))
    assert [(name, np.frombuffer(tokens, "<u2").tolist()) for name, tokens in found] == [
        (row[0], row[3]) for row in expected
    ]
    event = CatalogShard(
        id="0" * 32, domain="d", objects=(), created=0.0, root="0" * 32, parents=(), documents=1, **product.fields
    )
    assert [(g.split, g.length) for g in event.groups] == [
        ("held_out", 64),
        ("held_out", 128),
        ("train", 64),
        ("train", 128),
    ]
    begin = 0
    for group in event.groups:
        assert {(row[1], row[2]) for row in expected[begin : begin + group.rows]} == {(group.split, group.length)}
        begin += group.rows
    assert begin == event.rows == product.counts.rows == 2345
    assert event.dtype == "uint16"
    assert product.counts.tokens_out == event.tokens == sum(len(row[3]) - 2 for row in rows)
    assert product.counts.documents_out == len({row[0] for row in rows})


@pytest.mark.mindspore
def test_the_files_have_their_final_name_and_the_same_bytes_each_time(write: Write) -> None:
    rows = some_rows(1100)
    first, second = write(rows), write(rows)
    name = shard_id("writer", ("e" * 32,), WriterStage(WriterConfig(), VOCAB, SHA).configuration, 0)
    assert {suffix: path.name for suffix, path in first.files.items()} == {
        ".mindrecord": f"{name}.mindrecord",
        ".mindrecord.db": f"{name}.mindrecord.db",
    }
    assert first.files[".mindrecord"].parent != second.files[".mindrecord"].parent
    for suffix in first.files:
        assert first.files[suffix].read_bytes() == second.files[suffix].read_bytes()
    assert first.files[".mindrecord"].stat().st_size < 2_000_000


@pytest.mark.mindspore
def test_large_vocabularies_are_int32(write: Write) -> None:
    size = (1 << 16) + 1
    product = write([("a", "train", 64, [1, 65536, 2])], size)
    [(_, tokens)] = mindrecord.read(product.files[".mindrecord"])
    assert np.frombuffer(tokens, "<i4").tolist() == [1, 65536, 2]
    assert product.fields["dtype"] == "int32"
    assert write([("a", "train", 64, [1, 65535, 2])], 1 << 16).fields["dtype"] == "uint16"


def test_no_rows_are_a_product_without_files(write: Write) -> None:
    product = write([])
    assert product.files == {}
    assert product.fields["groups"] == ()


@pytest.mark.parametrize("id", [VOCAB, VOCAB + 1, 65535])
def test_k6_an_id_outside_the_vocabulary_is_refused_with_shard_row_and_id(write: Write, id: int) -> None:
    rows = [*some_rows(250), ("a", "train", 64, [1, 2, id, 3]), *some_rows(50)]
    with pytest.raises(
        Poison, match=f"shard {'e' * 32}, row 250: token id {id} where the vocabulary has {VOCAB} entries"
    ):
        write(rows)


@pytest.mark.parametrize("change", [{"vocab_size": VOCAB + 1}, {"tokenizer_sha256": "a" * 64}])
def test_k6_a_shard_of_another_tokenizer_is_refused(write: Write, change: dict[str, Any]) -> None:
    with pytest.raises(Poison, match=r"was tokenized with a vocabulary of .* this pipeline's has 1000"):
        write(some_rows(3), said=change)


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], list(range(65))])
def test_a_row_that_does_not_fit_its_length_is_refused(write: Write, tokens: list[int]) -> None:
    with pytest.raises(Poison, match=f"row 3: {len(tokens)} tokens in a row of length 64"):
        write([*some_rows(3), ("a", "train", 64, tokens)])


def test_rows_that_are_not_what_the_event_says_are_refused(write: Write) -> None:
    with pytest.raises(Poison, match=r"holds 3 rows.*its event says 4"):
        write(some_rows(3), said={"rows": 4})


@pytest.mark.mindspore
def test_a_file_that_reads_back_different_is_never_handed_on(tmp_path: Path) -> None:
    rows = [Row(document=f"d{n}", split="train", length=64, count=4, tokens=bytes([n % 251]) * 8) for n in range(300)]
    path = tmp_path / "abc.mindrecord"
    mindrecord.write(path, rows, 1 << 16, 1 << 18)
    mindrecord.verify(path, rows)
    with pytest.raises(OSError, match="300 rows read back of 301"):
        mindrecord.verify(path, [*rows, rows[0]])
    with pytest.raises(OSError, match="row 299 reads back different"):
        mindrecord.verify(path, rows[:-1])
    data = path.read_bytes()
    at = data.index(rows[7].tokens)
    path.write_bytes(data[:at] + b"\xff" + data[at + 1 :])  # MindSpore reads flipped bits without a word
    with pytest.raises(OSError, match="row 7 reads back different"):
        mindrecord.verify(path, rows)
    with pytest.raises(FileExistsError, match="written once"):
        mindrecord.write(path, rows, 1 << 16, 1 << 18)


def test_the_tokenizer_is_part_of_the_configuration() -> None:
    names = {
        WriterStage(c, VOCAB, s).configuration
        for c, s in ((WriterConfig(), SHA), (WriterConfig(), "a" * 64), (WriterConfig(page_size=1 << 19), SHA))
    }
    assert len(names) == 3
