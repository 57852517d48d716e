"""From a window to batches: a pure function of (window, seed, global batch), fast for a million rows.

Which rows make a batch does not depend on the number of ranks or on micro-batches; those only cut batches into slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from mindstream_common.errors import ConfigError
from mindstream_common.events import CarriedRows, Window


class Source(NamedTuple):
    """One pass over one catalogued shard."""

    shard: str
    seq: int
    epoch: int
    domain: str


class Row(NamedTuple):
    """One row of training data; (shard, row, epoch) keys its mask."""

    shard: str
    seq: int
    row: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that make one optimizer update (or a slice of them). ``origin`` and ``row`` are int64 [rows]: an index into
    ``sources``, and the row's number in that shard. ``first`` is the place of the first row in the global batch."""

    length: int  # tokens: rows are padded to it
    sources: Sequence[Source]
    origin: np.ndarray
    row: np.ndarray
    first: int = 0

    @property
    def rows(self) -> list[Row]:
        """The rows, in order."""
        pairs = zip(self.origin.tolist(), self.row.tolist(), strict=True)
        return [Row(self.sources[i].shard, self.sources[i].seq, row, self.sources[i].epoch) for i, row in pairs]

    def cut(self, start: int, stop: int) -> Batch:
        """Rows start to stop."""
        return Batch(self.length, self.sources, self.origin[start:stop], self.row[start:stop], self.first + start)


@dataclass(frozen=True, slots=True)
class Plan:
    """The batches of a window in training order, and the rows that go over into the next window."""

    batches: Sequence[Batch]
    carry: tuple[CarriedRows, ...]


def plan(window: Window, *, seed: int, global_batch: int) -> Plan:
    """Cut a window into global batches of one length each.

    Per length: rows carried from earlier windows come first, then this window's train rows, shuffled with Philox keyed
    by (seed, window, length); what does not fill a batch is carried on. The batches' order is then shuffled with Philox
    keyed by (seed, window).
    """
    sources: list[Source] = []
    waiting: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for part in window.carry:
        sources.append(Source(part.shard, part.seq, part.epoch, part.domain))
        rows = np.array(part.rows, np.int64)
        waiting.setdefault(part.length, []).append((np.full(len(rows), len(sources) - 1), rows))
    for length, (origin, row) in sorted(_fresh(window, sources).items()):
        order = _generator(seed, window.number, length).permutation(len(row))
        waiting.setdefault(length, []).append((origin[order], row[order]))
    batches: list[Batch] = []
    carry: list[CarriedRows] = []
    for length, parts in sorted(waiting.items()):
        origin, row = (np.concatenate(column) for column in zip(*parts, strict=True))
        full = len(row) - len(row) % global_batch
        cuts = range(0, full, global_batch)
        batches += [Batch(length, sources, origin[i : i + global_batch], row[i : i + global_batch]) for i in cuts]
        carry += _carried(sources, length, origin[full:], row[full:])
    order = _generator(seed, window.number, 0).permutation(len(batches))
    return Plan([batches[i] for i in order], tuple(carry))


def slice_batch(batch: Batch, rank: int, world: int, micro: int | None) -> list[Batch]:
    """The micro-batches of ``rank``: consecutive rows, ``micro`` each (None = all of the rank's at once).

    Raises:
        ConfigError: the rows cannot be divided evenly; the message has the numbers.
    """
    total = len(batch.row)
    share = total // world
    micro = min(micro or share, share)
    if total % world or not share or share % micro:
        raise ConfigError(
            f"a global batch of {total} rows cannot be cut into {world} ranks with micro-batches of {micro} rows: "
            "global_batch must be a multiple of ranks x micro_batch."
        )
    start = rank * share
    return [batch.cut(i, i + micro) for i in range(start, start + share, micro)]


def _fresh(window: Window, sources: list[Source]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """This window's train rows by length, in the order of the window; appends to ``sources``."""
    found: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for shard in window.shards:
        sources.append(Source(shard.shard, shard.seq, shard.epoch, shard.domain))
        start = 0
        for group in shard.groups:
            if group.split == "train" and group.rows:
                rows = np.arange(start, start + group.rows, dtype=np.int64)
                found.setdefault(group.length, []).append((np.full(group.rows, len(sources) - 1), rows))
            start += group.rows
    return {
        length: (np.concatenate([origin for origin, _ in parts]), np.concatenate([row for _, row in parts]))
        for length, parts in found.items()
    }


def _carried(sources: Sequence[Source], length: int, origin: np.ndarray, row: np.ndarray) -> list[CarriedRows]:
    """One record per source, in the order in which the sources first appear."""
    rows: dict[int, list[int]] = {}
    for i, number in zip(origin.tolist(), row.tolist(), strict=True):
        rows.setdefault(i, []).append(number)
    return [
        CarriedRows(
            seq=sources[i].seq,
            shard=sources[i].shard,
            domain=sources[i].domain,
            epoch=sources[i].epoch,
            length=length,
            rows=tuple(numbers),
        )
        for i, numbers in rows.items()
    ]


def _generator(seed: int, window: int, length: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=np.array([seed, window << 32 | length], np.uint64)))
