from __future__ import annotations

import time
from collections import Counter

import pytest
from mindstream_common.errors import ConfigError
from mindstream_common.events import RowGroup, Window, WindowShard, decode_journal, encode
from mindstream_trainer.plan import Plan, plan, slice_batch


def group(length: int, rows: int, split: str = "train") -> RowGroup:
    return RowGroup(split=split, length=length, rows=rows)


def shard(seq: int, *groups: RowGroup, epoch: int = 0) -> WindowShard:
    return WindowShard(seq=seq, shard=f"{seq:032x}", domain="medical", epoch=epoch, groups=groups)


def window(number: int, *shards: WindowShard, carry: tuple = ()) -> Window:
    return Window(run="r", number=number, shards=shards, carry=carry, at=0.0)


FIRST = (
    shard(1, group(16, 37), group(16, 3, "held_out"), group(32, 11)),
    shard(2, group(16, 5), group(32, 2, "held_out"), group(32, 9)),
)


def trained(*plans: Plan) -> Counter:
    return Counter((row.shard, row.row, row.epoch) for p in plans for batch in p.batches for row in batch.rows)


def carried(p: Plan) -> Counter:
    return Counter((part.shard, row, part.epoch) for part in p.carry for row in part.rows)


def test_every_train_row_exactly_once_over_windows() -> None:
    expected: Counter = Counter()
    done: Counter = Counter()
    carry: tuple = ()
    for number in range(1, 6):
        shards = (
            shard(2 * number, group(16, 13 * number), group(16, 4, "held_out"), group(32, 7)),
            shard(2 * number + 1, group(32, 10)),
        )
        for s in shards:
            start = 0
            for g in s.groups:
                if g.split == "train":
                    expected.update((s.shard, row, 0) for row in range(start, start + g.rows))
                start += g.rows
        result = plan(window(number, *shards, carry=carry), seed=3, global_batch=8)
        done += trained(result)
        carry = result.carry
        assert done + carried(result) == expected
        assert sum(carried(result).values()) < 2 * 8  # less than a batch per length
    assert max(done.values()) == 1


def test_held_out_rows_are_never_trained() -> None:
    result = plan(window(1, *FIRST), seed=1, global_batch=4)
    held_out = {(FIRST[0].shard, row) for row in (37, 38, 39)} | {(FIRST[1].shard, row) for row in (5, 6)}
    assert not held_out & {(shard, row) for shard, row, _ in trained(result) + carried(result)}


def test_batches_are_full_and_of_one_length() -> None:
    result = plan(window(1, *FIRST), seed=1, global_batch=8)
    lengths = {(FIRST[0].shard, row): 16 for row in range(37)} | {(FIRST[0].shard, row): 32 for row in range(40, 51)}
    lengths |= {(FIRST[1].shard, row): 16 for row in range(5)} | {(FIRST[1].shard, row): 32 for row in range(7, 16)}
    for batch in result.batches:
        assert len(batch.rows) == 8
        assert {lengths[row.shard, row.row] for row in batch.rows} == {batch.length}


def test_carried_rows_come_first() -> None:
    first = plan(window(1, *FIRST), seed=1, global_batch=8)
    second = plan(window(2, shard(3, group(16, 20), group(32, 20)), carry=first.carry), seed=1, global_batch=8)
    waiting = carried(first)
    assert waiting
    assert not waiting - trained(second)
    for length in (16, 32):
        of_length = [part for part in first.carry if part.length == length]
        expected = [(part.shard, row) for part in of_length for row in part.rows]
        holding = [b for b in second.batches if b.length == length and (b.rows[0].shard, b.rows[0].row) == expected[0]]
        assert [(row.shard, row.row) for row in holding[0].rows][: len(expected)] == expected


def test_pure_and_shuffled_by_seed_and_window() -> None:
    same = [[batch.rows for batch in plan(window(4, *FIRST), seed=9, global_batch=8).batches] for _ in range(2)]
    assert same[0] == same[1]
    for other in (plan(window(4, *FIRST), seed=10, global_batch=8), plan(window(5, *FIRST), seed=9, global_batch=8)):
        assert [batch.rows for batch in other.batches] != same[0]


def test_the_plan_is_frozen() -> None:
    """A change of the shuffle would break every run that resumes: these rows may only change with a new plan version."""
    result = plan(window(1, *FIRST), seed=1, global_batch=4)
    assert [(b.length, [(row.seq, row.row) for row in b.rows]) for b in result.batches[:3]] == GOLDEN


def test_carry_survives_the_journal() -> None:
    result = plan(window(1, *FIRST), seed=1, global_batch=8)
    second = window(2, carry=result.carry)
    assert decode_journal(encode(second)) == second


@pytest.mark.parametrize(("world", "micro"), [(1, None), (1, 4), (2, None), (2, 2), (4, 2), (8, 1)])
def test_slices_put_together_are_the_batch(world: int, micro: int | None) -> None:
    batch = plan(window(1, *FIRST), seed=1, global_batch=8).batches[0]
    parts = [slice_batch(batch, rank, world, micro) for rank in range(world)]
    assert [row for rank in parts for part in rank for row in part.rows] == batch.rows
    assert [part.first for rank in parts for part in rank] == list(range(0, 8, len(parts[0][0].row)))
    assert len({sum(len(part.row) for part in rank) for rank in parts}) == 1


@pytest.mark.parametrize(("world", "micro"), [(3, None), (2, 3), (16, 1)])
def test_uneven_slices_are_refused_with_the_numbers(world: int, micro: int | None) -> None:
    batch = plan(window(1, *FIRST), seed=1, global_batch=8).batches[0]
    with pytest.raises(ConfigError, match=f"global batch of 8 rows cannot be cut into {world} ranks"):
        slice_batch(batch, 0, world, micro)


def test_a_million_rows_within_seconds() -> None:
    shards = tuple(shard(seq, group(128, 9000), group(512, 1000)) for seq in range(100))
    began = time.perf_counter()
    result = plan(window(1, *shards), seed=1, global_batch=256)
    assert time.perf_counter() - began < 3
    assert sum(len(batch.row) for batch in result.batches) > 999_000


def test_the_same_shard_in_two_epochs_is_two_passes() -> None:
    result = plan(window(1, shard(1, group(16, 8)), shard(1, group(16, 8), epoch=1)), seed=1, global_batch=4)
    assert trained(result) == Counter({(f"{1:032x}", row, epoch): 1 for row in range(8) for epoch in (0, 1)})


def test_nothing_to_train_is_an_empty_plan() -> None:
    assert plan(window(1, shard(1, group(16, 5, "held_out"))), seed=1, global_batch=4) == Plan([], ())


GOLDEN = [
    (16, [(1, 18), (1, 17), (1, 1), (1, 3)]),
    (32, [(1, 47), (2, 11), (1, 48), (2, 12)]),
    (32, [(1, 46), (2, 9), (1, 41), (2, 8)]),
]
