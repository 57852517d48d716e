"""Pages of a web archive (WARC 1.0 and 1.1, ISO 28500): responses, resources and conversions that are HTML or text.

Read by hand: what a crawler cut off must be seen, not passed over. A compressed archive is one gzip member a record; the
members arrive here as one stream.
"""

from __future__ import annotations

import contextlib
import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from mindstream_common.errors import InputError

from mindstream_ingest import encoding
from mindstream_ingest.lines import SHOWN
from mindstream_ingest.record import ENCODING, MALFORMED, OTHER, TOO_LONG, Record

LINE = 65_536  # bytes of one header line
HEADERS = 1_000  # lines of one header
HTML = ("text/html", "application/xhtml+xml")
PLAIN = "text/plain"
KINDS = ("response", "resource", "conversion")
_END = re.compile(rb"\r?\n\r?\n")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w-]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Head:
    number: int  # of records before it
    fields: dict[str, str]
    length: int  # bytes of its block


@dataclass(frozen=True, slots=True)
class _Page:
    """One record's bytes, as :func:`encoding.detect` wants them."""

    name: str
    kind: str
    data: bytes

    def open(self) -> io.BufferedReader:
        return io.BufferedReader(io.BytesIO(self.data))


def survey(name: str, stream: io.BufferedReader) -> None:
    """Raises InputError when a record is no WARC record or is cut off."""
    for head in _heads(name, stream):
        _skip(name, stream, head, head.length)


def read(name: str, stream: io.BufferedReader, longest: int, skip: int) -> Iterator[Record]:
    """Pages after the first ``skip`` records; ``longest`` in bytes. What is no page comes with the reason OTHER."""
    for head in _heads(name, stream):
        wanted = head.number >= skip and head.fields.get("warc-type", "").lower() in KINDS
        block = _take(name, stream, head, min(head.length, longest + LINE)) if wanted else b""
        _skip(name, stream, head, head.length - len(block))
        if wanted:
            yield _record(name, head, block, longest)
        elif head.number >= skip:
            yield Record(text="", reason=OTHER, at=head.number)


def _heads(name: str, stream: io.BufferedReader) -> Iterator[_Head]:
    number = 0
    while line := _line(name, stream):
        if not line.strip():
            continue
        if not line.startswith(b"WARC/"):
            raise InputError(
                f"{name}: record {number + 1} begins with {line[:40]!r}, not with WARC/. Copy the file again."
            )
        fields: dict[str, str] = {}
        for _ in range(HEADERS):
            line = _line(name, stream)
            if not line.strip():
                break
            key, _, value = line.decode("utf-8", "replace").partition(":")
            fields[key.strip().lower()] = value.strip()
        length = fields.get("content-length", "")
        if line.strip() or not (length.isascii() and length.isdigit() and len(length) < 16):
            raise InputError(f"{name}: record {number + 1} is cut off, or has no Content-Length. Copy the file again.")
        yield _Head(number, fields, int(length))
        number += 1


def _line(name: str, stream: io.BufferedReader) -> bytes:
    line = stream.readline(LINE)
    if len(line) == LINE:
        raise InputError(f"{name}: a header line of more than {LINE} bytes. Is it a WARC file?")
    return line


def _take(name: str, stream: io.BufferedReader, head: _Head, size: int) -> bytes:
    block = stream.read(size)
    if len(block) < size:
        raise _cut(name, head)
    return block


def _skip(name: str, stream: io.BufferedReader, head: _Head, size: int) -> None:
    while size > 0:
        read = len(stream.read(min(size, 1 << 20)))
        if not read:
            raise _cut(name, head)
        size -= read


def _cut(name: str, head: _Head) -> InputError:
    return InputError(f"{name}: cut off in record {head.number + 1}. Copy the file again.")


def _record(name: str, head: _Head, block: bytes, longest: int) -> Record:
    uri = head.fields.get("warc-target-uri", "").strip("<>").encode("utf-8", "replace").decode()
    place = f"{head.number + 1} {uri}".strip()
    content_type, body = head.fields.get("content-type", "").lower(), block
    fields: dict[str, str] = {}
    if head.fields.get("warc-type", "").lower() == "response":
        if not content_type.startswith("application/http"):
            return Record(text="", reason=OTHER, at=head.number)
        status, fields, body = _http(block)
        content_type = fields.get("content-type", "").lower()
        if status != 200:
            return Record(text="", reason=OTHER, at=head.number)
    media = content_type.partition(";")[0].strip()
    if media not in HTML and media != PLAIN:
        return Record(text="", reason=OTHER, at=head.number)
    try:
        body = _decoded(body, fields, longest)
    except (zlib.error, ValueError) as error:
        return Record(text="", place=place, reason=MALFORMED, detail=f"content coding: {error}", at=head.number)
    if head.length > longest + LINE or len(body) > longest:
        detail = f"{head.length} bytes; ingest.record_bytes allows {longest}"
        text = body[: 4 * SHOWN].decode("utf-8", "ignore")[:SHOWN]
        return Record(text=text, place=place, reason=TOO_LONG, detail=detail, at=head.number)
    return _text(name, body, "html" if media in HTML else "text", content_type, place, head.number)


def _http(block: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status (0: not HTTP), header fields in small letters, body."""
    end = _END.search(block, 0, LINE)
    if end is None or not block.startswith(b"HTTP/"):
        return 0, {}, b""
    first, *lines = block[: end.start()].decode("latin-1").splitlines()
    pairs = (line.partition(":") for line in lines)
    words = first.split()
    status = int(words[1]) if len(words) > 1 and words[1].isascii() and words[1].isdigit() else 0
    return status, {key.strip().lower(): value.strip() for key, _, value in pairs}, block[end.end() :]


def _decoded(body: bytes, fields: dict[str, str], longest: int) -> bytes:
    """Without chunks and compression. Many crawlers decode a body and keep its header: what it is not in stays."""
    if "chunked" in fields.get("transfer-encoding", "").lower():
        body = _dechunked(body)
    coding = fields.get("content-encoding", "").lower()
    if coding in ("gzip", "x-gzip") and body[:2] == b"\x1f\x8b":
        return _inflated(body, 31, longest)
    if coding == "deflate" and body[:1] == b"\x78":
        return _inflated(body, 15, longest)
    if coding in ("br", "zstd") and not _is_text(body):
        raise ValueError(f"{coding} is not read")
    return body


def _inflated(body: bytes, bits: int, longest: int) -> bytes:
    decoder = zlib.decompressobj(bits)
    data = decoder.decompress(body, longest + 1)
    if not decoder.eof and len(data) <= longest:
        raise ValueError("the compressed body is cut off")
    return data


def _is_text(body: bytes) -> bool:
    return b"<" in body[:1000] or body[:1000].isascii()


def _dechunked(body: bytes) -> bytes:
    parts: list[bytes] = []
    position = 0
    with contextlib.suppress(ValueError):
        while (end := body.find(b"\r\n", position, position + 40)) >= 0:
            size = int(body[position:end].partition(b";")[0], 16)
            if size == 0:
                return b"".join(parts)
            parts.append(body[end + 2 : end + 2 + size])
            position = end + 2 + size + 2
    return body  # not in chunks (any more)


def _text(name: str, body: bytes, format: str, content_type: str, place: str, at: int) -> Record:
    try:
        return Record(text=body.decode().lstrip("\ufeff"), place=place, format=format, at=at)
    except UnicodeDecodeError:
        pass
    declared = _CHARSET.search(content_type)
    label = encoding.FAMILY.get(declared.group(1).lower(), "") if declared else ""
    try:
        return Record(text=body.decode(encoding.detect(_Page(place, format, body))), place=place, format=format, at=at)
    except InputError as error:
        with contextlib.suppress(UnicodeDecodeError, LookupError):
            return Record(text=body.decode(label), place=place, format=format, at=at)
        text = body[: 4 * SHOWN].decode("utf-8", "replace")[:SHOWN]
        return Record(text=text, place=place, reason=ENCODING, detail=f"{name}#{error}", at=at)
