"""Which shards make up the next window, and when."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import pytest
from mindstream_common import events
from mindstream_common.events import CarriedRows, CatalogShard, RowGroup, Window, WindowShard
from mindstream_trainer import planner
from mindstream_trainer.planner import Planner, train_rows


def shard(
    number: int, rows: int = 10, *, root: int | None = None, domain: str = "medical", held_out: int = 0
) -> CatalogShard:
    groups = [RowGroup(split="train", length=16, rows=rows)] if rows else []
    groups += [RowGroup(split="held_out", length=16, rows=held_out)] if held_out else []
    return CatalogShard(
        id=f"{number:032x}",
        domain=domain,
        objects=(),
        created=0.0,
        root=f"{number if root is None else root:032x}",
        parents=(),
        documents=1,
        rows=rows + held_out,
        tokens=1,
        vocab_size=100,
        tokenizer_sha256="0" * 64,
        dtype="uint16",
        groups=tuple(groups),
    )


def make(rows: int = 20, seconds: float = 10.0, repeat: bool = False, domains: Sequence[str] | None = None) -> Planner:
    return Planner("run", rows=rows, seconds=seconds, repeat=repeat, domains=domains)


class Run:
    """Plans windows one after the other, and notes each as used."""

    def __init__(self, planned: Planner) -> None:
        self.planner = planned
        self.number = 0

    def next(self, now: float = 0.0, idle: bool = False) -> list[tuple[int, int]] | None:
        """The next window's (sequence, pass) pairs, or None."""
        window = self.planner.next(number=self.number + 1, carry=(), now=now, idle=idle)
        if window is None:
            return None
        self.number += 1
        assert (window.number, window.run) == (self.number, "run")
        self.planner.used(window)
        return [(part.seq, part.epoch) for part in window.shards]


def test_nothing_comes_of_nothing() -> None:
    for repeat in (False, True):
        assert Run(make(repeat=repeat)).next(now=1e9, idle=True) is None


def test_enough_rows_close_a_window() -> None:
    run = Run(make(rows=20))
    run.planner.add(1, shard(1), now=0.0)
    assert run.next() is None
    run.planner.add(2, shard(2), now=0.0)
    run.planner.add(3, shard(3), now=0.0)
    assert run.next() == [(1, 0), (2, 0)]  # no more shards than it takes; the catalog's order
    assert run.next() is None


def test_only_train_rows_count() -> None:
    run = Run(make(rows=20))
    run.planner.add(1, shard(1, rows=10, held_out=100), now=0.0)
    run.planner.add(2, shard(2, rows=0, held_out=100), now=0.0)
    assert run.next() is None
    assert train_rows(shard(1, rows=10, held_out=100)) == 10
    assert run.next(idle=True) == [(1, 0)]  # a shard without train rows is in no window
    assert run.next(now=1e9, idle=True) is None


def test_time_closes_a_window_counted_from_its_first_shard() -> None:
    run = Run(make(rows=1000, seconds=10.0))
    run.planner.add(1, shard(1), now=100.0)
    run.planner.add(2, shard(2), now=108.0)
    assert run.next(now=109.9) is None
    assert run.next(now=110.0) == [(1, 0), (2, 0)]
    run.planner.add(3, shard(3), now=150.0)
    assert run.next(now=159.9) is None
    assert run.next(now=160.0) == [(3, 0)]


def test_idle_ranks_get_what_is_there() -> None:
    run = Run(make(rows=1000))
    run.planner.add(1, shard(1), now=0.0)
    assert run.next() is None
    assert run.next(idle=True) == [(1, 0)]


def test_new_shards_come_before_repetition() -> None:
    run = Run(make(rows=20, repeat=True))
    run.planner.add(1, shard(1), now=0.0)
    assert run.next(idle=True) == [(1, 0)]
    run.planner.add(2, shard(2), now=0.0)
    assert run.next(idle=True) == [(2, 0)]
    assert run.next(idle=True) == [(1, 1), (2, 1)]


def test_passes_follow_each_other_and_never_mix() -> None:
    run = Run(make(rows=20, repeat=True))
    for seq in (1, 2, 3):
        run.planner.add(seq, shard(seq), now=0.0)
    seen = [run.next(idle=True) for _ in range(6)]
    assert seen == [[(1, 0), (2, 0)], [(3, 0)], [(1, 1), (2, 1)], [(3, 1)], [(1, 2), (2, 2)], [(3, 2)]]
    passes = [pair for window in seen for pair in window or ()]
    assert len(set(passes)) == len(passes)


def test_without_repetition_a_shard_is_passed_over_once() -> None:
    run = Run(make(rows=20))
    run.planner.add(1, shard(1), now=0.0)
    assert run.next(idle=True) == [(1, 0)]
    assert run.next(now=1e9, idle=True) is None


def test_repetition_waits_for_idle_ranks() -> None:
    run = Run(make(rows=20, repeat=True))
    run.planner.add(1, shard(1), now=0.0)
    assert run.next(idle=True) == [(1, 0)]
    assert run.next(now=1e9) is None


def test_a_late_shard_catches_up_before_the_next_pass() -> None:
    """A shard that comes during the third pass is new once, then has its second pass before the others their fourth."""
    run = Run(make(rows=10, repeat=True))
    run.planner.add(1, shard(1), now=0.0)
    for _ in range(3):
        run.next(idle=True)
    run.planner.add(2, shard(2), now=0.0)
    assert [run.next(idle=True) for _ in range(4)] == [[(2, 0)], [(2, 1)], [(2, 2)], [(1, 3)]]


def test_a_root_that_was_seen_is_ignored() -> None:
    """The same documents, catalogued a second time from another event, are not trained on twice."""
    run = Run(make(rows=1))
    run.planner.add(1, shard(1, root=7), now=0.0)
    run.planner.add(2, shard(2, root=7), now=0.0)
    assert run.next(idle=True) == [(1, 0)]
    assert run.next(now=1e9, idle=True) is None
    assert run.planner.catalog_seq == 2  # it was read, though
    assert run.planner.shard(1).id == shard(1).id
    with pytest.raises(KeyError):
        run.planner.shard(2)


def test_only_the_domains_that_were_asked_for() -> None:
    run = Run(make(rows=1, domains=["finance"]))
    run.planner.add(1, shard(1), now=0.0)
    assert run.next(now=1e9, idle=True) is None
    run.planner.add(2, shard(2, domain="finance"), now=0.0)
    assert run.next(idle=True) == [(2, 0)]
    assert run.planner.catalog_seq == 2


def test_no_domains_at_all_is_not_all_domains() -> None:
    run = Run(make(rows=1, domains=[]))
    run.planner.add(1, shard(1), now=0.0)
    assert run.next(now=1e9, idle=True) is None


def test_a_window_stays_small_enough_for_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "MAX_SHARDS", 3)
    run = Run(make(rows=1_000_000))
    for seq in range(1, 8):
        run.planner.add(seq, shard(seq), now=0.0)
    sizes = [len(run.next(idle=True) or ()) for _ in range(4)]
    assert sizes == [3, 3, 1, 0]


def test_the_largest_window_fits_into_a_message() -> None:
    """Eight groups a shard, the longest names, a global batch of 4096 with carried rows in each of four lengths."""
    planned = make(rows=10**15)
    many = tuple(
        RowGroup(split=split, length=length, rows=10**6)
        for split in ("train", "held_out")
        for length in (64, 128, 256, 512)
    )
    for seq in range(10**6, 10**6 + planner.MAX_SHARDS):
        planned.add(seq, msgspec.structs.replace(shard(seq, domain="d" * 48), groups=many), now=0.0)
    carry = tuple(
        CarriedRows(
            seq=10**6, shard="f" * 32, domain="d" * 48, epoch=100, length=512, rows=tuple(range(10**6, 10**6 + 4095))
        )
        for _ in range(4)
    )
    window = planned.next(number=10**6, carry=carry, now=1767225600.123456, idle=True)
    assert window is not None
    assert len(window.shards) == planner.MAX_SHARDS
    assert len(events.encode(window)) < 1_000_000


def test_waiting_costs_nothing_however_many_shards_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service asks five times a second; a shard is looked at when it comes and when it goes into a window."""
    run = Run(make(rows=10**9, seconds=1e9))
    for seq in range(1, 50_001):
        run.planner.add(seq, shard(seq), now=0.0)
    looked: list[CatalogShard] = []
    monkeypatch.setattr(planner, "train_rows", lambda found: looked.append(found) or train_rows(found))
    began = time.perf_counter()
    assert [run.next(now=1.0) for _ in range(10_000)] == [None] * 10_000
    assert time.perf_counter() - began < 1.0  # it takes some 10 ms; a look at each shard would take 1000 s
    assert looked == []
    window = run.next(now=1.0, idle=True)
    assert window is not None
    assert len(looked) <= 2 * len(window)


def test_a_shard_that_the_journal_used_before_it_was_read_is_not_new() -> None:
    run = Run(make(rows=10))
    run.planner.add(1, shard(1), now=0.0)
    assert run.next(idle=True) == [(1, 0)]
    again = make(rows=10)
    again.used(Window(run="run", number=1, shards=(part(1),), at=0.0))
    again.add(1, shard(1), now=0.0)
    assert again.next(number=2, carry=(), now=1e9, idle=True) is None


def part(seq: int) -> WindowShard:
    return WindowShard(seq=seq, shard=f"{seq:032x}", domain="medical", epoch=0, groups=shard(seq).groups)


def test_a_planner_that_begins_anew_goes_on_where_the_journal_ends() -> None:
    first = Run(make(rows=10, repeat=True))
    windows: list[Window] = []
    for seq in (1, 2, 3):
        first.planner.add(seq, shard(seq), now=0.0)
    for number in range(1, 6):
        window = first.planner.next(number=number, carry=(), now=0.0, idle=True)
        assert window is not None
        first.planner.used(window)
        windows.append(window)
        again = make(rows=10, repeat=True)
        for seq in (1, 2, 3):
            again.add(seq, shard(seq), now=99.0)
        for known in windows:
            again.used(known)
        assert again.next(number=number + 1, carry=(), now=0.0, idle=True) == first.planner.next(
            number=number + 1, carry=(), now=0.0, idle=True
        )
