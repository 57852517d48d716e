"""Rows of a Parquet file: the text columns alone, some hundred rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from mindstream_common.errors import InputError

from mindstream_ingest.fields import Fields
from mindstream_ingest.lines import SHOWN, check_columns
from mindstream_ingest.record import MALFORMED, TOO_LONG, Record
from mindstream_ingest.source import SMALL, Source

BATCH = 512  # rows
BROKEN = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)


def survey(source: Source, fields: Fields, ratio: int, longest: int) -> None:
    """Decode every page once; ``longest`` in bytes of one value.

    Raises:
        InputError: broken, cut off, encrypted, without the columns, or growing ``ratio`` times when it is decoded.
    """
    size = source.path.stat().st_size
    limit, total = max(SMALL, size * ratio), 0
    try:
        with _open(source, fields) as file:
            check_columns(source.name, list(file.schema_arrow.names), fields)
            wanted = _columns(file, fields)
            if not any(_is_text(file.schema_arrow.field(name).type) for name in wanted):
                raise InputError(f"{source.name}: none of the columns {', '.join(wanted)} holds text.")
            total = _declared(source, file.metadata, wanted, longest)
            total = total if total > limit else 0
            batches = file.iter_batches(BATCH, columns=wanted, use_threads=False)
            while total <= limit and (batch := next(batches, None)) is not None:
                total += sum(_bytes(column) for column in batch.columns)
            if total > limit:
                raise InputError(
                    f"{source.name}: {size} bytes hold more than {limit} bytes of text. Is it a bomb? "
                    "If not, raise ingest.compression_ratio."
                )
    except InputError:
        raise
    except BROKEN as error:
        raise InputError(f"{source.name}: broken Parquet ({str(error)[:300]}). Copy the file again.") from error


def _declared(source: Source, metadata: Any, wanted: list[str], longest: int) -> int:
    """Bytes of the wanted columns as the file says, before any page is decoded: a page lies in memory whole."""
    total = 0
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            if column.path_in_schema in wanted:
                total += column.total_uncompressed_size
                if column.total_uncompressed_size > 1000 + longest * max(1, column.num_values):
                    raise InputError(
                        f"{source.name}: column {column.path_in_schema} holds values of more than {longest} bytes "
                        "(ingest.record_bytes). Cut them."
                    )
    return total


def read(source: Source, fields: Fields, longest: int, skip: int) -> Iterator[Record]:
    """Rows after the first ``skip``; row groups before them are not read."""
    with _open(source, fields) as file:
        wanted = _columns(file, fields)
        row, groups = 0, list(range(file.num_row_groups))
        while groups and row + file.metadata.row_group(groups[0]).num_rows <= skip:
            row += file.metadata.row_group(groups.pop(0)).num_rows
        for batch in file.iter_batches(BATCH, row_groups=groups, columns=wanted, use_threads=False):
            if row + batch.num_rows > skip:
                columns = [_values(column) for column in batch.columns]
                for offset, values in enumerate(zip(*columns, strict=True), row):
                    if offset >= skip:
                        yield _record(dict(zip(batch.schema.names, values, strict=True)), fields, longest, offset)
            row += batch.num_rows


def _record(value: dict[str, Any], fields: Fields, longest: int, row: int) -> Record:
    place = str(row + 1)
    for name, found in value.items():
        if isinstance(found, bytes):
            detail = f"column {name!r} holds bytes that are not UTF-8"
            return Record(
                text=found[:SHOWN].decode("utf-8", "replace"), place=place, reason=MALFORMED, detail=detail, at=row
            )
    record = fields.record(value, str({name: str(found)[:SHOWN] for name, found in value.items()}), place, row)
    if not record.reason and len(record.text) * 4 > longest and len(record.text.encode()) > longest:
        detail = f"{len(record.text.encode())} bytes; ingest.record_bytes allows {longest}"
        return Record(text=record.text[:SHOWN], place=place, reason=TOO_LONG, detail=detail, at=row)
    return record


def _open(source: Source, fields: Fields) -> Any:
    """Strings stay a dictionary and its indices: a value that a page repeats a million times is there once."""
    schema = pq.read_schema(source.path)
    names = [field.name for field in schema if field.name in fields.names and _is_text(field.type)]
    return pq.ParquetFile(source.path, read_dictionary=names, pre_buffer=False, buffer_size=1 << 18)


def _columns(file: Any, fields: Fields) -> list[str]:
    return [name for name in fields.names if name in file.schema_arrow.names]


def _is_text(type: Any) -> bool:
    if pa.types.is_dictionary(type):
        type = type.value_type
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type))


def _bytes(column: Any) -> int:
    if pa.types.is_dictionary(column.type):
        lengths = pc.binary_length(column.dictionary)
        return pc.sum(pc.take(lengths, column.indices)).as_py() or 0
    return int(column.nbytes)


def _values(column: Any) -> list[Any]:
    """Python values; a string that is not UTF-8 comes as bytes."""
    if not pa.types.is_dictionary(column.type):
        return list(column.to_pylist())
    try:
        values = column.dictionary.to_pylist()
    except UnicodeDecodeError:
        values = [_decoded(value) for value in column.dictionary.cast(pa.large_binary()).to_pylist()]
    return [None if index is None else values[index] for index in column.indices.to_pylist()]


def _decoded(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
