from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trainer_support as support
from mindstream_common.errors import InputError
from mindstream_common.events import RowGroup
from mindstream_trainer.rundir import ShardFile

pytestmark = pytest.mark.mindspore


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_rows_come_back_in_order(tmp_path: Path, dtype: str) -> None:
    from mindstream_trainer.reader import read

    rows = support.rows_of(2500, length=40)
    data = read(support.write_shard(tmp_path, 1, rows, [support.train_group(2500, 40)], dtype), support.SIZE)
    assert len(data.documents) == 2500
    assert all((data.row(i) == row).all() for i, row in enumerate(rows))
    assert data.documents[:3] == ["d1/0", "d1/0", "d1/1"]
    assert data.opens[:4].tolist() == [True, False, True, False]


def test_an_id_outside_the_vocabulary_is_named_with_shard_and_row(tmp_path: Path) -> None:
    from mindstream_trainer.reader import read

    rows = support.rows_of(10)
    rows[7][2] = support.SIZE
    file = support.write_shard(tmp_path, 1, rows, [support.train_group(10)])
    with pytest.raises(
        InputError,
        match=f"shard {support.shard_name(1)}: row 7 holds the token id {support.SIZE}, .* has {support.SIZE} entries",
    ):
        read(file, support.SIZE)
    assert read(file, support.SIZE + 1).row(7)[2] == support.SIZE


def test_a_negative_id(tmp_path: Path) -> None:
    from mindstream_trainer.reader import read

    rows = support.rows_of(3)
    rows[0][1] = -1
    with pytest.raises(InputError, match="row 0 holds the token id -1"):
        read(support.write_shard(tmp_path, 1, rows, [support.train_group(3)], "int32"), support.SIZE)


def test_other_rows_than_the_catalog_says(tmp_path: Path) -> None:
    from mindstream_trainer.reader import read

    with pytest.raises(InputError, match="has 10 rows, but its groups name 12"):
        read(support.write_shard(tmp_path, 1, support.rows_of(10), [support.train_group(12)]), support.SIZE)


def test_a_row_longer_than_its_group(tmp_path: Path) -> None:
    from mindstream_trainer.reader import read

    rows = [np.array([2, 9, 3])] * 2 + [np.array([2, *[9] * 15, 3])]
    groups = [RowGroup(split="train", length=32, rows=2), RowGroup(split="held_out", length=16, rows=1)]
    with pytest.raises(InputError, match="row 2 has 17 tokens; its group's length is 16"):
        read(support.write_shard(tmp_path, 1, rows, groups), support.SIZE)


def test_a_damaged_and_an_absent_file(tmp_path: Path) -> None:
    from mindstream_trainer.reader import read

    file = support.write_shard(tmp_path, 1, support.rows_of(10), [support.train_group(10)])
    path = Path(file.path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match=f"cannot read the MindRecord file {path}"):
        read(file, support.SIZE)
    path.unlink()
    with pytest.raises(InputError, match=f"cannot read the MindRecord file {path}"):
        read(file, support.SIZE)


def test_the_least_recently_used_shard_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mindstream_trainer import reader

    rows = support.rows_of(20)
    files = [support.write_shard(tmp_path, i, rows, [support.train_group(20)]) for i in (1, 2, 3)]
    read, loaded = reader.read, []

    def counted(file, vocab_size):  # type: ignore[no-untyped-def]
        loaded.append(int(file.shard, 16))
        return read(file, vocab_size)

    monkeypatch.setattr(reader, "read", counted)
    size = sum(len(row) for row in rows) * 2
    shards = reader.Reader(support.SIZE, capacity=2 * size)
    shards.know(files)
    for number in (1, 2, 1, 3, 1, 2):
        assert (shards.shard(support.shard_name(number)).row(3) == rows[3]).all()
    assert loaded == [1, 2, 3, 2]


def test_an_unknown_shard_and_row(tmp_path: Path) -> None:
    from mindstream_trainer.reader import Reader

    shards = Reader(support.SIZE)
    with pytest.raises(InputError, match="does not say where it lies"):
        shards.shard("0" * 32)
    shards.know([support.write_shard(tmp_path, 1, support.rows_of(3), [support.train_group(3)])])
    with pytest.raises(InputError, match="has 3 rows; row 3 was asked for"):
        shards.shard(support.shard_name(1)).row(3)


def write_blocks(folder: Path, blocks: list[dict[str, object]], rows: int, length: int = 16) -> ShardFile:
    """A shard as the writer makes it: some rows in a record."""
    from mindspore.mindrecord import FileWriter

    path = folder / f"{support.shard_name(9)}.mindrecord"
    writer = FileWriter(str(path), 1)
    writer.set_header_size(1 << 16)
    writer.set_page_size(1 << 18)
    schema = {name: {"type": "string" if name == "documents" else "bytes"} for name in blocks[0]}
    writer.add_schema(schema, "blocks")
    writer.write_raw_data(blocks)
    writer.commit()
    group = support.train_group(rows, length)
    return ShardFile(shard=support.shard_name(9), path=str(path), dtype="uint16", groups=(group,))


def block(rows: list[list[int]], names: list[str], marks: list[int] | None = None) -> dict[str, object]:
    made: dict[str, object] = {
        "sizes": np.array([len(row) for row in rows], "<i4").tobytes(),
        "tokens": np.array([id for row in rows for id in row], "<u2").tobytes(),
        "documents": "\n".join(names),
    }
    return made if marks is None else made | {"words": np.packbits(np.array(marks, bool)).tobytes()}


def test_blocks_of_rows_with_several_documents_and_marks(tmp_path: Path) -> None:
    from mindstream_trainer.reader import Span, read

    first = block([[2, 7, 8, 3, 9, 3], [2, 10, 3]], ["a@1-3 b@4-5", "b@1-2"], [0, 0, 1, 0, 0, 0, 0, 0, 0])
    second = block([[2, 11, 12, 13, 3]], ["c@1-4"], [0, 0, 1, 1, 0])
    data = read(write_blocks(tmp_path, [first, second], 3), support.SIZE)
    assert [data.row(n).tolist() for n in range(3)] == [[2, 7, 8, 3, 9, 3], [2, 10, 3], [2, 11, 12, 13, 3]]
    assert data.spans(0) == [Span("a", 1, 3), Span("b", 4, 5)]
    assert data.spans(1) == [Span("b", 1, 2)]
    assert data.opens.tolist() == [2, 0, 1]
    assert data.continues(0).tolist() == [False, False, True, False, False, False]
    assert data.continues(2).tolist() == [False, False, True, True, False]


def test_a_plain_row_is_one_span(tmp_path: Path) -> None:
    from mindstream_trainer.reader import Span, read

    data = read(write_blocks(tmp_path, [block([[2, 7, 8, 3]], ["a/0"])], 1), support.SIZE)
    assert data.spans(0) == [Span("a/0", 1, 3)]
    with pytest.raises(InputError, match=r"no marks of words.*set tokenizer\.whole_word"):
        data.continues(0)


def test_a_block_whose_ids_are_not_what_its_sizes_say(tmp_path: Path) -> None:
    from mindstream_trainer.reader import read

    wrong = block([[2, 7, 3]], ["a"]) | {"sizes": np.array([4], "<i4").tobytes()}
    with pytest.raises(InputError, match="holds 6 bytes of ids, no uint16 for each"):
        read(write_blocks(tmp_path, [wrong], 1), support.SIZE)


def test_whole_words_reach_the_masks(tmp_path: Path) -> None:
    from mindstream_trainer.feed import Inputs
    from mindstream_trainer.plan import plan
    from mindstream_trainer.reader import Reader
    from mindstream_trainer.vocabulary import Vocabulary

    rows = [[2, *range(10, 16), 3]] * 64
    file = write_blocks(tmp_path, [block(rows, [f"d{n}" for n in range(64)], [0, 0, 1, 0, 1, 0, 1, 0] * 64)], 64, 32)
    reader = Reader(support.SIZE)
    reader.know([file])
    vocabulary = Vocabulary.read(support.vocabulary_file(tmp_path))
    [batch] = plan(support.window_of(1, [file]), seed=1, global_batch=64).batches
    masks = {}
    for whole in (False, True):
        options = {"seed": 1, "probability": 0.15, "hidden": 0.0, "attention": 0.0, "whole_word": whole}
        masks[whole] = Inputs(reader, vocabulary, support.TINY, **options).masked(batch)  # type: ignore[arg-type]
    assert masks[False].weights.sum() == 64
    assert masks[True].weights.sum() == 128
    at = masks[True].positions[masks[True].weights == 1].reshape(64, 2) % 32
    assert {tuple(pair) for pair in at.tolist()} == {(1, 2), (3, 4), (5, 6)}
