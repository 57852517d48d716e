"""Of every kind of file: can all of it be read (survey), and its records one at a time, in order (read)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mindstream_ingest import elements, encoding, lines, parquet, warc
from mindstream_ingest.config import IngestConfig
from mindstream_ingest.fields import Fields
from mindstream_ingest.record import Record
from mindstream_ingest.source import Source

BINARY = ("parquet", "warc")
_FRONT_MATTER = re.compile(r"\A(---|\+\+\+)[ \t]*\n.*?\n\1[ \t]*(\n|\Z)", re.DOTALL)


def survey(source: Source, fields: Fields, config: IngestConfig) -> str:
    """Read a file to its end; returns its encoding (``""`` for a binary one).

    Raises:
        InputError: it cannot be read, or lacks the fields that were asked for.
    """
    if source.kind == "parquet":
        parquet.survey(source, fields, config.compression_ratio, config.record_bytes)
        return ""
    if source.kind == "warc":
        with source.open() as stream:
            warc.survey(source.name, stream)
        return ""
    codec = encoding.detect(source)
    if source.kind in ("csv", "tsv"):
        with source.open() as stream, encoding.as_utf8(stream, codec) as text:
            lines.check_header(source.name, text, source.kind, fields, config.record_bytes)
    elif source.kind == "json":
        with source.open() as stream, encoding.as_utf8(stream, codec) as text:
            for _ in elements.elements(source.name, text, config.record_bytes):
                pass
    return codec


def read(source: Source, codec: str, fields: Fields, longest: int, skip: int = 0) -> Iterator[Record]:
    """Records of a file that was surveyed; the first ``skip`` units (:attr:`Record.at`) are passed over.

    Args:
        longest: most bytes of one record.
    """
    if source.kind == "parquet":
        yield from parquet.read(source, fields, longest, skip)
        return
    with source.open() as raw:
        if source.kind == "warc":
            yield from warc.read(source.name, raw, longest, skip)
            return
        with encoding.as_utf8(raw, codec) as stream:
            if source.kind == "jsonl":
                yield from lines.jsonl(stream, fields, longest, skip)
            elif source.kind in ("csv", "tsv"):
                yield from lines.table(stream, source.kind, fields, longest, skip)
            elif source.kind == "json":
                yield from elements.read(source.name, stream, fields, longest, skip)
            elif not skip:
                yield _document(source, stream.read().decode())


def _document(source: Source, text: str) -> Record:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if source.kind == "md":
        text = _FRONT_MATTER.sub("", text, count=1)
    return Record(text=text, format="html" if source.kind == "html" else "text")
