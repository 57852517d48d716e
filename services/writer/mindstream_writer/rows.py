"""Token rows as the writer needs them: read from Parquet, checked, in the order of the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from mindstream_common.errors import Poison
from mindstream_common.events import RowGroup, Split

Dtype = Literal["uint16", "int32"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """``tokens`` are little-endian ids of the shard's dtype, [CLS] and [SEP] among them; ``count`` of them."""

    document: str
    split: Split
    length: int
    count: int
    tokens: bytes


def dtype_of(vocab_size: int) -> Dtype:
    """The smallest type that holds every id."""
    return "uint16" if vocab_size <= 1 << 16 else "int32"


def read(path: Path, shard: str, vocab_size: int) -> list[Row]:
    """Rows in the order of the file.

    Raises:
        Poison: an id is not in the vocabulary (with shard, row and id), or a row does not fit its length.
    """
    table = pq.read_table(path).combine_chunks()
    lists = table["tokens"].combine_chunks()
    ids = lists.flatten().to_numpy()
    ends = np.cumsum(lists.value_lengths().to_numpy())
    _check_ids(ids, ends, shard, vocab_size)
    data = ids.astype(np.dtype(dtype_of(vocab_size)).newbyteorder("<"))
    rows: list[Row] = []
    names, splits, lengths = (table[name].to_pylist() for name in ("document", "split", "length"))
    begin = 0
    for document, split, length, end in zip(names, splits, lengths, ends.tolist(), strict=True):
        if not 2 < end - begin <= length:
            raise Poison(f"shard {shard}, row {len(rows)}: {end - begin} tokens in a row of length {length}")
        tokens = data[begin:end].tobytes()
        rows.append(Row(document=document, split=split, length=length, count=end - begin, tokens=tokens))
        begin = end
    return rows


def _check_ids(ids: npt.NDArray[Any], ends: npt.NDArray[Any], shard: str, vocab_size: int) -> None:
    wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(wrong):
        row = int(np.searchsorted(ends, wrong[0], side="right"))
        raise Poison(
            f"shard {shard}, row {row}: token id {ids[wrong[0]]} where the vocabulary has {vocab_size} entries. "
            "It was made with another vocabulary: tokenize the clean shard again."
        )


def group(rows: Sequence[Row]) -> tuple[list[Row], tuple[RowGroup, ...]]:
    """Sort by (split, length), keeping the order within each, and describe the groups."""
    ordered = sorted(rows, key=lambda row: (row.split, row.length))
    sizes: dict[tuple[Split, int], int] = {}
    for row in ordered:
        sizes[row.split, row.length] = sizes.get((row.split, row.length), 0) + 1
    return ordered, tuple(RowGroup(split=split, length=length, rows=n) for (split, length), n in sizes.items())
