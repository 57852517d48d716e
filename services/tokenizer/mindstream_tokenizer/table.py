"""The Parquet file of token rows that the tokenizer writes and the writer reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mindstream_tokenizer.rows import Layout

SPLITS = ("train", "held_out")


@dataclass(frozen=True, slots=True)
class Columns:
    """N rows: ``documents`` [N] names, ``splits`` int8 [N] into SPLITS, ``lengths`` int32 [N] the bucket that a row is
    padded to in training, ``layout`` their ids, ``words`` bool [ids] whether an id continues the word before it."""

    documents: pa.Array
    splits: npt.NDArray[np.int8]
    lengths: npt.NDArray[np.int32]
    layout: Layout
    words: npt.NDArray[np.bool_] | None


def write(path: Path, columns: Columns, vocab_size: int, specials: tuple[int, int]) -> None:
    """Write rows in order: ``document``, ``split``, ``length``, ``tokens`` (uint16 where every id fits, else int32) and,
    where words are marked, ``words``. ``specials`` is how many special tokens a row has, and how many more for each of
    its documents; the file's metadata says so unless it is one and one.

    The same rows give the same bytes.
    """
    dtype = np.dtype("uint16" if vocab_size <= 1 << 16 else "int32")
    offsets = pa.array(columns.layout.starts, pa.int64())

    def rows_of(values: npt.NDArray[np.generic]) -> pa.Array:
        return pa.LargeListArray.from_arrays(offsets, pa.array(values))

    arrays = {
        "document": columns.documents,
        "split": pa.array(SPLITS, pa.string()).take(pa.array(columns.splits)),
        "length": pa.array(columns.lengths, pa.int32()),
        "tokens": rows_of(columns.layout.ids.astype(dtype)),
    }
    if columns.words is not None:
        arrays["words"] = rows_of(columns.words)
    table = pa.table(arrays)
    if specials != (1, 1):
        names = ("specials_per_row", "specials_per_document")
        table = table.replace_schema_metadata(dict(zip(names, map(str, specials), strict=True)))
    pq.write_table(table, path, compression="zstd", use_dictionary=["document", "split", "length"])
