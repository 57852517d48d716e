"""The trainer's local copies of MindRecord shards: downloaded once, verified, kept under their own names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mindstream_common.events import CatalogShard, Object
from mindstream_common.ids import sha256_file
from mindstream_common.store import Store

from mindstream_trainer.rundir import ShardFile


class Shards:
    """A folder of shards. MindRecord needs the ``.db`` beside the file and the file's own base name."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._verified: set[str] = set()  # MindRecord reads flipped bytes silently: each copy is hashed once a start

    def fetch(self, shard: CatalogShard) -> ShardFile:
        """Download what is not here yet. Blocks.

        Raises:
            Transient, NotFound, Poison: the store is away, the object is gone, its bytes are not the catalogued ones.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        for object in shard.objects:
            path = self._path(object)
            if path.name not in self._verified:
                self._bring(object, path)
                self._verified.add(path.name)
        return ShardFile(
            shard=shard.id,
            path=str(self._path(shard.objects[0]).absolute()),
            dtype=shard.dtype,
            groups=shard.groups,
        )

    def fetch_all(self, shards: Iterable[CatalogShard]) -> tuple[ShardFile, ...]:
        """Several, in order."""
        return tuple(self.fetch(shard) for shard in shards)

    def bytes(self) -> int:
        """What the folder holds."""
        return sum(size for _, size, _ in self._files())

    def trim(self, limit: int, needed: Iterable[CatalogShard]) -> None:
        """Remove shards that are not ``needed``, those that were brought first before the others, until the folder
        holds no more than ``limit`` bytes."""
        keep = {self._path(object) for shard in needed for object in shard.objects}
        total = self.bytes()
        for _, size, path in sorted(self._files()):
            if total > limit and path not in keep:
                self._verified.discard(path.name)
                path.unlink(missing_ok=True)
                total -= size

    def _files(self) -> list[tuple[int, int, Path]]:
        """(when it was brought here, bytes, path) of each file."""
        if not self._folder.is_dir():
            return []
        found = [(path.stat(), path) for path in self._folder.iterdir() if path.is_file()]
        return [(info.st_mtime_ns, info.st_size, path) for info, path in found]

    def _bring(self, object: Object, path: Path) -> None:
        if not path.exists() or path.stat().st_size != object.size or sha256_file(path) != object.sha256:
            self._store.get_file(object, path)

    def _path(self, object: Object) -> Path:
        return self._folder / object.key.rsplit("/", 1)[1]
