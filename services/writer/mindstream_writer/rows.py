"""Token rows as the writer needs them: read from Parquet, checked, in the order of the catalog. Columns, not objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from mindstream_common.errors import Poison
from mindstream_common.events import RowGroup, Split

Dtype = Literal["uint16", "int32"]
SPECIALS = (b"specials_per_row", b"specials_per_document")  # in the file's metadata; absent: one each
SPLITS = ("held_out", "train")  # in the order of the catalog


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns of N rows. ``documents`` are names, ``splits`` int8 [N] (an index into SPLITS), ``lengths`` int32 [N] as
    padded, ``ids`` all rows' ids one after the other in the shard's little-endian dtype, ``starts`` int64 [N + 1].
    ``words``, bool like ``ids``, marks ids that continue the word before them; None: unknown. ``tokens`` counts ids
    without special ones."""

    documents: list[str]
    splits: npt.NDArray[np.int8]
    lengths: npt.NDArray[np.int32]
    ids: npt.NDArray[Any]
    starts: npt.NDArray[np.int64]
    words: npt.NDArray[np.bool_] | None
    tokens: int

    def __len__(self) -> int:
        return len(self.documents)


def dtype_of(vocab_size: int) -> Dtype:
    """The smallest type that holds every id."""
    return "uint16" if vocab_size <= 1 << 16 else "int32"


def read(paths: Sequence[Path], shard: str, vocab_size: int) -> Rows:
    """Rows in the order of the files.

    Raises:
        Poison: an id is not in the vocabulary (with shard, row and id), or a row does not fit its length.
    """
    if not paths:
        empty = np.zeros(0, np.int32)
        return Rows(
            [], empty.astype(np.int8), empty, empty.astype(dtype_of(vocab_size)), np.zeros(1, np.int64), None, 0
        )
    table = pa.concat_tables([pq.read_table(path) for path in paths]).combine_chunks()
    lists = table["tokens"].combine_chunks()
    found = lists.flatten().to_numpy()
    starts = np.concatenate(([0], np.cumsum(lists.value_lengths().to_numpy(), dtype=np.int64)))
    lengths = table["length"].to_numpy()
    documents = table["document"].to_pylist()
    specials = _specials(table, documents)
    _check_ids(found, starts, shard, vocab_size)
    _check_lengths(np.diff(starts), lengths, specials, shard)
    names = pa.array(SPLITS, table["split"].type)
    splits = pc.index_in(table["split"], value_set=names).to_numpy().astype(np.int8)
    words = table["words"].combine_chunks().flatten().to_numpy(False) if "words" in table.column_names else None
    if words is not None and len(words) != len(found):
        raise Poison(f"shard {shard} marks words for {len(words)} tokens and holds {len(found)}")
    ids = found.astype(np.dtype(dtype_of(vocab_size)).newbyteorder("<"))
    return Rows(documents, splits, lengths, ids, starts, words, len(ids) - int(specials.sum()))


def _specials(table: pa.Table, documents: list[str]) -> npt.NDArray[np.int64]:
    """How many special tokens each row has: some per row, some after each of its documents (names joined by blanks)."""
    metadata = table.schema.metadata or {}
    row, document = (int(metadata.get(key, b"1")) for key in SPECIALS)
    return np.fromiter((row + document * (name.count(" ") + 1) for name in documents), np.int64, len(documents))


def _check_ids(ids: npt.NDArray[Any], starts: npt.NDArray[np.int64], shard: str, vocab_size: int) -> None:
    wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(wrong):
        row = int(np.searchsorted(starts, wrong[0], side="right")) - 1
        raise Poison(
            f"shard {shard}, row {row}: token id {ids[wrong[0]]} where the vocabulary has {vocab_size} entries. "
            "It was made with another vocabulary: tokenize the clean shard again."
        )


def _check_lengths(sizes: Any, lengths: Any, specials: Any, shard: str) -> None:
    for row in np.flatnonzero((sizes <= specials) | (sizes > lengths))[:1].tolist():
        raise Poison(f"shard {shard}, row {row}: {sizes[row]} tokens in a row of length {lengths[row]}")


def group(rows: Rows) -> tuple[Rows, tuple[RowGroup, ...]]:
    """Sort by (split, length), keeping the order within each, and describe the groups."""
    if not len(rows):
        return rows, ()
    order = np.lexsort((rows.lengths, rows.splits))
    sizes = np.diff(rows.starts)[order]
    starts = np.concatenate(([0], np.cumsum(sizes)))
    at = np.arange(starts[-1]) + np.repeat(rows.starts[:-1][order] - starts[:-1], sizes)
    splits, lengths = rows.splits[order], rows.lengths[order]
    documents = [rows.documents[i] for i in order.tolist()]
    words = None if rows.words is None else rows.words[at]
    ordered = Rows(documents, splits, lengths, rows.ids[at], starts, words, rows.tokens)
    first = np.flatnonzero(np.diff(splits, prepend=-1) | np.diff(lengths, prepend=-1))
    counts = np.diff(first, append=len(rows))
    return ordered, tuple(
        RowGroup(split=cast(Split, SPLITS[splits[i]]), length=int(lengths[i]), rows=n)
        for i, n in zip(first.tolist(), counts.tolist(), strict=True)
    )
