"""A run's journal has one owner, and a window that was written once is there once."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mindstream_common.bus import Bus, Record, connect
from mindstream_common.bus_memory import MemoryBus
from mindstream_common.errors import ConfigError, Fenced, Transient
from mindstream_common.events import CarriedRows, RowGroup, RunStarted, RunStartedV1, Window, WindowShard, encode
from mindstream_common.topology import JOURNAL, Stream
from mindstream_trainer import chain, journal
from mindstream_trainer.journal import Journal
from mindstream_trainer.plan import plan


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.servers)])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    """A bus with its streams."""
    made: Any
    if request.param == "memory":
        made = MemoryBus()
    else:
        made = await connect(request.getfixturevalue("nats_url"), name="test", patience=5)
    await made.ensure(queue_events=100)
    yield made
    await made.close()


@pytest.fixture
def run() -> str:
    """A run's name that no other test uses: all share one stream."""
    return f"run-{uuid.uuid4().hex[:12]}"


class Flaky:
    """A bus whose next answers get lost: ``before`` the message was written, or after it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.lose_before = 0
        self.lose_after = 0
        self.published = 0

    async def publish(self, subject: str, data: bytes, *, id: str, expect: int | None = None) -> int:
        if self.lose_before:
            self.lose_before -= 1
            raise Transient("the bus does not answer")
        seq = await self._bus.publish(subject, data, id=id, expect=expect)
        self.published += 1
        if self.lose_after:
            self.lose_after -= 1
            raise Transient("the answer got lost")
        return seq

    def read(self, stream: Stream, *, after: int = 0, subject: str | None = None) -> AsyncIterator[Record]:
        return self._bus.read(stream, after=after, subject=subject)


async def take(bus: Any, run: str, *, seed: int = 1, global_batch: int = 8, replay_of: str | None = None) -> Journal:
    return await journal.open_journal(
        bus, run, seed=seed, global_batch=global_batch, config_sha256="0" * 64, replay_of=replay_of
    )


def window(run: str, number: int) -> Window:
    return Window(run=run, number=number, shards=(), at=float(number))


async def numbers(bus: Any, run: str) -> list[int]:
    """0 for each start, the window's number for each window."""
    records, _ = await journal.read(bus, run)
    return [record.number if isinstance(record, Window) else 0 for record in records]


async def test_windows_are_there_in_order_for_the_next_owner(bus: Bus, run: str) -> None:
    first = await take(bus, run)
    assert (first.windows, first.seed) == ([], 1)
    for number in (1, 2, 3):
        await first.append(window(run, number))
    second = await take(bus, run)
    assert second.windows == first.windows == [window(run, number) for number in (1, 2, 3)]
    await second.append(window(run, 4))
    assert await numbers(bus, run) == [0, 1, 2, 3, 0, 4]


async def test_a_run_knows_nothing_of_another(bus: Bus, run: str) -> None:
    other = await take(bus, f"{run}-2")
    mine = await take(bus, run)
    await other.append(window(f"{run}-2", 1))
    await mine.append(window(run, 1))
    await other.append(window(f"{run}-2", 2))
    assert await numbers(bus, run) == [0, 1]
    assert await numbers(bus, f"{run}-2") == [0, 1, 2]


async def test_the_first_owner_is_fenced_when_a_second_takes_over(bus: Bus, run: str) -> None:
    first = await take(bus, run)
    await first.append(window(run, 1))
    second = await take(bus, run)
    with pytest.raises(Fenced, match=f"run '{run}' is trained by another process.*trainer.run"):
        await first.append(window(run, 2))
    assert first.windows == [window(run, 1)]  # what was not written is not remembered
    await second.append(window(run, 2))
    with pytest.raises(Fenced):
        await first.append(window(run, 2))
    assert await numbers(bus, run) == [0, 1, 0, 2]


async def test_of_two_that_take_over_at_once_one_is_fenced(bus: Bus, run: str) -> None:
    await take(bus, run)

    class Late(Flaky):
        """Another trainer starts between this one's reading and its writing."""

        async def publish(self, subject: str, data: bytes, *, id: str, expect: int | None = None) -> int:
            if not self.published:
                self.published += 1
                await take(bus, run)
            return await super().publish(subject, data, id=id, expect=expect)

    with pytest.raises(Fenced):
        await take(Late(bus), run)
    assert await numbers(bus, run) == [0, 0]


async def test_an_append_whose_answer_got_lost_is_written_once(bus: Bus, run: str) -> None:
    flaky = Flaky(bus)
    mine = await take(flaky, run)
    for number in (1, 2):
        flaky.lose_before, flaky.lose_after = 1, 1
        await mine.append(window(run, number))
    assert flaky.published == 3
    assert await numbers(bus, run) == [0, 1, 2]
    await mine.append(window(run, 3))
    assert await numbers(bus, run) == [0, 1, 2, 3]


async def test_a_start_whose_answer_got_lost_is_written_once(bus: Bus, run: str) -> None:
    flaky = Flaky(bus)
    flaky.lose_after = 1
    mine = await take(flaky, run)
    await mine.append(window(run, 1))
    assert await numbers(bus, run) == [0, 1]


async def test_an_append_that_was_written_and_then_taken_over_is_fenced_at_the_next(bus: Bus, run: str) -> None:
    """The answer got lost, and before it was asked for again a second trainer took over: the window stands."""

    class Overtaken(Flaky):
        async def publish(self, subject: str, data: bytes, *, id: str, expect: int | None = None) -> int:
            seq = await super().publish(subject, data, id=id, expect=expect)
            if self.published == 2:  # the window; the first was the start
                second = await take(bus, run)
                assert [known.number for known in second.windows] == [1]
                raise Transient("the answer got lost")
            return seq

    first = await take(Overtaken(bus), run)
    await first.append(window(run, 1))
    with pytest.raises(Fenced):
        await first.append(window(run, 2))
    assert await numbers(bus, run) == [0, 1, 0]


@pytest.mark.parametrize("name", ["seed", "global_batch"])
async def test_what_would_cut_other_batches_is_refused_with_both(bus: Bus, run: str, name: str) -> None:
    await take(bus, run, **{name: 7})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=rf"begun with {name} 7, the configuration says trainer\.{name} 8"):
        await take(bus, run, **{name: 8})  # type: ignore[arg-type]
    assert await numbers(bus, run) == [0]  # a refused one has not fenced the owner


def rows(number: int, seq: int, count: int, carry: tuple[CarriedRows, ...] = (), run: str = "run") -> Window:
    """A window of one shard with so many train rows."""
    group = RowGroup(split="train", length=16, rows=count)
    shard = WindowShard(seq=seq, shard=f"{seq:032x}", domain="d", epoch=0, groups=(group,))
    return Window(run=run, number=number, shards=(shard,), carry=carry, at=0.0)


async def old_journal(bus: Bus, run: str, global_batch: int) -> None:
    """A journal of the first version, whose start does not say the global batch."""
    started = RunStartedV1(run=run, seed=1, config_sha256="0" * 64, owner="o", at=0.0)
    last = await bus.publish(journal.subject_of(run), encode(started), id=uuid.uuid4().hex, expect=0)
    first = rows(1, 1, 21, run=run)
    second = rows(2, 2, 30, plan(first, seed=1, global_batch=global_batch).carry, run=run)
    for record in (first, second):
        last = await bus.publish(journal.subject_of(run), encode(record), id=uuid.uuid4().hex, expect=last)


async def test_a_journal_that_does_not_say_its_batch_is_asked_through_its_windows(bus: Bus, run: str) -> None:
    await old_journal(bus, run, 8)
    with pytest.raises(ConfigError, match=r"another global_batch than 12, .* window 2 carries other rows"):
        await take(bus, run, global_batch=12)
    assert len((await take(bus, run, global_batch=8)).windows) == 2
    with pytest.raises(ConfigError, match="begun with global_batch 8"):  # now it says it
        await take(bus, run, global_batch=12)


def test_breaks_of_a_chain_are_counted() -> None:
    first = rows(1, 1, 21)
    left = plan(first, seed=1, global_batch=8).carry  # 5 rows
    assert list(chain.breaks([first, rows(2, 2, 3, left)], seed=1, global_batch=8)) == []
    (dropped,) = chain.breaks([first, rows(2, 2, 3)], seed=1, global_batch=8)
    assert dropped == (2, 5, 0)
    other = plan(first, seed=1, global_batch=12).carry  # 9 rows, the last 5 of them the right ones
    (doubled,) = chain.breaks([first, rows(2, 2, 3, other)], seed=1, global_batch=8)
    assert doubled == (2, 0, 4)
    assert list(chain.breaks([rows(1, 1, 8, left)], seed=1, global_batch=8)) == [(1, 0, 5)]


@pytest.mark.parametrize("name", ["seed", "global_batch"])
async def test_a_replay_has_the_batches_of_its_source(bus: Bus, run: str, name: str) -> None:
    source = await take(bus, run, **{name: 7})  # type: ignore[arg-type]
    await source.append(rows(1, 1, 8, run=run))
    with pytest.raises(ConfigError, match=rf"run '{run}', .* with {name} 7, .* trainer\.{name} 8"):
        await take(bus, f"{run}-again", replay_of=run, **{"seed": 1, "global_batch": 8, name: 8})  # type: ignore[arg-type]
    assert await numbers(bus, f"{run}-again") == []
    await take(bus, f"{run}-again", replay_of=run, **{name: 7})  # type: ignore[arg-type]


async def test_a_replay_of_a_run_that_is_not_there_names_those_that_are(bus: Bus, run: str) -> None:
    await take(bus, run)
    with pytest.raises(ConfigError, match=rf"there is no run 'nope' to replay\. Runs in the journal: .*{run}"):
        await take(bus, f"{run}-again", replay_of="nope")
    with pytest.raises(ConfigError, match="cannot replay itself"):
        await take(bus, run, replay_of=run)
    with pytest.raises(ConfigError, match="has not trained on anything yet"):
        await take(bus, f"{run}-again", replay_of=run)
    assert await numbers(bus, run) == [0]


async def test_a_run_with_windows_of_its_own_replays_no_other(bus: Bus, run: str) -> None:
    source, other = await take(bus, run), await take(bus, f"{run}-2")
    await source.append(rows(1, 1, 8, run=run))
    await other.append(rows(1, 2, 8, run=f"{run}-2"))
    with pytest.raises(ConfigError, match=f"a window 1 that is not window 1 of run '{run}'"):
        await take(bus, f"{run}-2", replay_of=run)


async def test_a_checkpoint_that_is_ahead_of_the_journal_is_refused(bus: Bus, run: str) -> None:
    mine = await take(bus, run)
    await mine.append(window(run, 1))
    for reached, good in ((1, True), (2, False)):
        again = journal.open_journal(bus, run, seed=1, global_batch=8, config_sha256="0" * 64, reached=reached)
        if good:
            assert len((await again).windows) == 1
        else:
            with pytest.raises(ConfigError, match="stands in window 2, and its journal has 1 windows"):
                await again
    assert await numbers(bus, run) == [0, 1, 0]


async def test_a_start_says_who_and_what(bus: Bus, run: str) -> None:
    await (await take(bus, f"{run}-source")).append(window(f"{run}-source", 1))
    await take(bus, run, replay_of=f"{run}-source")
    await take(bus, run)
    records, last = await journal.read(bus, run)
    starts = [record for record in records if isinstance(record, RunStarted)]
    assert [start.replay_of for start in starts] == [f"{run}-source", None]
    assert {(start.seed, start.global_batch) for start in starts} == {(1, 8)}
    assert len({start.owner for start in starts}) == 2
    assert last == await bus.last(JOURNAL, journal.subject_of(run))


async def test_a_window_out_of_order_is_a_bug(bus: Bus, run: str) -> None:
    mine = await take(bus, run)
    with pytest.raises(AssertionError):
        await mine.append(window(run, 2))
    assert await numbers(bus, run) == [0]
