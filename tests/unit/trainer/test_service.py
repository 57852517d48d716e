"""The trainer's service around a rank that is only played: what it refuses, what it survives, what it leaves behind."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trainer_support as support
from mindstream_common.bus_memory import MemoryBus
from mindstream_common.config import section
from mindstream_common.errors import ConfigError, Fenced
from mindstream_common.events import CatalogShard, RowGroup, Window, encode
from mindstream_common.store import MemoryStore
from mindstream_trainer import chain, checkpoint, journal, progress, report, resume, service
from mindstream_trainer.config import TrainerConfig
from mindstream_trainer.report import Report
from mindstream_trainer.rundir import RunDir, RunFile, only_one
from mindstream_trainer.service import Service
from mindstream_trainer.vocabulary import Vocabulary

Play = Callable[["Rank"], AsyncIterator[Report]]


class Rank:
    """Plays a rank: ``play`` says its reports, and its folder is the real one. ``codes`` are its exit codes in turn."""

    pid = 1

    def __init__(self, folder: Path, play: Play, codes: list[int]) -> None:
        self.folder, self.play, self.codes = RunDir(folder), play, codes
        self.starts = 0
        self.killed = asyncio.Event()

    async def start(self) -> None:
        self.starts += 1
        self.killed.clear()

    def reports(self) -> AsyncIterator[Report]:
        return self.play(self)

    async def wait(self) -> int:
        return -9 if self.killed.is_set() else self.codes.pop(0)

    def kill(self) -> None:
        self.killed.set()

    def last_words(self) -> str:
        return "last words"


class Stage:
    """A bus, a store, a catalog and a run's files."""

    def __init__(self, tmp_path: Path) -> None:
        self.bus, self.store, self.runs = MemoryBus(), MemoryStore(), tmp_path / "runs"
        self.vocab = support.vocabulary_file(tmp_path)
        self.ranks: list[Rank] = []

    async def catalogue(self, number: int, rows: int, size: int = 10) -> None:
        key = f"shards/mindrecord/d/{support.shard_name(number)}.mindrecord"
        shard = CatalogShard(
            id=support.shard_name(number), domain="d", created=0.0, root=support.shard_name(number), parents=(),
            objects=(self.store.put_bytes(key, b"x" * size), self.store.put_bytes(f"{key}.db", b"y")), documents=rows,
            rows=rows, tokens=rows, vocab_size=support.SIZE, tokenizer_sha256=Vocabulary.read(self.vocab).sha256,
            dtype="uint16", groups=(RowGroup(split="train", length=16, rows=rows),),
        )  # fmt: skip
        await self.bus.publish("catalog.d", encode(shard), id=shard.id)

    def run_file(self, run: str = "test", **trainer: Any) -> RunFile:
        config = section({"trainer": {"run": run, "global_batch": 8, **trainer}}, "trainer", TrainerConfig)
        return RunFile(
            run=run, seed=config.seed, trainer=config, model=support.TINY, vocab=str(self.vocab),
            config_sha256="0" * 64, tokenizer_sha256=Vocabulary.read(self.vocab).sha256,
        )  # fmt: skip

    def service(
        self, play: Play, *, codes: tuple[int, ...] = (0,), replay_of: str | None = None, **run: Any
    ) -> Service:
        file = self.run_file(**run)
        made = Service(file, bus=self.bus, store=self.store, runs=self.runs, replay_of=replay_of)
        self.ranks.append(Rank(self.runs / file.run, play, list(codes)))
        made._rank = self.ranks[-1]  # type: ignore[assignment]
        return made

    async def windows(self, run: str = "test") -> list[Window]:
        records, _ = await journal.read(self.bus, run)
        return [record for record in records if isinstance(record, Window)]

    def save(self, run: str, step: int, window: int, **trainer: Any) -> Path:
        """A checkpoint as the rank writes it."""
        file = self.run_file(run, **trainer)
        state = msgspec.structs.replace(
            resume.first_state(file, Vocabulary.read(self.vocab)), step=step, window=window, batch=1
        )
        folder = RunDir(self.runs / run).checkpoints
        arrays = {"w": np.full(3, step, np.float32)}
        return checkpoint.save(folder, arrays, arrays, file.model, self.vocab, state)


@pytest.fixture
async def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path)
    await made.bus.ensure(queue_events=100)
    return made


def stepped(step: int, window: int) -> Report:
    return report.Stepped(
        step=step, window=window, batch=0, length=16, loss=1.0, learning_rate=1e-4, grad_norm=1.0, loss_scale=1.0,
        rows=8, documents=1, tokens=8, masked=1, seconds=0.1, data_wait_seconds=0.0,
    )  # fmt: skip


async def window_comes(rank: Rank, number: int) -> None:
    while rank.folder.read_window(number) is None:
        await asyncio.sleep(0.01)


def through(*windows: int) -> Play:
    """Waits for each window and makes an update of it."""

    async def play(rank: Rank) -> AsyncIterator[Report]:
        yield report.Started(step=0, resumed_from=None)
        for window in windows:
            yield report.Waiting(step=window - 1, window=window)
            await window_comes(rank, window)
            yield stepped(window, window)
        yield report.Finished(step=len(windows), reason="steps")

    return play


async def nothing(rank: Rank) -> AsyncIterator[Report]:
    yield report.Finished(step=0, reason="steps")


@pytest.mark.parametrize("saved", [True, False], ids=["with a checkpoint", "before the first checkpoint"])
async def test_a_refused_start_leaves_the_run_as_it_was(stage: Stage, saved: bool) -> None:
    """Rows that were left over with another global batch would be trained twice, or never."""
    await stage.catalogue(1, 21)
    assert await stage.service(through(1)).run() == 0
    if saved:
        stage.save("test", 1, 1)
    before = (stage.runs / "test" / "run.json").read_bytes()
    records = await journal.read(stage.bus, "test")
    await stage.catalogue(2, 30)
    with pytest.raises(ConfigError, match=r"global_batch is 12 now and was 8|with global_batch 8, .* 12"):
        await stage.service(nothing, global_batch=12).run()
    assert await journal.read(stage.bus, "test") == records
    assert (stage.runs / "test" / "run.json").read_bytes() == before
    assert progress.read(stage.runs / "test").state == "failed"  # type: ignore[union-attr]
    assert await stage.service(through(1, 2)).run() == 0
    windows = await stage.windows()
    assert len(windows) == 2
    assert windows[1].carry
    assert list(chain.breaks(windows, seed=1, global_batch=8)) == []


async def test_a_second_trainer_of_a_run_touches_nothing(stage: Stage) -> None:
    assert await stage.service(nothing).run() == 0
    folder = stage.runs / "test"
    (folder / "uploading").mkdir()
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with only_one(folder), pytest.raises(Fenced, match="another trainer on this machine"):
        await stage.service(nothing, learning_rate=0.5).run()
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert (folder / "uploading").exists()


async def until_the_end(rank: Rank) -> AsyncIterator[Report]:
    """Makes an update of each window until it is told that none will come; a window without batches is passed in silence."""
    window = 1
    while True:
        if rank.folder.read_window(window) is not None:
            if window != 2:
                yield stepped(window, window)
            window += 1
        elif rank.folder.ended():
            return
        else:
            yield report.Waiting(step=window, window=window)
            await asyncio.sleep(0.01)


async def test_a_replay_trains_on_every_window_of_its_source(stage: Stage) -> None:
    for number in (1, 2, 3, 4):
        await stage.catalogue(number, 21 if number != 2 else 2)
    assert await stage.service(through(1, 2, 3, 4), window={"rows": 1}).run() == 0
    source = await stage.windows()
    assert len(source) >= 4
    assert await stage.service(until_the_end, run="again", replay_of="test").run() == 0
    again = await stage.windows("again")
    assert [(window.shards, window.carry) for window in again] == [(window.shards, window.carry) for window in source]
    last = RunDir(stage.runs / "again").read_window(len(source))
    assert last is not None


async def test_a_replay_of_no_run_is_an_error(stage: Stage) -> None:
    assert await stage.service(nothing).run() == 0
    with pytest.raises(ConfigError, match=r"no run 'nope' to replay\. Runs in the journal: test"):
        await stage.service(nothing, run="again", replay_of="nope").run()
    assert stage.ranks[-1].starts == 0


@pytest.mark.parametrize("where", ["here", "in the store"])
async def test_a_damaged_newest_checkpoint_gives_way_to_an_older_one(stage: Stage, where: str) -> None:
    await stage.catalogue(1, 40)
    assert await stage.service(through(1)).run() == 0
    for step in (1, 2):
        path = stage.save("test", step, 1)
        assert await stage.service(through()).run() == 0
    key = "runs/test/checkpoints/step-00000002/model.safetensors"
    stage.store.put_bytes(key, b"damaged")
    (path / "model.safetensors").write_bytes(b"damaged")
    if where == "in the store":
        shutil.rmtree(path.parent)
    again = stage.service(through())
    assert await again.run() == 0
    assert again._rank_window == 1
    assert progress.read(stage.runs / "test").checkpoint_step == 1  # type: ignore[union-attr]
    assert again._uploads.latest().step == 1  # type: ignore[union-attr]


async def test_a_checkpoint_that_was_pruned_before_it_was_heard_of_stops_nothing(stage: Stage) -> None:
    async def play(rank: Rank) -> AsyncIterator[Report]:
        for step in range(1, 6):
            path = stage.save("test", step, 1)
            checkpoint.prune(rank.folder.checkpoints, 1)
            if step == 3:
                shutil.rmtree(path)
            yield report.Saved(step=step, path=str(path), seconds=0.0)
        yield report.Finished(step=5, reason="steps")

    await stage.catalogue(1, 8)
    made = stage.service(play, keep_checkpoints=1)
    assert await made.run() == 0
    assert made._uploads.latest().step == 5  # type: ignore[union-attr]
    assert list((stage.runs / "test" / "uploading").iterdir()) == []


async def test_any_error_says_failed(stage: Stage) -> None:
    async def broken(rank: Rank) -> AsyncIterator[Report]:
        yield stepped(1, 1)
        raise RuntimeError("surprise")

    with pytest.raises(RuntimeError):
        await stage.service(broken).run()
    found = progress.read(stage.runs / "test")
    assert found is not None
    assert (found.state, found.message) == ("failed", "RuntimeError('surprise')")


async def test_a_frozen_rank_is_ended_and_started_again(stage: Stage) -> None:
    async def play(rank: Rank) -> AsyncIterator[Report]:
        yield report.Started(step=0, resumed_from=None)
        if rank.starts == 1:
            await rank.killed.wait()
        else:
            yield report.Finished(step=1, reason="steps")

    made = stage.service(play, stall_seconds=1.0)
    assert await asyncio.wait_for(made.run(), 10) == 0
    assert stage.ranks[0].starts == 2
    assert progress.read(stage.runs / "test").restarts == 1  # type: ignore[union-attr]


async def test_a_rank_that_waits_for_rows_is_not_frozen_until_they_are_there(stage: Stage) -> None:
    async def play(rank: Rank) -> AsyncIterator[Report]:
        if rank.starts == 1:
            yield report.Waiting(step=0, window=1)
            await asyncio.sleep(2.0)
            assert not rank.killed.is_set()
            await stage.catalogue(1, 8)
            await rank.killed.wait()
        else:
            yield report.Finished(step=1, reason="steps")

    assert await asyncio.wait_for(stage.service(play, stall_seconds=1.0).run(), 15) == 0
    assert stage.ranks[0].starts == 2


async def test_a_stop_between_two_ranks_is_not_forgotten(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "STOP_SECONDS", 5.0)

    async def dies(rank: Rank) -> AsyncIterator[Report]:
        asyncio.get_running_loop().call_later(0.2, made.stop)  # the next start is a second away
        yield stepped(1, 1)

    made = stage.service(dies, codes=(1, 1))
    began = asyncio.get_running_loop().time()
    assert await made.run() == 0
    assert stage.ranks[0].starts == 1
    assert asyncio.get_running_loop().time() - began < 3


async def test_shards_that_no_checkpoint_needs_make_room_and_come_back(stage: Stage) -> None:
    """The rank goes back behind them: every window that it waits for is brought again."""
    for number in (1, 2, 3):
        await stage.catalogue(number, 8, size=1000)
    shards = stage.runs / "test" / "shards"
    names: list[set[int]] = []

    async def play(rank: Rank) -> AsyncIterator[Report]:
        for window in (1, 2, 3):
            yield report.Waiting(step=window - 1, window=window)
            await window_comes(rank, window)
            yield report.Saved(step=window, path=str(stage.save("test", window, window)), seconds=0.0)
            checkpoint.prune(rank.folder.checkpoints, 1)
            yield stepped(window, window)
        await asyncio.sleep(0.3)
        names.append({int(path.name[:32], 16) for path in shards.glob("*.mindrecord")})
        assert rank.folder.read_window(1) is None
        yield report.Waiting(step=0, window=1)
        await window_comes(rank, 1)
        names.append({int(path.name[:32], 16) for path in shards.glob("*.mindrecord")})
        yield report.Finished(step=3, reason="steps")

    assert await stage.service(play, cache_bytes=1500, window={"rows": 1}).run() == 0
    assert 1 not in names[0]
    assert 3 in names[0]
    assert 1 in names[1]
