"""Places that are looked at again and again: S3 prefixes and folders. Each state of each object is taken once.

What was taken is remembered in the object store (``sources/<source>/...``, an empty object for each), so that a restart
uploads nothing again. It is only a short cut: when it is lost, or two services look at one place, the content's hash
decides, in ingest, as for every file.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mindstream_common import logs
from mindstream_common.bus import Bus
from mindstream_common.errors import InputError, MindStreamError
from mindstream_common.settings import Settings
from mindstream_common.store import Store

from mindstream_ingest.bucket import Bucket, Listed
from mindstream_ingest.config import SourceConfig
from mindstream_ingest.source import kind_of
from mindstream_ingest.submit import BUNDLE_BYTES, BUNDLE_FILES, Found, submit
from mindstream_ingest.watch import Watcher


class Taken:
    """States that were taken, as 16-byte hashes."""

    def __init__(self, store: Store, source: SourceConfig) -> None:
        what = [source.s3, source.folder, source.domain, source.template, *source.text_fields]
        self._prefix = f"sources/{hashlib.sha256(chr(0).join(what).encode()).hexdigest()[:16]}/"
        self._store = store
        self._known: set[bytes] | None = None

    def __contains__(self, state: str) -> bool:
        """Whether this state was taken. Blocks; the first call lists what is remembered."""
        if self._known is None:
            names = (key.removeprefix(self._prefix) for key, _ in self._store.list(self._prefix))
            self._known = {bytes.fromhex(name) for name in names}
        return _hash(state) in self._known

    def add(self, state: str) -> None:
        """Remember it. Blocks."""
        if state not in self:
            assert self._known is not None
            self._store.put_bytes(self._prefix + _hash(state).hex(), b"")
            self._known.add(_hash(state))


def _hash(state: str) -> bytes:
    return hashlib.sha256(state.encode("utf-8", "surrogatepass")).digest()[:16]


@dataclass(frozen=True, slots=True)
class _State:
    """A file that is new or has changed: its place here, and the words by which it is remembered."""

    found: Found
    words: str


class Looker:
    """Looks at one source."""

    def __init__(self, source: SourceConfig, settings: Settings, store: Store, bus: Bus) -> None:
        self._source = source
        self._store = store
        self._bus = bus
        self._taken = Taken(store, source)
        self._watcher = Watcher([Path(source.folder)]) if source.folder else None
        self._bucket = Bucket(settings, source.s3) if source.s3 else None
        self._told: set[str] = set()
        self._log = logs.get(source=source.s3 or source.folder, domain=source.domain)

    async def run(self) -> None:
        """Look until cancelled; what goes wrong is said once and tried again."""
        while True:
            try:
                await self.look()
            except MindStreamError as error:
                self._tell(str(error))
            await asyncio.sleep(self._source.poll_seconds)

    async def look(self) -> int:
        """One look; returns how many files are with ingest now."""
        return await (self._folder() if self._watcher else self._prefix())

    async def _folder(self) -> int:
        assert self._watcher is not None
        if not Path(self._source.folder).exists():
            self._tell(f"the folder {self._source.folder} does not exist (yet)")
        ready = await asyncio.to_thread(self._watcher.look, time.monotonic())
        for path in sorted(self._watcher.left):
            self._tell(f"{path} is left out: files of this kind are not read")
        number = 0
        for files in _bundles([_State(found, f"{found.name}\0{_stamp(found)}") for found in ready]):
            new = [state for state in files if not await asyncio.to_thread(self._taken.__contains__, state.words)]
            taken = await self._submit(new)
            number += len(taken)
            done = {state.words for state in taken} | {state.words for state in files if state not in new}
            self._watcher.take([state.found for state in files if state.words in done])
        return number

    async def _prefix(self) -> int:
        number = 0
        listed = await asyncio.to_thread(self._new_objects)
        for group in _objects(listed):
            with tempfile.TemporaryDirectory(prefix="mindstream-") as folder:
                states = await asyncio.to_thread(lambda: list(self._download(group, Path(folder))))  # noqa: B023
                number += len(await self._submit(states))
        return number

    def _new_objects(self) -> list[Listed]:
        assert self._bucket is not None
        new = []
        for listed in self._bucket.list():
            if any(part.startswith(".") for part in PurePosixPath(listed.key).parts):
                continue
            if kind_of(listed.key)[0] is None:
                self._tell(f"{listed.key} is left out: files of this kind are not read")
            elif _words(listed) not in self._taken:
                new.append(listed)
        return new

    def _download(self, group: Sequence[Listed], folder: Path) -> Iterator[_State]:
        assert self._bucket is not None
        for number, listed in enumerate(group):
            path = folder / f"{number}{''.join(PurePosixPath(listed.key).suffixes[-2:])}"
            try:
                self._bucket.fetch(listed, path)
            except InputError as error:  # gone or changed: the next look sees what is there then
                self._tell(str(error))
                continue
            yield _State(Found(path, listed.key, listed.size), _words(listed))

    async def _submit(self, states: Sequence[_State]) -> list[_State]:
        """Hand over; returns those that are with ingest. One that cannot be read keeps no other waiting."""
        if not states:
            return []
        try:
            async for bundle in submit(
                [state.found for state in states],
                domain=self._source.domain,
                text_fields=self._source.text_fields,
                template=self._source.template,
                store=self._store,
                bus=self._bus,
            ):
                self._log.info("taken", files=bundle.files, bytes=bundle.bytes, bundle=bundle.bundle)
        except InputError as error:
            if len(states) == 1:
                self._tell(str(error))
                return []
            return [taken for state in states for taken in await self._submit([state])]
        for state in states:
            await asyncio.to_thread(self._taken.add, state.words)
        return list(states)

    def _tell(self, words: str) -> None:
        if words not in self._told and len(self._told) < 10_000:
            self._told.add(words)
            self._log.warning("not taken", error=words)


def lookers(sources: Sequence[SourceConfig], settings: Settings, store: Store, bus: Bus) -> list[Looker]:
    """One for each source. Raises ConfigError when a source can be none."""
    return [Looker(source, settings, store, bus) for source in sources]


def _stamp(found: Found) -> str:
    with contextlib.suppress(OSError):
        status = found.path.stat()
        return f"{status.st_size} {status.st_mtime_ns}"
    return ""


def _words(listed: Listed) -> str:
    return f"{listed.key}\0{listed.size} {listed.etag}"


def _bundles(states: Sequence[_State]) -> Iterator[list[_State]]:
    for start in range(0, len(states), BUNDLE_FILES):
        yield list(states[start : start + BUNDLE_FILES])


def _objects(listed: Sequence[Listed]) -> Iterator[list[Listed]]:
    """Groups that are downloaded, and lie on this machine's disk, at one time."""
    group: list[Listed] = []
    for entry in listed:
        if group and (len(group) == BUNDLE_FILES or sum(e.size for e in group) + entry.size > BUNDLE_BYTES):
            yield group
            group = []
        group.append(entry)
    if group:
        yield group
