"""What a rank tells the service: one JSON object per line, on the file descriptor named by MINDSTREAM_REPORT_FD
(standard output by default)."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
from msgspec import Struct


class Message(Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """Base of all; ``step`` is the number of updates done."""

    step: int


class Started(Message, frozen=True, kw_only=True, tag="started"):
    """``resumed_from``: the checkpoint's folder, None for a fresh start. ``notes`` are sentences for people."""

    resumed_from: str | None
    notes: tuple[str, ...] = ()


class Compiled(Message, frozen=True, kw_only=True, tag="compiled"):
    """The first update with rows of this length took ``seconds``, most of them for compiling."""

    length: int
    seconds: float


class Stepped(Message, frozen=True, kw_only=True, tag="stepped"):
    """An update. ``tokens`` are those of the batch without special tokens and padding; ``seconds`` are the update's
    own, ``data_wait_seconds`` those before it in which no data was there."""

    window: int
    batch: int
    length: int
    loss: float
    learning_rate: float
    grad_norm: float
    loss_scale: float
    rows: int
    documents: int
    tokens: int
    masked: int
    seconds: float
    data_wait_seconds: float


class Saved(Message, frozen=True, kw_only=True, tag="saved"):
    """A checkpoint lies whole at ``path``."""

    path: str
    seconds: float


class Waiting(Message, frozen=True, kw_only=True, tag="waiting"):
    """The file of this window is not there yet."""

    window: int


class Incident(Message, frozen=True, kw_only=True, tag="incident"):
    """The update after ``step`` had a number that is not finite; the file at ``path`` says on which rows."""

    path: str
    message: str


class Finished(Message, frozen=True, kw_only=True, tag="finished"):
    """The rank leaves with 0. ``reason``: steps (all done), end (no more data), stopped (it was asked to)."""

    reason: str


Report = Started | Compiled | Stepped | Saved | Waiting | Incident | Finished
Send = Callable[[Report], None]

_decoder = msgspec.json.Decoder(Report)


def decode(line: bytes) -> Report:
    """Read one line. Raises :class:`msgspec.MsgspecError` when it is not a report."""
    return _decoder.decode(line)


def private_output() -> int:
    """Keeps the real standard output for the caller's own lines; whatever else this process prints there (MindSpore
    does) goes to standard error."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return descriptor


def write_line(descriptor: int, message: Struct) -> None:
    """One line of JSON, whole."""
    data = memoryview(msgspec.json.encode(message) + b"\n")
    while data:
        data = data[os.write(descriptor, data) :]


def sender(descriptor: int | None = None) -> Send:
    """A function that writes reports to ``descriptor``, by default to the real standard output."""
    out = private_output() if descriptor is None else descriptor
    return lambda message: write_line(out, message)
