"""What a run has done so far, for people and ``status``: ``progress.json`` and one line per update in ``steps.jsonl``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import IO

import msgspec

from mindstream_trainer.report import Stepped
from mindstream_trainer.rundir import write_whole


class Progress(msgspec.Struct, kw_only=True):
    """``progress.json``. ``state``: starting, compiling, training, waiting, finished, stopped, incident, failed."""

    run: str
    state: str = "starting"
    step: int = 0
    steps: int | None = None
    window: int = 0
    windows: int = 0
    loss: float | None = None
    learning_rate: float = 0.0
    grad_norm: float | None = None
    tokens_per_second: float = 0.0
    step_seconds: float = 0.0  # both are running means; updates that compiled a new row length are left out
    tokens: int = 0
    rows: int = 0
    train_seconds: float = 0.0
    data_wait_seconds: float = 0.0
    checkpoint_step: int = 0
    checkpoint: str = ""  # key in the store
    local_checkpoint: str = ""
    restarts: int = 0
    message: str = ""
    at: float = 0.0


COUNTERS = ("tokens", "rows", "train_seconds", "data_wait_seconds")


class ProgressFile:
    """Writes both files. ``progress.json`` at most five times a second, and whenever the state changes."""

    def __init__(self, run_dir: Path, progress: Progress) -> None:
        self.progress = progress
        self._path = run_dir / "progress.json"
        self._steps: IO[bytes] = (run_dir / "steps.jsonl").open("ab", buffering=0)
        self._written = 0.0
        self._lengths: set[int] = set()
        self._saved: dict[int, dict[str, float]] = {0: dict.fromkeys(COUNTERS, 0)}

    def started(self, step: int) -> None:
        """A rank begins after update ``step``: what an earlier one did after that is not part of the run any more."""
        self.progress.step = step
        for name, value in self._saved.get(step, {}).items():
            setattr(self.progress, name, value)

    def saved(self, step: int) -> None:
        """The counters of this moment belong to the checkpoint of ``step``."""
        self._saved[step] = {name: getattr(self.progress, name) for name in COUNTERS}

    def stepped(self, step: Stepped) -> None:
        """Take in an update."""
        progress = self.progress
        progress.state = "training"
        progress.step, progress.window = step.step, step.window
        progress.loss, progress.grad_norm, progress.learning_rate = step.loss, step.grad_norm, step.learning_rate
        self._measure(step)
        progress.tokens += step.tokens
        progress.rows += step.rows
        progress.train_seconds += step.seconds
        progress.data_wait_seconds += step.data_wait_seconds
        self._steps.write(msgspec.json.encode(step) + b"\n")
        if time.monotonic() - self._written > 0.2:
            self.write()

    def _measure(self, step: Stepped) -> None:
        if step.length not in self._lengths:  # most of this update's time went into compiling
            self._lengths.add(step.length)
            return
        progress, seconds = self.progress, max(step.seconds + step.data_wait_seconds, 1e-9)
        before = progress.step_seconds
        progress.step_seconds = 0.9 * before + 0.1 * seconds if before else seconds
        speed = step.tokens / seconds
        progress.tokens_per_second = 0.9 * progress.tokens_per_second + 0.1 * speed if before else speed

    def write(self) -> None:
        """Write ``progress.json`` now."""
        self.progress.at = time.time()
        write_whole(self._path, msgspec.json.format(msgspec.json.encode(self.progress)))
        self._written = time.monotonic()

    def close(self) -> None:
        """Write for the last time."""
        self.write()
        self._steps.close()


def read(run_dir: Path) -> Progress | None:
    """The progress of the run in ``run_dir``, or None when there is none."""
    try:
        return msgspec.json.decode((run_dir / "progress.json").read_bytes(), type=Progress)
    except (OSError, msgspec.MsgspecError):
        return None
