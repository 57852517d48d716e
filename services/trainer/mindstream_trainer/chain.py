"""Windows hang together by the rows that one leaves over and the next carries; a break loses rows or trains them twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mindstream_common.events import CarriedRows, Window

from mindstream_trainer.plan import plan


class Break(NamedTuple):
    """Window ``number`` does not carry what the window before left over: ``lost`` rows were left over and are not
    carried, ``doubled`` rows are carried and were not left over."""

    number: int
    lost: int
    doubled: int


def breaks(windows: Sequence[Window], *, seed: int, global_batch: int) -> Iterator[Break]:
    """The breaks of a run's windows, in order. What a window leaves over is computed with this seed and global batch."""
    left: tuple[CarriedRows, ...] = ()
    for window in windows:
        if window.carry != left:
            before, now = _rows(left), _rows(window.carry)
            yield Break(window.number, len(before - now), len(now - before))
        left = plan(window, seed=seed, global_batch=global_batch).carry


def _rows(carry: Sequence[CarriedRows]) -> set[tuple[int, int, int]]:
    return {(part.seq, part.epoch, row) for part in carry for row in part.rows}
