"""Posts that come within a moment of each other share a bundle; none is answered before its bundle is on the bus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from mindstream_common.bus import Bus
from mindstream_common.events import FileBundle, Object, SourceFile, encode
from mindstream_common.ids import shard_id

from mindstream_ingest import mapping
from mindstream_ingest.submit import BUNDLE_BYTES, BUNDLE_FILES, announce

Entry = tuple[SourceFile, Object]


class Gatherer:
    """One open bundle per domain. What it holds is in the store already; a crash loses only answers."""

    def __init__(self, bus: Bus, *, seconds: float, patience: float) -> None:
        self._bus = bus
        self._seconds = seconds
        self._patience = patience
        self._open: dict[str, list[tuple[Entry, asyncio.Future[None]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, domain: str, file: SourceFile, object: Object) -> None:
        """Return when the event that names ``object`` is on the bus.

        Raises:
            Transient: it is not, since the queue is full or the bus is away. Adding it again is safe.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bundle = self._open.setdefault(domain, [])
        if bundle and sum(_size(entry[0]) for entry, _ in bundle) + _size(file) > mapping.EVENT_BYTES:
            self._start(self._close(domain, bundle))
            await asyncio.sleep(0)  # it is closed now
            bundle = self._open.setdefault(domain, [])
        bundle.append(((file, object), done))
        if len(bundle) == 1:
            self._start(self._later(domain, bundle))
        if len(bundle) >= BUNDLE_FILES or sum(entry[1].size for entry, _ in bundle) >= BUNDLE_BYTES:
            self._start(self._close(domain, bundle))
        await done

    def _start(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _later(self, domain: str, bundle: list[tuple[Entry, asyncio.Future[None]]]) -> None:
        await asyncio.sleep(self._seconds)
        await self._close(domain, bundle)

    async def _close(self, domain: str, bundle: list[tuple[Entry, asyncio.Future[None]]]) -> None:
        if self._open.get(domain) is not bundle:
            return  # closed before
        del self._open[domain]
        try:
            await announce(self._bus, bundle_of(domain, [entry for entry, _ in bundle]), self._patience)
        except Exception as error:
            for _, done in bundle:
                if not done.done():
                    done.set_exception(error)
        else:
            for _, done in bundle:
                if not done.done():
                    done.set_result(None)


def _size(file: SourceFile) -> int:
    return mapping.in_event(file.name, mapping.size(file.text_fields, file.template))


def bundle_of(domain: str, entries: Sequence[Entry]) -> FileBundle:
    """The event; its id is derived from what the files hold and how they are read."""
    parts = [f"{object.sha256}\n{encode(file).decode()}" for file, object in entries]
    return FileBundle(
        id=shard_id("gather", (domain, *parts), "1"),
        domain=domain,
        objects=tuple(object for _, object in entries),
        created=time.time(),
        files=tuple(file for file, _ in entries),
    )
