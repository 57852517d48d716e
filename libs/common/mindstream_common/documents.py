"""The Parquet files of documents that ingest writes and cleaning reads and writes (zstd; DuckDB, polars open them)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """One document. ``id`` is ``<raw shard id>/<row>``: unique, and the same after every redelivery. ``source`` is the
    file's name and the place in it (``qa.jsonl#17``); ``format`` is ``text`` or ``html``."""

    id: str
    source: str
    format: str
    text: str


SCHEMA = pa.schema([(name, pa.large_string()) for name in ("id", "source", "format", "text")])


def write(path: Path, documents: Sequence[Document]) -> None:
    """Write documents in order. The same documents give the same bytes."""
    columns = [pa.array([getattr(d, name) for d in documents], pa.large_string()) for name in SCHEMA.names]
    pq.write_table(pa.table(columns, schema=SCHEMA), path, compression="zstd", row_group_size=2048)


def read(path: Path) -> Iterator[Document]:
    """Read documents in order, some thousand at a time."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(1024):
            columns = [batch.column(name).to_pylist() for name in SCHEMA.names]
            for id, source, format, text in zip(*columns, strict=True):
                yield Document(id=id, source=source, format=format, text=text)
