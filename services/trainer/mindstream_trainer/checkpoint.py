"""Checkpoints: folders that hold all of a run's state, that are there wholly or not at all, and that prove themselves.

step-00000100/
    model.safetensors  config.json  vocab.txt      open in transformers as they are
    optimizer.safetensors                          m.* and v.*
    state.json                                     everything else, the sha256 of the files above, and its own
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from mindstream_common.errors import ConfigError, InputError
from mindstream_common.ids import sha256_bytes, sha256_file
from msgspec import Struct

from mindstream_trainer import weights
from mindstream_trainer.config import ModelConfig, TrainerConfig
from mindstream_trainer.rundir import write_whole

log = logging.getLogger(__name__)
STATE = "state.json"


class FileInfo(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file of the checkpoint must be to be believed; size in bytes."""

    size: int
    sha256: str


class State(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a run stands. ``window`` and ``batch`` are the cursor: the batch to train on next (windows count from 1,
    batches from 0). The counters grow over the whole run. ``settings`` is what a resumed run must share."""

    run: str
    step: int = 0
    window: int = 1
    batch: int = 0
    seed: int
    loss_scale: float = 1.0
    tokens: int = 0
    rows: int = 0
    documents: int = 0
    seconds: float = 0.0
    config_sha256: str = ""
    tokenizer_sha256: str = ""
    vocabulary_sha256: str = ""
    settings: dict[str, Any] = {}
    files: dict[str, FileInfo] = {}
    sha256: str = ""  # of everything else in this file, as :func:`sign` makes it


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose files were verified."""

    path: Path
    state: State

    def arrays(self) -> tuple[weights.Arrays, weights.Arrays]:
        """(weights under Hugging Face's names, optimizer state)."""
        return weights.read(self.path / "model.safetensors"), weights.read(self.path / "optimizer.safetensors")


def settings(trainer: TrainerConfig, model: ModelConfig) -> dict[str, Any]:
    """What decides every number of a run. Splits into micro-batches and ranks are absent: they change nothing. So is
    ``steps`` where the learning rate does not depend on it: such a run may be prolonged."""
    names = (
        "seed",
        "global_batch",
        "learning_rate",
        "schedule",
        "weight_decay",
        "betas",
        "eps",
        "clip_norm",
        "dropout",
        "mask_probability",
    )
    chosen: dict[str, Any] = {name: getattr(trainer, name) for name in names}
    chosen["warmup"] = trainer.warmup_steps
    if trainer.whole_word:  # absent where it is off: older checkpoints do not know it
        chosen["whole_word"] = True
    if trainer.schedule != "constant":
        chosen["steps"] = trainer.steps
    chosen |= {f"model.{name}": value for name, value in msgspec.to_builtins(model).items()}
    result: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(chosen))  # as it will be read back
    return result


def check_resumable(found: Checkpoint, expected: State) -> None:
    """Raises ConfigError when the run of ``expected`` would not continue exactly what the checkpoint holds; the
    message names every difference with both values."""
    here = {
        "tokenizer_sha256": expected.tokenizer_sha256,
        "vocabulary_sha256": expected.vocabulary_sha256,
        **expected.settings,
    }
    there = {
        "tokenizer_sha256": found.state.tokenizer_sha256,
        "vocabulary_sha256": found.state.vocabulary_sha256,
        **found.state.settings,
    }
    missing = object()
    differing = [name for name in {**here, **there} if here.get(name, missing) != there.get(name, missing)]
    if differing:
        lines = "; ".join(f"{name} is {here.get(name)!r} now and was {there.get(name)!r}" for name in differing)
        raise ConfigError(
            f"cannot resume from {found.path}: {lines}. Put the old values back, or start a new run (trainer.run) with "
            "this checkpoint's model.safetensors as its base."
        )


def save(
    folder: Path,
    model: Mapping[str, np.ndarray],
    optimizer: Mapping[str, np.ndarray],
    config: ModelConfig,
    vocab: Path,
    state: State,
) -> Path:
    """Write ``folder/step-<step>`` and return its path. ``model`` has Hugging Face's names.

    Raises:
        InputError: a number is not finite. Such weights are never stored.
    """
    for name, array in (*model.items(), *optimizer.items()):
        if not np.isfinite(array).all():
            raise InputError(
                f"{name} holds a number that is not finite at step {state.step}; no checkpoint was written."
            )
    aside = folder / f".tmp-step-{state.step:08}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    weights.write(aside / "model.safetensors", model)
    weights.write(aside / "optimizer.safetensors", optimizer)
    write_whole(aside / "config.json", msgspec.json.format(msgspec.json.encode(config.to_hf())))
    write_whole(aside / "vocab.txt", vocab.read_bytes())
    files = {p.name: FileInfo(size=p.stat().st_size, sha256=sha256_file(p)) for p in sorted(aside.iterdir())}
    write_whole(aside / STATE, msgspec.json.format(sign(msgspec.structs.replace(state, files=files))))
    sync_folder(aside)
    final = folder / f"step-{state.step:08}"
    shutil.rmtree(final, ignore_errors=True)  # only ever a damaged one: steps are not saved twice
    aside.replace(final)
    sync_folder(folder)
    return final


def sign(state: State) -> bytes:
    """The JSON of a state with its own hash in it."""
    values = msgspec.json.decode(msgspec.json.encode(state))
    return msgspec.json.encode({**values, "sha256": _own_hash(values)})


def _own_hash(values: dict[str, Any]) -> str:
    return sha256_bytes(msgspec.json.encode({key: value for key, value in values.items() if key != "sha256"}))


def step_of(name: str) -> int | None:
    """The step that a checkpoint's folder is named after, or None when it is no checkpoint's name."""
    found = re.fullmatch(r"(?:\.tmp-download-)?step-(\d{8,})", name)
    return None if found is None else int(found[1])


def read_state(path: Path) -> State:
    """The state in a checkpoint's folder, which must prove itself and belong to the folder's name.

    Raises:
        InputError: it cannot be read, was changed, or is of another step than the folder's name says.
    """
    try:
        data = (path / STATE).read_bytes()
        state, values = msgspec.json.decode(data, type=State), msgspec.json.decode(data)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"the checkpoint {path} has no readable {STATE}: {error}") from error
    if (found := _own_hash(values)) != state.sha256:
        raise InputError(
            f"the checkpoint {path}: {STATE} was changed: its sha256 is {found}, {state.sha256 or 'none'} was written."
        )
    if step_of(path.name) not in (None, state.step):
        raise InputError(f"the checkpoint {path}: {STATE} is of step {state.step}; the folder's name says another.")
    return state


def verify(path: Path) -> Checkpoint:
    """Read a checkpoint's state and compare every file with it.

    Raises:
        InputError: something is absent, of another size, or has other bytes than were written; says which file.
    """
    state = read_state(path)
    for name, info in state.files.items():
        file = path / name
        if not file.is_file():
            raise InputError(f"the checkpoint {path} lacks {name}.")
        if file.stat().st_size != info.size:
            raise InputError(f"the checkpoint {path}: {name} has {file.stat().st_size} bytes instead of {info.size}.")
        found = sha256_file(file)
        if found != info.sha256:
            raise InputError(
                f"the checkpoint {path}: {name} was changed: its sha256 is {found}, {info.sha256} was written."
            )
    return Checkpoint(path, state)


def steps(folder: Path) -> list[Path]:
    """The checkpoints' folders, oldest first; half-written ones are not among them."""
    return sorted(folder.glob("step-" + "[0-9]" * 8))


def latest_valid(folder: Path, warn: Callable[[str], None] = log.warning) -> Checkpoint | None:
    """The newest checkpoint that proves itself. Damaged ones are passed over, each with a warning."""
    for path in reversed(steps(folder)):
        try:
            return verify(path)
        except InputError as error:
            warn(f"{error} It is passed over.")
    return None


def set_aside(folder: Path, after: int, warn: Callable[[str], None] = log.warning) -> None:
    """Rename the checkpoints after step ``after``, which were passed over, to ``damaged-step-...``: the run makes these
    steps again, and neither takes them for its own nor prunes sound ones because of them."""
    for path in steps(folder):
        if (step_of(path.name) or 0) > after:
            target = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(target, ignore_errors=True)
            path.replace(target)
            warn(f"{path} is {target.name} now; look at it or delete it.")


def first_window(folder: Path) -> int:
    """The earliest window that a checkpoint here would go on with; 1 when there is none."""
    found = []
    for path in steps(folder):
        with contextlib.suppress(InputError):
            found.append(read_state(path).window)
    return min(found, default=1)


def prune(folder: Path, keep: int) -> None:
    """Delete all but the ``keep`` newest checkpoints, and what a crash left half-written."""
    for path in (*steps(folder)[:-keep], *folder.glob(".tmp-step-*")):
        shutil.rmtree(path, ignore_errors=True)


def sync_folder(path: Path) -> None:
    """Make the folder's entries survive a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
