"""Checkpoints in the object store: files first, then the pointer ``latest.json``; the last two are kept."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
from mindstream_common.errors import InputError
from mindstream_common.events import Object
from mindstream_common.store import NotFound, Store

from mindstream_trainer import checkpoint


class Pointer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``runs/<run>/latest.json``: the newest whole checkpoint."""

    step: int
    name: str
    objects: tuple[Object, ...]


class Uploads:
    """The checkpoints of one run in the store."""

    def __init__(self, store: Store, run: str, keep: int) -> None:
        self._store = store
        self._prefix = f"runs/{run}"
        self._keep = keep

    def latest(self) -> Pointer | None:
        """What the pointer says, or None when there is none. Raises InputError when it cannot be read."""
        key = f"{self._prefix}/latest.json"
        try:
            return msgspec.json.decode(self._store.get_bytes(key), type=Pointer)
        except NotFound:
            return None
        except msgspec.MsgspecError as error:
            raise InputError(
                f"{key} in the object store is damaged ({error}). Delete it: the next upload writes it anew, and a "
                "checkpoint that lies on this machine is continued."
            ) from error

    def upload(self, folder: Path, step: int) -> Pointer:
        """Store a checkpoint and let the pointer name it, unless it names a later one. Blocks; safe to repeat."""
        objects = tuple(
            self._store.put_file(f"{self._prefix}/checkpoints/{folder.name}/{path.name}", path)
            for path in sorted(folder.iterdir())
        )
        pointer = Pointer(step=step, name=folder.name, objects=objects)
        before = self.latest()
        if before is None or before.step <= step:
            self._store.put_bytes(f"{self._prefix}/latest.json", msgspec.json.encode(pointer))
        self._prune()
        return pointer

    def download(self, pointer: Pointer, checkpoints: Path) -> Path:
        """Bring a checkpoint to ``checkpoints/<name>``; it appears there only when it is whole."""
        aside = checkpoints / f".tmp-download-{pointer.name}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        for object in pointer.objects:
            self._store.get_file(object, aside / object.key.rsplit("/", 1)[1])
        checkpoint.verify(aside)
        target = checkpoints / pointer.name
        shutil.rmtree(target, ignore_errors=True)
        aside.replace(target)
        return target

    def _prune(self) -> None:
        """Remove all but the newest; their state goes first, so what is left of one is never taken for whole."""
        prefix = f"{self._prefix}/checkpoints/"
        names: dict[str, list[str]] = {}
        for key, _ in self._store.list(prefix):
            names.setdefault(key.removeprefix(prefix).split("/", 1)[0], []).append(key)
        for name in sorted(names)[: -self._keep]:
            for key in sorted(names[name], key=lambda key: not key.endswith("state.json")):
                self._store.delete(key)


def pin(folder: Path, place: Path) -> Path:
    """Hard links to a checkpoint's files, so that it can be uploaded while the rank removes its own."""
    target = place / folder.name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in folder.iterdir():
        os.link(path, target / path.name)
    return target
