"""Records of a file, one at a time, in order: the memory needed is one record, whatever the file's size."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import orjson
from mindstream_common.errors import InputError

from mindstream_ingest.record import MALFORMED, TOO_LONG, Record, from_fields
from mindstream_ingest.source import Source

SHOWN = 1000  # characters of a record that is too long to keep


def read(source: Source, encoding: str, names: tuple[str, ...], longest: int) -> Iterator[Record]:
    """Records of a file that was surveyed.

    Args:
        names: text fields of jsonl and csv records.
        longest: most characters of one line.
    """
    newline = {"jsonl": "\n", "csv": ""}.get(source.kind)
    with source.open() as stream, io.TextIOWrapper(stream, encoding, newline=newline) as text:
        if source.kind == "jsonl":
            yield from _jsonl(text, names, longest)
        elif source.kind == "csv":
            yield from _csv(text, names, longest)
        else:
            yield Record(text=text.read(), format="html" if source.kind == "html" else "text")


def check_columns(source: Source, encoding: str, wanted: tuple[str, ...], names: tuple[str, ...], longest: int) -> None:
    """Raises InputError when a csv file lacks a column that was asked for, or every default one."""
    with source.open() as stream, io.TextIOWrapper(stream, encoding, newline="") as text:
        try:
            header = next(csv.reader(_Lines(text, longest), strict=True), [])
        except csv.Error as error:
            raise InputError(f"{source.name}: its first line is not a csv header: {error}") from error
    missing = [name for name in wanted if name not in header]
    if missing or not set(names) & set(header):
        raise InputError(
            f"{source.name}: no column {', '.join(missing or names)}; columns found: {', '.join(header)[:500] or 'none'}. "
            "Name the columns that hold the text (text_fields)."
        )
    if len(set(header)) != len(header):
        raise InputError(f"{source.name}: a column's name appears twice: {', '.join(header)[:500]}. Rename one.")


def _jsonl(text: io.TextIOWrapper, names: tuple[str, ...], longest: int) -> Iterator[Record]:
    lines = _Lines(text, longest)
    while True:
        lines.taken.clear()
        try:
            line = next(lines, None)
        except _TooLong as error:
            yield Record(text=error.begin, place=str(lines.number), reason=TOO_LONG, detail=str(error))
            continue
        if line is None:
            return
        line = line.strip(" \t\r\n\ufeff")
        if line:
            yield _json(line, names, str(lines.number))


def _json(line: str, names: tuple[str, ...], place: str) -> Record:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return Record(text=line, place=place, reason=MALFORMED, detail=str(error))
    if not isinstance(value, dict):
        return Record(text=line, place=place, reason=MALFORMED, detail=f"a {type(value).__name__}, not an object")
    return from_fields(value, names, place, line)


def _csv(text: io.TextIOWrapper, names: tuple[str, ...], longest: int) -> Iterator[Record]:
    csv.field_size_limit(longest)  # of the process: every reader here sets the same
    lines = _Lines(text, longest)
    rows = csv.reader(lines, strict=True)
    header = next(rows)
    while True:
        place = str(lines.number + 1)
        lines.taken.clear()
        try:
            row = next(rows)
        except StopIteration:
            return
        except _TooLong as error:
            yield Record(text=error.begin, place=place, reason=TOO_LONG, detail=str(error))
        except csv.Error as error:
            yield Record(text="".join(lines.taken), place=place, reason=MALFORMED, detail=str(error))
        else:
            raw = "".join(lines.taken)
            if len(row) == len(header):
                yield from_fields(dict(zip(header, row, strict=True)), names, place, raw)
            elif row:
                detail = f"{len(row)} columns where the header has {len(header)}"
                yield Record(text=raw, place=place, reason=MALFORMED, detail=detail)


class _TooLong(Exception):
    """A line longer than allowed; ``begin`` is how it begins."""

    def __init__(self, begin: str, length: int) -> None:
        super().__init__(f"a line of {length} characters; ingest.record_bytes allows fewer")
        self.begin = begin


class _Lines:
    """Lines of bounded length. One that is longer is read past and raises, and the next call goes on after it."""

    def __init__(self, text: io.TextIOWrapper, longest: int) -> None:
        self._text = text
        self._longest = longest
        self.number = 0  # of the line read last, from 1
        self.taken: list[str] = []  # since the reader of records cleared it: the lines of a csv row

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._text.readline(self._longest)
        if not line:
            raise StopIteration
        self.number += 1
        if len(line) == self._longest and not line.endswith(("\n", "\r")):
            length = len(line)
            while (more := self._text.readline(self._longest)) and not more.endswith(("\n", "\r")):
                length += len(more)
            raise _TooLong(line[:SHOWN], length + len(more))
        self.taken.append(line)
        return line
