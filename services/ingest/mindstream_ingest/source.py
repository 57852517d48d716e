"""One file: what its name says about it, and its decompressed bytes within limits."""

from __future__ import annotations

import hashlib
import io
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import pyarrow as pa
from mindstream_common.errors import InputError

from mindstream_ingest.config import IngestConfig

Kind = Literal["txt", "jsonl", "html", "csv", "tsv", "json", "md", "parquet", "warc", "pdf", "docx", "tar", "zip"]
KINDS: dict[str, Kind] = {
    ".txt": "txt", ".jsonl": "jsonl", ".html": "html", ".htm": "html", ".csv": "csv", ".tsv": "tsv", ".json": "json",
    ".md": "md", ".parquet": "parquet", ".warc": "warc", ".pdf": "pdf", ".docx": "docx", ".tar": "tar", ".zip": "zip",
}  # fmt: skip
OTHER_NAMES: dict[str, Kind] = {".ndjson": "jsonl", ".markdown": "md", ".tgz": "tar"}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
ARCHIVES: tuple[Kind, ...] = ("tar", "zip")
IN_PLACE: tuple[Kind, ...] = ("parquet", "pdf", "docx", "zip")  # read here and there: these need a plain file
WHOLE: tuple[Kind, ...] = ("txt", "md", "html")  # one document a file, which must fit in memory
SMALL = 64_000_000  # below this many bytes no ratio is suspicious
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """A file that may be read: ``limit`` is the most decompressed bytes that it may hold."""

    name: str
    path: Path
    kind: Kind
    compression: str | None
    limit: int

    def open(self) -> io.BufferedReader:
        """The decompressed bytes. Reading raises InputError when they are broken, cut off or too many."""
        return io.BufferedReader(_Bounded(self), 1 << 18)


def kind_of(name: str) -> tuple[Kind | None, str | None]:
    """What a file's name says: its kind (None: not read) and how it is compressed."""
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    compression = COMPRESSIONS.get(suffixes.pop()) if suffixes and suffixes[-1] in COMPRESSIONS else None
    if not suffixes:
        return None, compression
    if suffixes[-1] == ".tgz" and compression is None:
        return "tar", "gzip"
    return KINDS.get(suffixes[-1]) or OTHER_NAMES.get(suffixes[-1]), compression


def source(name: str, path: Path, config: IngestConfig) -> Source:
    """What the file's name says.

    Raises:
        InputError: the name's ending is none that ingest reads.
    """
    kind, compression = kind_of(name)
    if kind is None:
        known = ", ".join(KINDS)
        raise InputError(f"{name}: ingest reads {known}, each also as .gz or .zst. Convert the file to one of them.")
    limit = config.file_bytes
    if kind in WHOLE:
        limit = min(limit, config.record_bytes)
    if compression:
        limit = min(limit, max(SMALL, path.stat().st_size * config.compression_ratio))
    return Source(name, path, kind, compression, limit)


def in_place(opened: Source, folder: Path) -> Source:
    """The same as a plain file: decompressed into ``folder`` when it is compressed and its kind cannot be streamed."""
    if opened.compression is None or opened.kind not in IN_PLACE:
        return opened
    path = folder / f"plain-{hashlib.sha256(opened.name.encode()).hexdigest()[:16]}"
    with opened.open() as stream:
        extract(stream, path)
    return replace(opened, path=path, compression=None)


class Readable(Protocol):
    """What can be read a piece at a time."""

    def read(self, size: int, /) -> bytes: ...


def extract(stream: Readable, path: Path) -> str:
    """Write a stream's bytes to ``path``, a piece at a time; returns their sha256. Errors of the stream pass."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


class _Bounded(io.RawIOBase):
    """A raw stream that stops with an error where a file is cut off, broken or larger than allowed."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._read = 0
        try:
            self._stream = pa.input_stream(str(source.path), compression=source.compression)
        except OSError as error:
            raise self._broken(error) from error

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            data: bytes = self._stream.read(len(buffer))
        except (OSError, zlib.error) as error:
            raise self._broken(error) from error
        self._read += len(data)
        if self._read > self._source.limit:
            raise InputError(
                f"{self._source.name}: holds more than {self._source.limit} bytes of text. Split it, or raise "
                "ingest.record_bytes (txt, md, html), ingest.file_bytes or ingest.compression_ratio."
            )
        buffer[: len(data)] = data
        return len(data)

    def _broken(self, error: Exception) -> InputError:
        return InputError(
            f"{self._source.name}: {self._source.compression or 'file'} data broken or cut off after "
            f"{self._read} bytes ({error}). Copy the file again."
        )

    def close(self) -> None:
        if not self.closed and hasattr(self, "_stream"):
            self._stream.close()
        super().close()
