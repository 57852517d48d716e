"""A run's journal: what it trains on, in order, written before anyone trains on it. One owner at a time.

Every append names the sequence it expects to follow. A second trainer of the same run appends a ``RunStarted`` of its
own; the next append of the first one is then refused (:class:`~mindstream_common.errors.Fenced`).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence

from mindstream_common.bus import Bus
from mindstream_common.errors import ConfigError, Fenced, Transient
from mindstream_common.events import JournalRecord, RunStarted, Window, decode_journal, encode
from mindstream_common.topology import JOURNAL

from mindstream_trainer import chain


def subject_of(run: str) -> str:
    """The subject of a run's journal."""
    return f"{JOURNAL.subject}.{run}"


async def read(bus: Bus, run: str, *, after: int = 0) -> tuple[list[JournalRecord], int]:
    """A run's records after a sequence, in order, and the sequence of the last one (``after`` when there are none)."""
    records: list[JournalRecord] = []
    last = after
    async for record in bus.read(JOURNAL, after=after, subject=subject_of(run)):
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


async def open_journal(
    bus: Bus,
    run: str,
    *,
    seed: int,
    global_batch: int,
    config_sha256: str,
    replay_of: str | None = None,
    reached: int = 1,
) -> Journal:
    """Take a run over (or begin it): read its records and append a ``RunStarted``. ``reached`` is the window in which
    its checkpoint stands.

    Raises:
        ConfigError: the run was begun with another seed or global batch, or it is told to replay what it cannot: its
            batches would not be the same. Or its checkpoint knows windows that the journal does not. Nothing was written.
        Fenced: another trainer took it at the same moment.
    """
    records, last = await read(bus, run)
    windows = [record for record in records if isinstance(record, Window)]
    remedy = "Set it back, or choose another name for the run (trainer.run)."
    check_same_batches(records, seed=seed, global_batch=global_batch, what=f"run {run!r} was begun", remedy=remedy)
    if reached > max(1, len(windows)):
        raise ConfigError(
            f"the checkpoint of run {run!r} stands in window {reached}, and its journal has {len(windows)} windows: they "
            "do not belong together. Bring the journal back, or start a new run (trainer.run) with the checkpoint's "
            "model.safetensors as its base."
        )
    if replay_of is not None:
        await _check_replay(bus, run, windows, replay_of, seed=seed, global_batch=global_batch)
    started = RunStarted(
        run=run, seed=seed, global_batch=global_batch, config_sha256=config_sha256, owner=uuid.uuid4().hex,
        at=time.time(), replay_of=replay_of,
    )  # fmt: skip
    last = await _append(bus, run, started, last)
    return Journal(bus, run, windows, last, seed)


def check_same_batches(
    records: Sequence[JournalRecord], *, seed: int, global_batch: int, what: str, remedy: str
) -> None:
    """Raises ConfigError when a journal's windows would be cut into other batches than they were; names both values.

    A journal whose starts do not say their global batch (version 1) is asked through its windows: each must carry what
    the one before leaves over with this global batch.
    """
    starts = [record for record in records if isinstance(record, RunStarted)]
    for start in starts:
        for name, there, here in (("seed", start.seed, seed), ("global_batch", start.global_batch, global_batch)):
            if there not in (None, here):
                raise ConfigError(f"{what} with {name} {there}, the configuration says trainer.{name} {here}. {remedy}")
    if starts and all(start.global_batch is None for start in starts):
        windows = [record for record in records if isinstance(record, Window)]
        for broken in chain.breaks(windows, seed=seed, global_batch=global_batch):
            raise ConfigError(
                f"{what} with another global_batch than {global_batch}, which the configuration says: window "
                f"{broken.number} carries other rows. {remedy}"
            )


async def _check_replay(
    bus: Bus, run: str, windows: Sequence[Window], source: str, *, seed: int, global_batch: int
) -> None:
    """Raises ConfigError when ``run`` cannot train on what ``source`` was trained on."""
    if source == run:
        raise ConfigError(f"run {run!r} cannot replay itself: give the replay a name of its own (trainer.run).")
    records, _ = await read(bus, source)
    if not records:
        known = await runs(bus)
        raise ConfigError(
            f"there is no run {source!r} to replay. Runs in the journal: {', '.join(known) if known else 'none yet'}."
        )
    remedy = "A replay trains on the same batches: set it to the same value."
    what = f"run {source!r}, which is to be replayed, was begun"
    check_same_batches(records, seed=seed, global_batch=global_batch, what=what, remedy=remedy)
    theirs = [(record.shards, record.carry) for record in records if isinstance(record, Window)]
    if not theirs:
        raise ConfigError(f"run {source!r} has not trained on anything yet: there is nothing to replay.")
    ours = [(window.shards, window.carry) for window in windows]
    for number, (our, their) in enumerate(zip(ours, theirs, strict=False), 1):
        if our != their:
            raise ConfigError(
                f"run {run!r} has trained on a window {number} that is not window {number} of run {source!r}: it cannot "
                "replay that run. Choose another name for the replay (trainer.run)."
            )


async def runs(bus: Bus) -> list[str]:
    """The names of all runs that have a journal."""
    return sorted({decode_journal(record.data).run async for record in bus.read(JOURNAL)})
