"""Which files of a bundle, and which members of its archives, can be read to their ends; the others are dead letters."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import msgspec
from mindstream_common import ids
from mindstream_common.errors import ConfigError, InputError
from mindstream_common.events import FileBundle, SourceFile
from mindstream_common.stage import Work

from mindstream_ingest import archive, reader
from mindstream_ingest.config import IngestConfig
from mindstream_ingest.fields import Fields
from mindstream_ingest.office import Office
from mindstream_ingest.shard import Position
from mindstream_ingest.source import ARCHIVES, Source, in_place, source

OFFICE = ("pdf", "docx")
NAMED = 20  # members of kinds that are not read, in one error


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """A file, or a member of an archive, that can be read to its end."""

    file: int  # its index in the bundle
    member: int  # its index in the archive, 0 for a plain file
    source: Source  # of the file, or of the whole archive
    text: Source | None  # what the text of an office file was written to
    encoding: str
    fields: Fields
    key: bytes  # 16 bytes that name the content and the fields that are read of it

    @property
    def place(self) -> tuple[int, int]:
        """Where it comes in the bundle's order."""
        return self.file, self.member


@dataclass(frozen=True, slots=True)
class Dead:
    """A file that cannot be read, as a bundle of its own that can be retried."""

    place: tuple[int, int]
    bundle: FileBundle
    error: str


class Survey:
    """Done once when it is made; files before ``begin`` were read by an earlier delivery."""

    def __init__(
        self, work: Work[FileBundle], begin: Position, config: IngestConfig, office: Office, configuration: str
    ) -> None:
        self._work = work
        self._begin = begin
        self._config = config
        self._office = office
        self._configuration = configuration
        self.readable: list[Readable] = []
        self.dead: list[Dead] = []
        for index, (file, path) in enumerate(zip(work.event.files, work.files, strict=True)):
            if index >= begin.file:
                self._file(index, file, path)

    def dead_after(self, file: Readable) -> int:
        """How many dead files come after ``file``."""
        return sum(dead.place > file.place for dead in self.dead)

    def opened(self, files: list[Readable]) -> Iterator[tuple[Readable, Source]]:
        """Each of ``files``, which are in order, with a plain file to read it from; that is gone after its turn."""
        for _, group in groupby(files, key=lambda file: file.file):
            units = {file.member: file for file in group}
            first = next(iter(units.values()))
            with plain(first.source, self._work.folder) as outer:
                if outer.kind not in ARCHIVES:
                    yield first, first.text or outer
                    continue
                for member in archive.members(outer, self._work.folder, self._config, take=units):
                    unit = units[member.index]
                    assert member.source is not None, member
                    with plain(unit.text or member.source, self._work.folder) as inner:
                        yield unit, inner

    def _file(self, index: int, file: SourceFile, path: Path) -> None:
        readable, dead = len(self.readable), len(self.dead)
        try:
            fields = Fields.of(file.text_fields, file.template, self._config.text_fields)
            found = source(file.name, path, self._config)
            with plain(found, self._work.folder) as opened:
                if opened.kind in ARCHIVES:
                    self._archive(index, file, found, opened, fields)
                else:
                    self._one(index, 0, found, opened, fields, file, self._work.event.objects[index].sha256)
        except (InputError, ConfigError) as error:
            del self.readable[readable:], self.dead[dead:]
            self._bury(index, 0, (), str(error))

    def _archive(self, index: int, file: SourceFile, found: Source, opened: Source, fields: Fields) -> None:
        again = index == self._begin.file and self._begin != Position()
        take = range(self._begin.member if again else 0, self._config.archive_members)
        unread: list[str] = []
        for member in archive.members(opened, self._work.folder, self._config, only=file.members, take=take):
            if member.unread:
                unread.append(member.name)
                continue
            try:
                if member.source is None:
                    raise InputError(member.error)
                with plain(member.source, self._work.folder) as inner:
                    self._one(index, member.index, found, inner, fields, file, member.sha256)
            except InputError as error:
                self._bury(index, member.index, (member.name,), str(error))
        if unread and not again:
            names = ", ".join(unread[:NAMED]) + (f" and {len(unread) - NAMED} more" if len(unread) > NAMED else "")
            error_ = f"{file.name}: ingest does not read files of these kinds, the others were read: {names}"
            self._bury(index, -1, tuple(unread[:NAMED]), error_)

    def _one(
        self, index: int, member: int, found: Source, opened: Source, fields: Fields, file: SourceFile, sha256: str
    ) -> None:
        """Survey one file or member; ``found`` is what it is opened from later."""
        text = None
        if opened.kind in OFFICE:
            text = replace(opened, path=self._work.folder / f"text-{index}-{member}", kind="txt")
            self._office.convert(opened, text.path)
            codec = "utf-8"
        else:
            codec = reader.survey(opened, fields, self._config)
        key = content_key(sha256, file)
        self.readable.append(
            Readable(file=index, member=member, source=found, text=text, encoding=codec, fields=fields, key=key)
        )

    def _bury(self, index: int, member: int, members: tuple[str, ...], error: str) -> None:
        event = self._work.event
        file = event.files[index]
        if members:
            file = msgspec.structs.replace(file, members=members)
        id = ids.shard_id("ingest-file", (event.id, *members), self._configuration, index)
        alone = msgspec.structs.replace(event, id=id, objects=(event.objects[index],), files=(file,))
        self.dead.append(Dead((index, member), alone, error))


def content_key(sha256: str, file: SourceFile) -> bytes:
    """What is claimed: the content, and the fields that are read of it when they are not the default ones."""
    if not (file.text_fields or file.template):
        return bytes.fromhex(sha256)[:16]
    return hashlib.sha256("\0".join((sha256, file.template, *file.text_fields)).encode()).digest()[:16]


@contextlib.contextmanager
def plain(found: Source, folder: Path) -> Iterator[Source]:
    """The file itself, or a decompressed copy that is deleted afterwards, for kinds that cannot be streamed."""
    opened = in_place(found, folder)
    try:
        yield opened
    finally:
        if opened.path != found.path:
            opened.path.unlink(missing_ok=True)
