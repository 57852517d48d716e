"""One file of a bundle: what its name says about it, and its decompressed bytes within limits."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
from mindstream_common.errors import InputError
from mindstream_common.events import SourceFile

from mindstream_ingest.config import IngestConfig

Kind = Literal["txt", "jsonl", "html", "csv"]
KINDS: dict[str, Kind] = {".txt": "txt", ".jsonl": "jsonl", ".html": "html", ".htm": "html", ".csv": "csv"}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
SMALL = 64_000_000  # below this many bytes no ratio is suspicious


@dataclass(frozen=True, slots=True)
class Source:
    """A file that may be read: ``limit`` is the most decompressed bytes that it may hold."""

    name: str
    path: Path
    text_fields: tuple[str, ...]
    kind: Kind
    compression: str | None
    limit: int

    def open(self) -> io.BufferedReader:
        """The decompressed bytes. Reading raises InputError when they are broken, cut off or too many."""
        return io.BufferedReader(_Bounded(self), 1 << 18)


def source(file: SourceFile, path: Path, config: IngestConfig) -> Source:
    """What the file's name says.

    Raises:
        InputError: the name's ending is none that ingest reads.
    """
    suffixes = [suffix.lower() for suffix in Path(file.name).suffixes]
    compression = COMPRESSIONS.get(suffixes.pop()) if suffixes and suffixes[-1] in COMPRESSIONS else None
    kind = KINDS.get(suffixes[-1]) if suffixes else None
    if kind is None:
        known = ", ".join(KINDS)
        raise InputError(
            f"{file.name}: ingest reads {known}, each also as .gz or .zst. Convert the file to one of them."
        )
    limit = config.file_bytes
    if kind in ("txt", "html"):  # one document a file, which must fit in memory
        limit = min(limit, config.record_bytes)
    if compression:
        limit = min(limit, max(SMALL, path.stat().st_size * config.compression_ratio))
    return Source(file.name, path, file.text_fields, kind, compression, limit)


class _Bounded(io.RawIOBase):
    """A raw stream that stops with an error where a file is cut off, broken or larger than allowed."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._stream = pa.input_stream(str(source.path), compression=source.compression)
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            data: bytes = self._stream.read(len(buffer))
        except OSError as error:
            raise InputError(
                f"{self._source.name}: {self._source.compression or 'file'} data broken or cut off after "
                f"{self._read} bytes ({error}). Copy the file again."
            ) from error
        self._read += len(data)
        if self._read > self._source.limit:
            raise InputError(
                f"{self._source.name}: holds more than {self._source.limit} bytes of text. Split it, or raise "
                "ingest.record_bytes (txt, html), ingest.file_bytes or ingest.compression_ratio."
            )
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
