"""Token rows as the writer needs them: read from Parquet, checked, in the order of the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
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
    columns = pq.read_table(path).to_pydict()
    little = np.dtype(dtype_of(vocab_size)).newbyteorder("<")
    rows = []
    for number, (document, split, length, tokens) in enumerate(
        zip(columns["document"], columns["split"], columns["length"], columns["tokens"], strict=True)
    ):
        ids = np.array(tokens, np.int64)
        wrong = ids[(ids < 0) | (ids >= vocab_size)]
        if len(wrong):
            raise Poison(
                f"shard {shard}, row {number}: token id {wrong[0]} where the vocabulary has {vocab_size} entries. "
                "It was made with another vocabulary: tokenize the clean shard again."
            )
        if not 0 < len(ids) <= length:
            raise Poison(f"shard {shard}, row {number}: {len(ids)} tokens in a row of length {length}")
        rows.append(
            Row(document=document, split=split, length=length, count=len(ids), tokens=ids.astype(little).tobytes())
        )
    return rows


def group(rows: Sequence[Row]) -> tuple[list[Row], tuple[RowGroup, ...]]:
    """Sort by (split, length), keeping the order within each, and describe the groups."""
    ordered = sorted(rows, key=lambda row: (row.split, row.length))
    sizes: dict[tuple[Split, int], int] = {}
    for row in ordered:
        sizes[row.split, row.length] = sizes.get((row.split, row.length), 0) + 1
    return ordered, tuple(RowGroup(split=split, length=length, rows=n) for (split, length), n in sizes.items())
