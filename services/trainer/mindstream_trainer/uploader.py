"""Brings checkpoints to the store while the rank goes on: always the newest, whichever of the two is faster."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mindstream_common import logs

from mindstream_trainer.patience import patiently
from mindstream_trainer.uploads import Pointer, Uploads, pin


class Uploader:
    """At most one checkpoint is under way and one waits, so what they hold of the disk is bounded."""

    def __init__(self, uploads: Uploads, place: Path, stored: Callable[[Pointer, int], None]) -> None:
        """``place`` is a folder of its own beside the checkpoints; ``stored`` hears what lies in the store."""
        self._uploads, self._place, self._stored = uploads, place, stored
        self._waiting: tuple[Path, int] | None = None
        self._offered = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._count = 0

    def clear(self) -> None:
        """Remove what an earlier start left; the newest is offered again."""
        shutil.rmtree(self._place, ignore_errors=True)

    def offer(self, folder: Path, step: int) -> None:
        """Take a checkpoint. One that still waits gives way to it. One that the rank has removed is passed over: it
        removes a checkpoint only when newer ones are whole, and they are offered too."""
        self._count += 1
        place = self._place / str(self._count)
        try:
            pinned = pin(folder, place)
        except FileNotFoundError:
            place.rmdir()
            logs.get().warning("a checkpoint was removed before it could be uploaded; a newer one follows", step=step)
            return
        if self._waiting is not None:
            shutil.rmtree(self._waiting[0].parent, ignore_errors=True)
        self._waiting = (pinned, step)
        self._idle.clear()
        self._offered.set()

    async def run(self) -> None:
        """Upload what is offered; ends with the error that does not pass by itself."""
        while True:
            await self._offered.wait()
            self._offered.clear()
            assert self._waiting is not None
            (folder, step), self._waiting = self._waiting, None
            pointer = await patiently(partial(self._uploads.upload, folder, step))
            await asyncio.to_thread(shutil.rmtree, folder.parent, ignore_errors=True)
            self._stored(pointer, step)
            if self._waiting is None:
                self._idle.set()

    async def finished(self) -> None:
        """Returns when nothing is left to upload."""
        await self._idle.wait()
