"""Records of a ``.json`` file: an array of them, one alone, or several after each other. Read as a stream.

Only brackets and strings are looked at to find where a record ends; the record itself is parsed when it is whole. So an
array of any length needs the memory of one record, and a broken record costs only itself.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

from mindstream_common.errors import InputError

from mindstream_ingest.fields import Fields
from mindstream_ingest.lines import SHOWN, SPACE, json_record
from mindstream_ingest.record import TOO_LONG, Record

CHUNK = 1 << 18
_INSIDE = re.compile(rb'["\[\]{}]')  # outside of strings, within a record
_BETWEEN = re.compile(rb'["\[\]{},]')
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)  # up to its end, or to where the chunk ends
_OPEN = (b"[", b"{")


def read(name: str, stream: io.BufferedReader, fields: Fields, longest: int, skip: int) -> Iterator[Record]:
    """Records after the first ``skip``; ``longest`` in bytes."""
    for at, (data, length) in enumerate(elements(name, stream, longest)):
        if at < skip:
            continue
        if length > longest:
            detail = f"a record of {length} bytes; ingest.record_bytes allows {longest}"
            text = data.decode("utf-8", "ignore")[:SHOWN]
            yield Record(text=text, place=str(at + 1), reason=TOO_LONG, detail=detail, at=at)
        else:
            yield json_record(data, fields, str(at + 1), at)


def elements(name: str, stream: io.BufferedReader, longest: int) -> Iterator[tuple[bytes, int]]:
    """``(bytes, length)`` of each record; the bytes of one that is longer than ``longest`` are cut.

    Raises:
        InputError: the file ends within a record, or goes on after its array.
    """
    scanner = _Scanner(name, longest)
    while chunk := stream.read(CHUNK):
        yield from scanner.feed(chunk)
    yield from scanner.end()


class _Scanner:
    """Where records begin and end. ``base`` is the depth of records: 1 in an array, 0 outside of one."""

    def __init__(self, name: str, longest: int) -> None:
        self._name = name
        self._longest = longest
        self._base = -1  # not known yet
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._closed = False
        self._kept = bytearray()
        self._length = 0

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, int]]:
        """Records that end in this chunk."""
        position = self._begin(chunk) if self._base < 0 else 0
        start = position  # of what is not kept yet
        while position < len(chunk):
            if self._in_string:
                position = self._string(chunk, position)
                continue
            found = (_BETWEEN if self._depth == self._base else _INSIDE).search(chunk, position)
            if found is None:
                break
            token, position = found.group(), found.end()
            if token == b'"':
                self._in_string = True
            elif token in _OPEN:
                self._depth += 1
            elif token != b",":
                self._depth -= 1
            if self._depth < self._base or (token == b"," and self._base == 1):  # the record ended before this byte
                self._keep(chunk[start : position - 1])
                start = position
                yield from self._take()
            elif self._base == 0 and self._depth == 0 and token in (b"}", b"]"):
                self._keep(chunk[start:position])
                start = position
                yield from self._take()
            if self._depth < self._base:
                self._close(chunk[position:])
                return
        self._keep(chunk[start:])

    def end(self) -> Iterator[tuple[bytes, int]]:
        """What is left when the file has ended."""
        if self._in_string or self._depth > 0:
            raise InputError(f"{self._name}: ends in the middle of a record. It was cut off: copy the file again.")
        yield from self._take()

    def _begin(self, chunk: bytes) -> int:
        """What the first byte says; returns where records begin."""
        rest = chunk.lstrip(SPACE)
        if not rest:
            return len(chunk)
        self._base = self._depth = int(rest[:1] == b"[")
        return len(chunk) - len(rest) + self._base

    def _string(self, chunk: bytes, position: int) -> int:
        if self._escaped:
            position += 1
            self._escaped = False
        found = _STRING.match(chunk, position)
        position = found.end() if found else position
        if position < len(chunk):
            if chunk[position] == 0x22:
                self._in_string = False
            else:
                self._escaped = True  # a backslash is the chunk's last byte
            position += 1
        return position

    def _close(self, rest: bytes) -> None:
        if self._base == 0:
            raise InputError(f"{self._name}: a bracket closes that was never opened. Is it JSON?")
        if rest.strip(SPACE):
            raise InputError(f"{self._name}: goes on after the end of its array: {rest.strip(SPACE)[:60]!r}")
        self._closed = True
        self._base, self._depth = 0, 0  # only white space may follow

    def _keep(self, data: bytes) -> None:
        self._length += len(data)
        if self._length <= self._longest or len(self._kept) < 4 * SHOWN:
            self._kept += data
        if self._length > self._longest:
            del self._kept[4 * SHOWN :]

    def _take(self) -> Iterator[tuple[bytes, int]]:
        data, length = bytes(self._kept).strip(SPACE), self._length
        self._kept.clear()
        self._length = 0
        if data and self._closed:
            raise InputError(f"{self._name}: goes on after the end of its array: {data[:60]!r}")
        if data:
            yield data, length if length > self._longest else len(data)
