"""Members of a tar or zip: one at a time in a file of its own, which is gone when the next one comes.

Limits hold for the archive as a whole: the number of members, their bytes together, and how much they grow.
"""

from __future__ import annotations

import contextlib
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from mindstream_common.errors import InputError

from mindstream_ingest.config import IngestConfig
from mindstream_ingest.source import ARCHIVES, SMALL, Source, extract, kind_of, source

BROKEN = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error, OSError, EOFError, RuntimeError,
    NotImplementedError, ValueError, OverflowError, MemoryError,
)  # fmt: skip
HEADER_BYTES = 1 << 20  # of one long name or extended header in a tar
DIRECTORY_BYTES = 400  # a member's entry in the directory of a zip, with room for its name

Opener = Callable[[], contextlib.AbstractContextManager[IO[bytes]]]


class Bomb(InputError):
    """The archive as a whole breaks a limit."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member in the archive's order. ``source`` is there until the next member is asked for; without it there is an
    ``error``, or its name says that it is of a kind that is not read (``unread``)."""

    index: int
    name: str
    source: Source | None = None
    sha256: str = ""
    error: str = ""
    unread: bool = False


def members(
    archive: Source,
    folder: Path,
    config: IngestConfig,
    *,
    only: Container[str] = (),
    take: Container[int] | None = None,
) -> Iterator[Member]:
    """Every file in the archive that is not hidden.

    Args:
        only: names; empty means all.
        take: indexes of the members to extract (and to give); None means all.

    Raises:
        InputError: the archive is broken, cut off, or breaks a limit.
    """
    budget = _Budget(archive, config)
    entries = _zip if archive.kind == "zip" else _tar
    path = folder / "member"
    try:
        for index, (name, opener) in enumerate(entries(archive, config)):
            if index >= config.archive_members:
                raise Bomb(
                    f"{archive.name}: more than {config.archive_members} members (ingest.archive_members). Split it."
                )
            if (only and name not in only) or (take is not None and index not in take) or _hidden(name):
                continue
            yield _member(archive, index, name, opener, path, budget, config)
            path.unlink(missing_ok=True)
    except InputError:
        raise
    except (*BROKEN, RecursionError) as error:
        raise InputError(f"{archive.name}: broken or cut-off {archive.kind} ({error}). Copy the file again.") from error


def _member(
    archive: Source, index: int, name: str, opener: Opener, path: Path, budget: _Budget, config: IngestConfig
) -> Member:
    kind, _ = kind_of(name)
    whole = f"{archive.name}/{name}"
    if kind is None:
        return Member(index, name, unread=True)
    if kind in ARCHIVES:
        return Member(
            index, name, error=f"{whole}: an archive in an archive. Unpack the outer one and submit this one."
        )
    try:
        with opener() as stream:
            sha256 = extract(_Counted(stream, budget), path)
        return Member(index, name, source(whole, path, config), sha256)
    except Bomb:
        raise
    except InputError as error:
        return Member(index, name, error=str(error))
    except BROKEN as error:
        if archive.kind == "tar":
            raise  # what follows cannot be found any more
        return Member(index, name, error=f"{whole}: cannot be unpacked ({error}). Pack it again, without a password.")


def _hidden(name: str) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(name).parts)


class _Budget:
    """Bytes that all members together may hold."""

    def __init__(self, archive: Source, config: IngestConfig) -> None:
        self._name = archive.name
        self.left = min(config.file_bytes, max(SMALL, archive.path.stat().st_size * config.compression_ratio))
        self._all = self.left

    def spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise Bomb(
                f"{self._name}: its members hold more than {self._all} bytes. Split it, or raise ingest.file_bytes or "
                "ingest.compression_ratio."
            )


class _Counted:
    """A member's stream, each of whose bytes is paid for."""

    def __init__(self, stream: IO[bytes], budget: _Budget) -> None:
        self._stream = stream
        self._budget = budget

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._budget.spend(len(data))
        return data


def _zip(archive: Source, config: IngestConfig) -> Iterator[tuple[str, Opener]]:
    size, most = _directory_bytes(archive.path), config.archive_members * DIRECTORY_BYTES
    if size > most:
        raise Bomb(f"{archive.name}: its directory has {size} bytes; ingest.archive_members allows {most}. Split it.")
    with zipfile.ZipFile(archive.path) as opened:
        for info in opened.infolist():
            if not info.is_dir():
                yield _name(info), _zip_opener(opened, info)


def _zip_opener(opened: zipfile.ZipFile, info: zipfile.ZipInfo) -> Opener:
    return lambda: opened.open(info)


def _directory_bytes(path: Path) -> int:
    """What the end of a zip says about its directory: it is read into memory whole (APPNOTE.TXT 4.3.14-4.3.16)."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 66_000))
        tail = file.read()
    end, end64 = tail.rfind(b"PK\x05\x06"), tail.rfind(b"PK\x06\x06")
    found = struct.unpack_from("<L", tail, end + 12)[0] if 0 <= end <= len(tail) - 16 else 0
    found64 = struct.unpack_from("<Q", tail, end64 + 40)[0] if 0 <= end64 <= len(tail) - 48 else 0
    return int(found64 if found == 0xFFFFFFFF else found)


def _name(info: zipfile.ZipInfo) -> str:
    """Names without the UTF-8 flag are in the packer's encoding, which in China is GBK; zipfile takes it for cp437."""
    name = info.filename
    if not info.flag_bits & 0x800 and not name.isascii():
        with contextlib.suppress(UnicodeError):
            name = name.encode("cp437").decode("gb18030")
    return _clean(name)


def _tar(archive: Source, config: IngestConfig) -> Iterator[tuple[str, Opener]]:
    with archive.open() as stream, tarfile.open(fileobj=_Ends(stream), mode="r|", tarinfo=_Info) as opened:  # type: ignore[call-overload]
        while (info := opened.next()) is not None:
            opened.members = []  # it remembers every one
            if info.isreg():
                yield _clean(info.name), _tar_opener(opened, info)


def _tar_opener(opened: tarfile.TarFile, info: tarfile.TarInfo) -> Opener:
    def open_member() -> contextlib.AbstractContextManager[IO[bytes]]:
        stream = opened.extractfile(info)
        assert stream is not None, info
        return stream

    return open_member


def _clean(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode().replace("\0", "")


class _Info(tarfile.TarInfo):
    """Headers of bounded length: tarfile reads a long name, however long, into memory."""

    def _proc_member(self, opened: tarfile.TarFile) -> Any:
        headers = (
            tarfile.GNUTYPE_LONGNAME,
            tarfile.GNUTYPE_LONGLINK,
            tarfile.XHDTYPE,
            tarfile.XGLTYPE,
            tarfile.SOLARIS_XHDTYPE,
        )
        if self.type in headers and self.size > HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        return super()._proc_member(opened)  # type: ignore[misc]


class _Ends:
    """A stream whose end cannot be read again and again: tarfile loops there on some broken files."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._ends = 0

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._ends += not data
        if self._ends > 1000:
            raise tarfile.ReadError("unexpected end of data")
        return data
