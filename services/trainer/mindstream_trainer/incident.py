"""What was in a batch whose loss was not finite: the rows, in words that a person can act on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from mindstream_trainer.errors import NonFinite
from mindstream_trainer.feed import Inputs
from mindstream_trainer.plan import Batch
from mindstream_trainer.rundir import write_whole


class Suspect(Struct, frozen=True, kw_only=True):
    """A row of the batch. ``text`` is decoded from its ids; ``labels`` counts its masked tokens."""

    shard: str
    row: int
    epoch: int
    document: str
    tokens: int
    labels: int
    text: str


class Past(Struct, frozen=True, kw_only=True):
    """An update before the incident."""

    step: int
    loss: float
    grad_norm: float
    learning_rate: float


class IncidentFile(Struct, frozen=True, kw_only=True):
    """``incidents/step-<n>.json``; ``step`` is the update that was not made, or is in no checkpoint. JSON has no NaN: ``loss`` and ``grad_norm``
    are words."""

    step: int
    window: int
    batch: int
    loss: str
    grad_norm: str
    learning_rate: float
    message: str
    rows: tuple[Suspect, ...]
    history: tuple[Past, ...]


def write(
    folder: Path,
    error: NonFinite,
    inputs: Inputs,
    batch: Batch,
    *,
    step: int,
    place: tuple[int, int],
    learning_rate: float,
    saved: int,
    history: list[Past],
) -> tuple[Path, str]:
    """Write the incident's file; returns its path and the message. ``saved`` is the step of the last checkpoint, -1
    when there is none."""
    rows = _suspects(inputs, batch)
    shards = Counter(row.shard for row in rows)
    message = (
        f"Update {step} {'spoilt the weights' if error.spoilt else 'was not made'}: {error}, over {len(rows)} rows of "
        f"{len(shards)} shards (window {place[0]}, batch {place[1]}), with learning rate {learning_rate:.3g}. "
        f"{f'The last checkpoint has the weights after update {saved}' if saved >= 0 else 'There is no checkpoint'}. "
        "The first rows: "
        + "; ".join(f"shard {row.shard} row {row.row}, document {row.document}, {row.text[:40]!r}" for row in rows[:3])
        + ". Look at these rows; if they are sound, lower trainer.learning_rate or lengthen trainer.warmup."
    )
    file = IncidentFile(
        step=step, window=place[0], batch=place[1], loss=str(error.loss), grad_norm=str(error.norm), learning_rate=learning_rate,
        message=message, rows=tuple(rows), history=tuple(history),
    )  # fmt: skip
    path = folder / f"step-{step:08}.json"
    write_whole(path, msgspec.json.format(msgspec.json.encode(file)))
    return path, message


def _suspects(inputs: Inputs, batch: Batch) -> list[Suspect]:
    labels = inputs.masked(batch).weights.reshape(len(batch.row), -1).sum(1)
    found: list[Suspect] = []
    for row, count in zip(batch.rows, labels.tolist(), strict=True):
        data = inputs.reader.shard(row.shard)
        ids = data.row(row.row)
        fields: dict[str, Any] = {
            "shard": row.shard,
            "row": row.row,
            "epoch": row.epoch,
            "document": data.documents[row.row],
        }
        found.append(Suspect(**fields, tokens=len(ids), labels=int(count), text=inputs.vocabulary.text(ids)))
    return found
