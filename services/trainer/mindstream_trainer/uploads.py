"""Checkpoints in the object store: files first, then the pointer ``latest.json``; the last ones are kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
from mindstream_common.errors import InputError, Poison
from mindstream_common.events import Object
from mindstream_common.ids import sha256_bytes
from mindstream_common.store import NotFound, Store

from mindstream_trainer import checkpoint
from mindstream_trainer.checkpoint import STATE, Checkpoint


class Pointer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``runs/<run>/latest.json``: the newest whole checkpoint."""

    step: int
    name: str
    objects: tuple[Object, ...]


class Uploads:
    """The checkpoints of one run in the store. What :meth:`restore` found damaged counts no more: the next upload
    replaces it."""

    def __init__(self, store: Store, run: str, keep: int) -> None:
        self._store = store
        self._prefix = f"runs/{run}"
        self._keep = keep
        self._damaged: set[str] = set()

    def latest(self) -> Pointer | None:
        """What the pointer says, or None when there is none. Raises InputError when it cannot be read."""
        key = f"{self._prefix}/latest.json"
        try:
            return msgspec.json.decode(self._store.get_bytes(key), type=Pointer)
        except NotFound:
            return None
        except msgspec.MsgspecError as error:
            raise InputError(
                f"{key} in the object store is damaged ({error}). The next upload writes it anew."
            ) from error

    def holds(self, step: int) -> bool:
        """Whether the pointer names a sound checkpoint of this step."""
        pointer = self._pointer()
        return pointer is not None and pointer.step == step and pointer.name not in self._damaged

    def upload(self, folder: Path, step: int) -> Pointer:
        """Store a checkpoint, its state last, and let the pointer name it, unless it names a later one. Blocks; safe to repeat."""
        objects = tuple(
            self._store.put_file(f"{self._prefix}/checkpoints/{folder.name}/{path.name}", path)
            for path in sorted(folder.iterdir(), key=lambda path: (path.name == STATE, path.name))
        )
        self._damaged.discard(folder.name)
        pointer = Pointer(step=step, name=folder.name, objects=objects)
        before = self._pointer()
        if before is None or before.step <= step or before.name in self._damaged:
            self._store.put_bytes(f"{self._prefix}/latest.json", msgspec.json.encode(pointer))
        self._prune()
        return pointer

    def restore(self, checkpoints: Path, *, newer_than: int, warn: Callable[[str], None]) -> Checkpoint | None:
        """Bring the newest sound checkpoint after step ``newer_than`` to ``checkpoints``, or None when there is none.
        Damaged ones are passed over, each with a warning. Blocks.

        Raises:
            Transient: the store is away.
        """
        try:
            pointer = self.latest()
        except InputError as error:
            warn(f"{error} It is passed over.")
            pointer = None
        names = self._names()
        if pointer is not None and pointer.name not in names:
            names[pointer.name] = []
        for name in sorted(names, reverse=True):
            step = checkpoint.step_of(name)
            if step is None or step <= newer_than:
                continue
            try:
                return self._download(name, checkpoints, pointer)
            except (InputError, NotFound, Poison) as error:
                self._damaged.add(name)
                warn(f"the checkpoint {name} in the object store is not whole: {error} It is passed over.")
        return None

    def _download(self, name: str, checkpoints: Path, pointer: Pointer | None) -> Checkpoint:
        """It appears at ``checkpoints/<name>`` only when it is whole."""
        prefix = f"{self._prefix}/checkpoints/{name}"
        aside = checkpoints / f".tmp-download-{name}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            data = self._store.get_bytes(f"{prefix}/{STATE}")
            (aside / STATE).write_bytes(data)
            state = checkpoint.read_state(aside)
            if pointer is not None and pointer.name == name:
                _agree(pointer, state, sha256_bytes(data))
            for file, info in state.files.items():
                self._store.get_file(Object(key=f"{prefix}/{file}", size=info.size, sha256=info.sha256), aside / file)
            checkpoint.verify(aside)
            target = checkpoints / name
            shutil.rmtree(target, ignore_errors=True)
            aside.replace(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return Checkpoint(target, state)

    def _pointer(self) -> Pointer | None:
        """None also when it cannot be read: it is about to be written anew."""
        try:
            return self.latest()
        except InputError:
            return None

    def _names(self) -> dict[str, list[str]]:
        """The keys of each checkpoint of which anything is there."""
        prefix = f"{self._prefix}/checkpoints/"
        names: dict[str, list[str]] = {}
        for key, _ in self._store.list(prefix):
            names.setdefault(key.removeprefix(prefix).split("/", 1)[0], []).append(key)
        return names

    def _prune(self) -> None:
        """Remove all but the newest; their state goes first, so what is left of one is never taken for whole."""
        names = self._names()
        kept = sorted(names.keys() - self._damaged, key=lambda name: checkpoint.step_of(name) or 0)[-self._keep :]
        for name in sorted(names.keys() - set(kept)):
            for key in sorted(names[name], key=lambda key: not key.endswith(STATE)):
                self._store.delete(key)


def _agree(pointer: Pointer, state: checkpoint.State, sha256: str) -> None:
    """Raises InputError when the pointer was written for another checkpoint than the one with this state."""
    named = {object.key.rsplit("/", 1)[1]: object.sha256 for object in pointer.objects}
    if pointer.step != state.step or named.get(STATE) != sha256:
        raise InputError(
            f"latest.json names step {pointer.step} with a {STATE} whose sha256 is {named.get(STATE)}; the one that is "
            f"there is of step {state.step} and has {sha256}."
        )


def pin(folder: Path, place: Path) -> Path:
    """Hard links to a checkpoint's files, so that it can be uploaded while the rank removes its own.

    Raises:
        FileNotFoundError: the rank has removed it already. Nothing is left at ``place``.
    """
    target = place / folder.name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    try:
        for path in folder.iterdir():
            os.link(path, target / path.name)
        if not (target / STATE).exists():  # it was removed while its files were listed
            raise FileNotFoundError(folder / STATE)
    except FileNotFoundError:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return target
