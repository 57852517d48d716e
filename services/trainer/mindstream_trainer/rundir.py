"""The folder through which the service and its rank speak. Every file is written aside and renamed: never half there.

run.json                what is trained, from what
windows/000001.json     a window of the journal, and where the shards it needs lie on this machine
end.json                no further window will come: train what there is, save, leave with 0
stop                    finish the current update, save, leave with 0
checkpoints/step-...    see mindstream_trainer.checkpoint
incidents/step-....json what was in a batch whose loss was not finite
.lock                   held by the one service that works here
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from mindstream_common.errors import Fenced, InputError
from mindstream_common.events import RowGroup, Window
from msgspec import Struct

from mindstream_trainer.config import ModelConfig, TrainerConfig

LOCK = ".lock"


class RunFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``run.json``. Paths are local."""

    run: str
    seed: int
    trainer: TrainerConfig
    model: ModelConfig
    vocab: str
    weights: str | None = None  # None: random, by the seed
    config_sha256: str = ""
    tokenizer_sha256: str = ""


class ShardFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A MindRecord shard on this machine; its ``.db`` lies beside it."""

    shard: str
    path: str
    dtype: Literal["uint16", "int32"]
    groups: tuple[RowGroup, ...]


class WindowFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``windows/<number>.json``: ``shards`` has every shard that the window's shards and carried rows name."""

    window: Window
    shards: tuple[ShardFile, ...]


class RunDir:
    """The paths, and reading and writing what lies there."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.incidents = self.path / "incidents"
        self.windows = self.path / "windows"

    def write_run(self, run: RunFile) -> None:
        """Also makes the folders."""
        for folder in (self.checkpoints, self.incidents, self.windows):
            folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.path / "run.json", msgspec.json.format(msgspec.json.encode(run)))

    def read_run(self) -> RunFile:
        """Raises InputError when there is none."""
        return _read(self.path / "run.json", RunFile)

    def write_window(self, file: WindowFile) -> None:
        write_whole(self._window(file.window.number), msgspec.json.encode(file))

    def read_window(self, number: int) -> WindowFile | None:
        """None: it has not come yet."""
        path = self._window(number)
        return _read(path, WindowFile) if path.exists() else None

    def forget_windows(self, before: int) -> None:
        """Remove the files of the windows before this number: nobody needs them now."""
        for path in self.windows.glob("[0-9]*.json"):
            if int(path.stem) < before:
                path.unlink(missing_ok=True)

    def write_end(self) -> None:
        write_whole(self.path / "end.json", b"{}")

    def ended(self) -> bool:
        return (self.path / "end.json").exists()

    def ask_to_stop(self) -> None:
        write_whole(self.path / "stop", b"")

    def stop_asked(self) -> bool:
        return (self.path / "stop").exists()

    def clear_requests(self) -> None:
        """Before a rank is started again: what was asked of the earlier one does not count."""
        for name in ("stop", "end.json"):
            (self.path / name).unlink(missing_ok=True)

    def _window(self, number: int) -> Path:
        return self.windows / f"{number:06}.json"


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """One trainer in a run's folder at a time; the journal sees to it that there is one on all machines. Makes the
    folder and touches nothing else in it.

    Raises:
        Fenced: another trainer works there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as file:
        for tries_left in (3, 2, 1, 0):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not tries_left:
                    raise Fenced(
                        f"another trainer on this machine works in {folder}; stop it, or choose another trainer.run."
                    ) from None
                time.sleep(0.05)  # someone may only have asked :func:`locked`
        yield


def locked(folder: Path) -> bool:
    """Whether a trainer on this machine works in a run's folder."""
    try:
        with (folder / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is there wholly or not at all, also after a crash of the machine."""
    aside = path.with_name(f".tmp-{path.name}")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


T = TypeVar("T")


def _read(path: Path, type: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=type)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
