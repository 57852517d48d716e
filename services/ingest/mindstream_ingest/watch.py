"""Watch folders: a file is taken when it has stopped growing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mindstream_ingest import submit
from mindstream_ingest.submit import Found

Stamp = tuple[int, int]  # size in bytes, time of the last change in ns


class Watcher:
    """Looks at folders again and again. Works on every file system, network ones too, since it only looks."""

    def __init__(self, paths: Iterable[Path], *, settle: float = 2.0) -> None:
        self._paths = list(paths)
        self._settle = settle
        self._seen: dict[Path, tuple[Stamp, float]] = {}  # and since when it has been like that
        self._taken: dict[Path, Stamp] = {}
        self.left: set[Path] = set()
        self.told: set[str] = set()  # what was said about files that could not be taken

    def look(self, now: float) -> list[Found]:
        """Files that have not changed for ``settle`` seconds and were not taken in this state. Call it each second.

        A file that changes later is given again: its new content is a new version. ``now`` is in seconds.
        """
        ready = []
        found, left = submit.find([path for path in self._paths if path.exists()])
        self.left |= set(left)
        for file in found:
            try:
                status = file.path.stat()
            except FileNotFoundError:
                continue
            stamp = (status.st_size, status.st_mtime_ns)
            if self._taken.get(file.path) == stamp:
                continue
            before, since = self._seen.get(file.path, (None, now))
            if before != stamp:
                self._seen[file.path] = (stamp, now)
            elif now - since >= self._settle:
                ready.append(Found(file.path, file.name, status.st_size))
        return ready

    def take(self, files: Iterable[Found]) -> None:
        """Those are with ingest now."""
        for file in files:
            self._taken[file.path] = self._seen.pop(file.path)[0]
