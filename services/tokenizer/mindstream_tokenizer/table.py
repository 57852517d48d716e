"""The Parquet file of token rows that the tokenizer writes and the writer reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from mindstream_common.events import Split


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """``tokens`` with [CLS] and [SEP], shape (tokens,); ``length`` is the bucket that it is padded to in training."""

    document: str
    split: Split
    length: int
    tokens: npt.NDArray[np.int32]


def write(path: Path, rows: Sequence[Row], vocab_size: int) -> None:
    """Write rows in order: ``document``, ``split``, ``length``, ``tokens`` (uint16 where every id fits, else int32).

    The same rows give the same bytes.
    """
    dtype = np.dtype("uint16" if vocab_size <= 1 << 16 else "int32")
    offsets = np.cumsum([0, *(len(row.tokens) for row in rows)])
    values = pa.array(np.concatenate([row.tokens for row in rows]).astype(dtype))
    columns = {
        "document": pa.array([row.document for row in rows], pa.string()),
        "split": pa.array([row.split for row in rows], pa.string()),
        "length": pa.array([row.length for row in rows], pa.int32()),
        "tokens": pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values),
    }
    pq.write_table(pa.table(columns), path, compression="zstd")
