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
from mindstream_writer.rows import Rows
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


def rows_in(path: Path, dtype: str = "<u2") -> list[tuple[str, list[int]]]:
    """(document, ids) of every row of a file."""
    found = []
    for block in mindrecord.read(path):
        sizes, ids = np.frombuffer(block["sizes"], "<i4"), np.frombuffer(block["tokens"], dtype)
        parts = np.split(ids, np.cumsum(sizes))
        assert not len(parts.pop())
        found += list(zip(block["documents"].split("\n"), [part.tolist() for part in parts], strict=True))
    return found


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
    assert rows_in(product.files[".mindrecord"]) == [(row[0], row[3]) for row in expected]
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
    assert rows_in(product.files[".mindrecord"], "<i4") == [("a", [1, 65536, 2])]
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


def plain(count: int) -> Rows:
    """Rows of four equal ids, each row other ones."""
    ids = np.repeat(np.arange(count) % 251, 4).astype("<u2")
    return Rows(
        documents=[f"d{n}" for n in range(count)], splits=np.ones(count, np.int8), lengths=np.full(count, 64, np.int32),
        ids=ids, starts=np.arange(count + 1) * 4, words=None, tokens=2 * count,
    )  # fmt: skip


@pytest.mark.mindspore
def test_a_file_that_reads_back_different_is_never_handed_on(tmp_path: Path) -> None:
    page = 1 << 18
    path = tmp_path / "abc.mindrecord"
    mindrecord.write(path, plain(1024), 1 << 16, page)
    mindrecord.verify(path, plain(1024), page)
    with pytest.raises(OSError, match="1024 rows read back of 2000"):
        mindrecord.verify(path, plain(2000), page)
    with pytest.raises(OSError, match="rows from 512 on reads back different"):
        mindrecord.verify(path, plain(1020), page)
    data = path.read_bytes()
    at = data.index(plain(8).ids[-4:].tobytes())
    path.write_bytes(data[:at] + b"\xff" + data[at + 1 :])  # MindSpore reads flipped bits without a word
    with pytest.raises(OSError, match="rows from 0 on reads back different"):
        mindrecord.verify(path, plain(1024), page)
    with pytest.raises(FileExistsError, match="written once"):
        mindrecord.write(path, plain(1024), 1 << 16, page)


def test_blocks_are_all_rows_in_order_and_fit_a_page() -> None:
    rows = plain(5000)
    for limit in (100, 4000, 1 << 16):
        found = list(mindrecord.blocks(rows, limit))
        assert b"".join(block["tokens"] for block in found) == rows.ids.tobytes()
        assert "\n".join(block["documents"] for block in found).split("\n") == rows.documents
        assert max(len(block["sizes"]) // 4 for block in found) <= mindrecord.BLOCK_ROWS
        assert max(sum(map(len, block.values())) for block in found) <= limit
    assert [len(block["sizes"]) // 4 for block in mindrecord.blocks(rows, 1)] == [1] * 5000  # a row is never cut


@pytest.mark.mindspore
def test_marks_of_words_stay_with_their_tokens(tmp_path: Path) -> None:
    rows = some_rows(700)
    work = work_of(tmp_path / "in", rows)
    table = pq.read_table(work.files[0])
    marks = [[id % 2 == 0 for id in row[3]] for row in rows]
    table = table.append_column("words", pa.array(marks, pa.large_list(pa.bool_())))
    pq.write_table(table, work.files[0])
    [product] = WriterStage(WriterConfig(), VOCAB, SHA).run(work)
    tokens, words = [], []
    for block in mindrecord.read(product.files[".mindrecord"]):
        ids = np.frombuffer(block["tokens"], "<u2")
        tokens.append(ids)
        words.append(np.unpackbits(np.frombuffer(block["words"], np.uint8), count=len(ids)))
    assert (np.concatenate(words) == (np.concatenate(tokens) % 2 == 0)).all()


def test_the_tokenizer_is_part_of_the_configuration() -> None:
    names = {
        WriterStage(c, VOCAB, s).configuration
        for c, s in ((WriterConfig(), SHA), (WriterConfig(), "a" * 64), (WriterConfig(page_size=1 << 19), SHA))
    }
    assert len(names) == 3
