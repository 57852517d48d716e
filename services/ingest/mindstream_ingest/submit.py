"""Hand files over to ingest: bytes into the store first, then the event that says so. From there on nothing is lost.

Files are bundled, so that ten thousand small ones are not ten thousand shards. A bundle's id is derived from the files'
content and names: submitting the same files again is the same bundle, and ingest takes a file's content once anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mindstream_common.bus import Bus
from mindstream_common.errors import InputError, Transient
from mindstream_common.events import FileBundle, Object, SourceFile, encode
from mindstream_common.ids import shard_id
from mindstream_common.store import Store
from mindstream_common.topology import subject_of

from mindstream_ingest import mapping
from mindstream_ingest.source import COMPRESSIONS, KINDS, kind_of

BUNDLE_FILES = 200
BUNDLE_BYTES = 32_000_000


@dataclass(frozen=True, slots=True)
class Found:
    """A file to submit: its path, and the name that it is known by (its path below the folder that was given)."""

    path: Path
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Submitted:
    """A bundle that is with ingest now."""

    files: int
    bytes: int
    bundle: str


def find(paths: Iterable[Path]) -> tuple[list[Found], list[Path]]:
    """Files to submit in a stable order, and those that are left out because of their names.

    Folders are searched through; files whose names begin with a dot are passed over. A file that several paths lead to is found once.

    Raises:
        InputError: a path does not exist, or a file that was named itself is of an unknown kind.
    """
    found: dict[Path, Found] = {}
    left: list[Path] = []
    for path in paths:
        if path.is_dir():
            for inner in sorted(path.rglob("*")):
                if any(part.startswith(".") for part in inner.relative_to(path).parts) or inner.is_dir():
                    continue
                if inner.is_file() and readable(inner):
                    with contextlib.suppress(FileNotFoundError):  # moved away since the folder was listed
                        _note(found, inner, str(Path(path.resolve().name) / inner.relative_to(path)))
                else:
                    left.append(inner)  # another kind, a link to nothing, a pipe
        elif path.is_symlink() and not path.exists():
            raise InputError(f"{path} is a link to {path.readlink()}, and there is nothing.")
        elif not path.exists():
            raise InputError(f"{path} does not exist. Give a file or a folder of {kinds()}.")
        elif not readable(path):
            raise InputError(f"{path}: files of this kind are not read. Ingest reads {kinds()}.")
        else:
            _note(found, path, path.name)
    return list(found.values()), left


def _note(found: dict[Path, Found], path: Path, name: str) -> None:
    name = name.encode("utf-8", "backslashreplace").decode()  # what no event can carry is written out
    found.setdefault(path.resolve(), Found(path, name, path.stat().st_size))


def readable(path: Path) -> bool:
    """Whether the name says that ingest reads it."""
    return kind_of(path.name)[0] is not None


def kinds() -> str:
    """What ingest reads, in words."""
    return f"{', '.join(KINDS)}, each also as {' or '.join(COMPRESSIONS)}"


async def submit(
    files: Sequence[Found],
    *,
    domain: str,
    text_fields: tuple[str, ...],
    template: str = "",
    store: Store,
    bus: Bus,
    patience: float = 60.0,
    progress: Callable[[Found], None] = lambda _: None,
    refused: Callable[[Found, str], None] | None = None,
) -> AsyncIterator[Submitted]:
    """Upload and announce; yields each bundle when ingest has it.

    ``refused`` is told of a file that cannot be read or that changed while it was read, and the others go on; without
    it the error is raised.

    Raises:
        Transient: store or bus are away for longer than ``patience`` seconds. Submitting again is safe.
        InputError: see ``refused``.
    """
    mapping.check(text_fields, template)
    for wanted in _bundles(files, mapping.size(text_fields, template)):
        bundle, objects = [], []
        for file in wanted:
            try:
                objects.append(await asyncio.to_thread(_upload, file, domain, store))
                bundle.append(file)
            except InputError as error:
                if refused is None:
                    raise
                refused(file, str(error))
            progress(file)
        if not bundle:
            continue
        event = FileBundle(
            id=_bundle_id(domain, text_fields, template, bundle, objects),
            domain=domain,
            objects=tuple(objects),
            created=time.time(),
            files=tuple(SourceFile(name=file.name, text_fields=text_fields, template=template) for file in bundle),
        )
        await announce(bus, event, patience)
        yield Submitted(files=len(bundle), bytes=sum(file.size for file in bundle), bundle=event.id)


def _bundles(files: Sequence[Found], fixed: int = 0) -> Iterator[list[Found]]:
    bundle: list[Found] = []
    size = event = 0
    for file in files:
        more = mapping.in_event(file.name, fixed)
        if bundle and (
            len(bundle) == BUNDLE_FILES or size + file.size > BUNDLE_BYTES or event + more > mapping.EVENT_BYTES
        ):
            yield bundle
            bundle, size, event = [], 0, 0
        bundle.append(file)
        size += file.size
        event += more
    if bundle:
        yield bundle


def _upload(file: Found, domain: str, store: Store) -> Object:
    """Store a file under its content's hash.

    The bytes are read once, into a copy of our own, so that what is stored is what was hashed whoever writes to the file
    meanwhile. A key is written even if something lies under it: the same bytes, or damaged ones that are mended by that.
    """
    try:
        with file.path.open("rb") as source, tempfile.NamedTemporaryFile(prefix="mindstream-submit-") as copy:
            before = os.fstat(source.fileno())
            digest = hashlib.sha256()
            while piece := source.read(1 << 20):
                digest.update(piece)
                copy.write(piece)
            copy.flush()
            after = os.fstat(source.fileno())
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                raise InputError(f"{file.path} changed while it was read. Submit it again when nobody writes to it.")
            return store.put_file(f"files/{domain}/{digest.hexdigest()}{ending(file.path.name)}", Path(copy.name))
    except OSError as error:
        raise InputError(f"{file.path} cannot be read: {error.strerror or error}") from error


def ending(name: str) -> str:
    """What of a file's name says how it is read: ``.jsonl.gz``; a dot in a title is no ending."""
    known = ""
    for suffix in reversed(Path(name).suffixes[-2:]):
        if kind_of(f"x{suffix.lower()}") == (None, None):
            break
        known = suffix.lower() + known
    return known


def _bundle_id(
    domain: str, fields: tuple[str, ...], template: str, files: Sequence[Found], objects: Sequence[Object]
) -> str:
    parts = [f"{file.name}\n{object.sha256}" for file, object in zip(files, objects, strict=True)]
    mapping = (f"template {template}",) if template else fields
    return shard_id("submit", (domain, *mapping, *parts), "1")


async def announce(bus: Bus, event: FileBundle, patience: float) -> None:
    """Publish a bundle; a full queue or an absent bus is waited for. Raises Transient after ``patience`` seconds."""
    until = time.monotonic() + patience
    while True:
        try:
            await bus.publish(subject_of(event), encode(event), id=f"files:{event.id}")
            return
        except Transient as error:
            if time.monotonic() > until:
                raise Transient(f"{error} (waited {patience:.0f} s). Submitting again later is safe.") from error
            await asyncio.sleep(0.5)
