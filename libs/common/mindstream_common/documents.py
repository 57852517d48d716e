"""The Parquet files of documents that ingest writes and cleaning reads and writes (zstd; DuckDB, polars open them)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq


class Signals(msgspec.Struct, frozen=True, kw_only=True):
    """What cleaning has measured: ``characters`` of the text, and which share of its letters is Hanzi (0 to 1)."""

    characters: int
    hanzi_share: float


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """One document. ``id`` is ``<raw shard id>/<row>``: unique, and the same after every redelivery. ``source`` is the
    file's name and the place in it (``qa.jsonl#17``); ``format`` is ``text`` or ``html``.

    ``signals`` are there in clean shards only. ``spared`` names the reasons (with commas) for which cleaning does not
    drop it: a document that was dropped and sent in again.
    """

    id: str
    source: str
    format: str
    text: str
    signals: Signals | None = None
    spared: str = ""


SCHEMA = pa.schema([(name, pa.large_string()) for name in ("id", "source", "format", "text")])
# Columns that a file has when its documents have them; a file without them is the same as before they existed.
SIGNALS = pa.schema([("characters", pa.int64()), ("hanzi_share", pa.float32())])
SPARED = pa.field("spared", pa.large_string())


def write(path: Path, documents: Sequence[Document]) -> None:
    """Write documents in order. The same documents give the same bytes."""
    schema = SCHEMA
    columns = [pa.array([getattr(d, name) for d in documents], pa.large_string()) for name in SCHEMA.names]
    if any(d.signals for d in documents):
        for field in SIGNALS:
            schema = schema.append(field)
            columns.append(pa.array([d.signals and getattr(d.signals, field.name) for d in documents], field.type))
    if any(d.spared for d in documents):
        schema = schema.append(SPARED)
        columns.append(pa.array([d.spared for d in documents], SPARED.type))
    pq.write_table(pa.table(columns, schema=schema), path, compression="zstd", row_group_size=2048)


def read(path: Path) -> Iterator[Document]:
    """Read documents in order, some thousand at a time."""
    with pq.ParquetFile(path) as file:
        optional = set(file.schema_arrow.names)
        for batch in file.iter_batches(1024):
            columns = [batch.column(name).to_pylist() for name in SCHEMA.names]
            spared = batch.column("spared").to_pylist() if "spared" in optional else [""] * batch.num_rows
            signals = _signals(batch) if "characters" in optional else [None] * batch.num_rows
            for id, source, format, text, spare, measured in zip(*columns, spared, signals, strict=True):
                yield Document(id=id, source=source, format=format, text=text, signals=measured, spared=spare)


def _signals(batch: pa.RecordBatch) -> list[Signals | None]:
    pairs = zip(*(batch.column(name).to_pylist() for name in SIGNALS.names), strict=True)
    return [None if c is None else Signals(characters=c, hanzi_share=share) for c, share in pairs]
