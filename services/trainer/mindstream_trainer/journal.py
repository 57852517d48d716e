"""A run's journal: what it trains on, in order, written before anyone trains on it. One owner at a time.

Every append names the sequence it expects to follow. A second trainer of the same run appends a ``RunStarted`` of its
own; the next append of the first one is then refused (:class:`~mindstream_common.errors.Fenced`).
"""

from __future__ import annotations

import asyncio
import time
import uuid

from mindstream_common.bus import Bus
from mindstream_common.errors import ConfigError, Fenced, Transient
from mindstream_common.events import JournalRecord, RunStarted, Window, decode_journal, encode
from mindstream_common.topology import JOURNAL


def subject_of(run: str) -> str:
    """The subject of a run's journal."""
    return f"{JOURNAL.subject}.{run}"


async def read(bus: Bus, run: str) -> tuple[list[JournalRecord], int]:
    """A run's records in order, and the sequence of the last one (0 when there are none)."""
    records: list[JournalRecord] = []
    last = 0
    async for record in bus.read(JOURNAL, subject=subject_of(run)):
        records.append(decode_journal(record.data))
        last = record.seq
    return records, last


class Journal:
    """The journal of a run that this process owns. Make it with :func:`open_journal`."""

    def __init__(self, bus: Bus, run: str, windows: list[Window], last: int, seed: int) -> None:
        self._bus = bus
        self._run = run
        self._last = last
        self.windows = windows
        self.seed = seed

    async def append(self, window: Window) -> None:
        """Write the next window.

        Raises:
            Fenced: another trainer owns the run now.
        """
        assert window.number == len(self.windows) + 1, (window.number, len(self.windows))
        self._last = await _append(self._bus, self._run, window, self._last)
        self.windows.append(window)


async def _append(bus: Bus, run: str, record: JournalRecord, last: int) -> int:
    """Append after ``last``; when the answer of an append got lost, find out whether it was written."""
    data = encode(record)
    id = f"journal:{run}:{last}:{uuid.uuid4().hex}"
    while True:
        try:
            return await bus.publish(subject_of(run), data, id=id, expect=last)
        except Transient:
            await asyncio.sleep(0.3)
        except Fenced:
            async for found in bus.read(JOURNAL, after=last, subject=subject_of(run)):
                if found.data == data:  # it had been written; only the answer was lost
                    return found.seq
                break
            raise Fenced(
                f"run {run!r} is trained by another process, which has taken it over: this one ends. "
                "Give a run one trainer, or the second one another name (trainer.run)."
            ) from None


async def open_journal(bus: Bus, run: str, *, seed: int, config_sha256: str, replay_of: str | None = None) -> Journal:
    """Take a run over (or begin it): read its records and append a ``RunStarted``.

    Raises:
        ConfigError: the run was begun with another seed: its batches would not be the same.
        Fenced: another trainer took it at the same moment.
    """
    records, last = await read(bus, run)
    for record in records:
        if isinstance(record, RunStarted) and record.seed != seed:
            raise ConfigError(
                f"run {run!r} was begun with seed {record.seed}, the configuration says {seed}. "
                f"Set trainer.seed to {record.seed}, or choose another name for the run (trainer.run)."
            )
    started = RunStarted(
        run=run, seed=seed, config_sha256=config_sha256, owner=uuid.uuid4().hex, at=time.time(), replay_of=replay_of
    )
    last = await _append(bus, run, started, last)
    return Journal(bus, run, [r for r in records if isinstance(r, Window)], last, seed)
