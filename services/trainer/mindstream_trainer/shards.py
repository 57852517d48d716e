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
            if object.key not in self._verified:
                self._bring(object, self._path(object))
                self._verified.add(object.key)
        return ShardFile(
            shard=shard.id,
            path=str(self._path(shard.objects[0]).absolute()),
            dtype=shard.dtype,
            groups=shard.groups,
        )

    def fetch_all(self, shards: Iterable[CatalogShard]) -> tuple[ShardFile, ...]:
        """Several, in order."""
        return tuple(self.fetch(shard) for shard in shards)

    def _bring(self, object: Object, path: Path) -> None:
        if not path.exists() or path.stat().st_size != object.size or sha256_file(path) != object.sha256:
            self._store.get_file(object, path)

    def _path(self, object: Object) -> Path:
        return self._folder / object.key.rsplit("/", 1)[1]
