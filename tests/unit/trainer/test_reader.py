from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trainer_support as support
from mindstream_common.errors import InputError
from mindstream_common.events import RowGroup

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
