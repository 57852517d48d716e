"""Records of files that are read line by line: jsonl, csv and tsv. The memory needed is one record."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import orjson
from mindstream_common.errors import InputError

from mindstream_ingest.fields import Fields
from mindstream_ingest.record import MALFORMED, TOO_LONG, Record

SHOWN = 1000  # characters of a record that is too long to keep
BOM = b"\xef\xbb\xbf"
SPACE = b" \t\r\n"
DELIMITERS = {"csv": ",", "tsv": "\t"}


def jsonl(stream: io.BufferedReader, fields: Fields, longest: int, skip: int) -> Iterator[Record]:
    """A record a line of UTF-8; ``longest`` in bytes; the first ``skip`` lines are passed over."""
    readline, number = stream.readline, 0
    while line := readline(longest):
        number += 1
        if len(line) == longest and line[-1:] != b"\n":
            length = longest
            while (more := readline(1 << 20)) and more[-1:] != b"\n":
                length += len(more)
            if number > skip:
                yield _too_long(line[: 4 * SHOWN], length + len(more), number)
        elif number > skip:
            line = line.strip(SPACE)
            if BOM in (line[:3], line[-3:]):
                line = line.decode().strip(" \t\r\n\ufeff").encode()
            if line:
                yield json_record(line, fields, str(number), number - 1)


def _too_long(begin: bytes, length: int, number: int) -> Record:
    text = begin.decode("utf-8", "ignore")[:SHOWN]
    detail = f"a line of {length} bytes; ingest.record_bytes allows fewer"
    return Record(text=text, place=str(number), reason=TOO_LONG, detail=detail, at=number - 1)


def json_record(data: bytes, fields: Fields, place: str, at: int) -> Record:
    """One JSON object."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return Record(text=data.decode("utf-8", "replace"), place=place, reason=MALFORMED, detail=str(error), at=at)
    if not isinstance(value, dict):
        detail = f"a {type(value).__name__}, not an object"
        return Record(text=data.decode("utf-8", "replace"), place=place, reason=MALFORMED, detail=detail, at=at)
    return fields.record(value, data, place, at)


def table(stream: io.BufferedReader, kind: str, fields: Fields, longest: int, skip: int) -> Iterator[Record]:
    """Rows of a csv or tsv file with a header; the first ``skip`` lines, the header's among them, are passed over."""
    csv.field_size_limit(longest)  # of the process: every reader here sets the same
    lines = _Lines(io.TextIOWrapper(stream, "utf-8", newline=""), longest)
    rows = csv.reader(lines, strict=True, delimiter=DELIMITERS[kind])
    header = next(rows, None)
    lines.pass_over(skip)
    while header is not None:
        at = lines.number
        lines.taken.clear()
        try:
            row = next(rows)
        except StopIteration:
            return
        except _TooLong as error:
            yield Record(text=error.begin, place=str(at + 1), reason=TOO_LONG, detail=str(error), at=at)
        except csv.Error as error:
            yield Record(text="".join(lines.taken), place=str(at + 1), reason=MALFORMED, detail=str(error), at=at)
        else:
            raw = "".join(lines.taken)
            if len(row) == len(header):
                yield fields.record(dict(zip(header, row, strict=True)), raw, str(at + 1), at)
            elif row:
                detail = f"{len(row)} columns where the header has {len(header)}"
                yield Record(text=raw, place=str(at + 1), reason=MALFORMED, detail=detail, at=at)


def check_header(name: str, stream: io.BufferedReader, kind: str, fields: Fields, longest: int) -> None:
    """Raises InputError when a csv or tsv file's first line is no header, or lacks the fields."""
    lines = _Lines(io.TextIOWrapper(stream, "utf-8", newline=""), longest)
    try:
        header = next(csv.reader(lines, strict=True, delimiter=DELIMITERS[kind]), [])
    except (csv.Error, _TooLong) as error:
        raise InputError(f"{name}: its first line is not a {kind} header: {error}") from error
    check_columns(name, header, fields)


def check_columns(name: str, columns: list[str], fields: Fields) -> None:
    """Raises InputError when a field that was asked for is no column, or none of the default ones is."""
    missing = [field for field in fields.names if field not in columns] if fields.asked else []
    if missing or not set(fields.names) & set(columns):
        raise InputError(
            f"{name}: no column {', '.join(missing or fields.names)}; columns found: "
            f"{', '.join(columns)[:500] or 'none'}. Name the columns that hold the text (text_fields or template)."
        )
    if len(set(columns)) != len(columns):
        raise InputError(f"{name}: a column's name appears twice: {', '.join(columns)[:500]}. Rename one.")


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

    def pass_over(self, lines: int) -> None:
        """Read on until so many lines were read."""
        while self.number < lines:
            self.taken.clear()
            try:
                next(self)
            except _TooLong:
                continue
            except StopIteration:
                return
