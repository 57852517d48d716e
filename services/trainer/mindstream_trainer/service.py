"""The trainer's service: planner, downloads, uploads and metrics around a rank that does nothing but train.

The rank is a process of its own, so a crash of one is seen, explained and mended by the other. The service plans
windows (:mod:`planner`) into the journal, brings their shards to this machine, and writes a window's file when all of
it is there; it stores the checkpoints that the rank has written.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from pathlib import Path

import msgspec
from mindstream_common import logs
from mindstream_common.bus import Bus
from mindstream_common.errors import ConfigError, MindStreamError, Transient
from mindstream_common.events import CarriedRows, CatalogShard, Window, decode
from mindstream_common.store import Store
from mindstream_common.topology import CATALOG

from mindstream_trainer import checkpoint, journal, plan, progress, report, resume, training_metrics
from mindstream_trainer.checkpoint import Checkpoint
from mindstream_trainer.config import ModelConfig, TrainerConfig
from mindstream_trainer.journal import Journal
from mindstream_trainer.patience import patiently
from mindstream_trainer.planner import Planner
from mindstream_trainer.rank_process import NON_FINITE, USER, RankProcess
from mindstream_trainer.rundir import RunDir, RunFile, WindowFile, only_one
from mindstream_trainer.shards import Shards
from mindstream_trainer.uploader import Uploader
from mindstream_trainer.uploads import Pointer, Uploads
from mindstream_trainer.vocabulary import Vocabulary

AHEAD = 2  # windows that are planned and brought here before the rank needs them
STOP_SECONDS = 60.0  # for the update in hand and its checkpoint


class Service:
    """Trains one run. :meth:`run` returns the exit code of the service."""

    def __init__(self, run: RunFile, *, bus: Bus, store: Store, runs: Path, replay_of: str | None = None) -> None:
        self._run = run
        self._trainer: TrainerConfig = run.trainer
        self._model: ModelConfig = run.model
        self._bus = bus
        self._dir = RunDir(runs / run.run)
        self._shards = Shards(store, self._dir.path / "shards")
        self._uploads = Uploads(store, run.run, run.trainer.keep_checkpoints)
        self._uploader = Uploader(self._uploads, self._dir.path / "uploading", self._stored)
        self._replay_of = replay_of
        self._source_seq = 0  # of the journal that is replayed: the last record that was read
        self._catalog: dict[int, CatalogShard] = {}
        self._planner = Planner(
            run.run,
            rows=run.trainer.window.rows,
            seconds=run.trainer.window.seconds,
            repeat=run.trainer.repeat,
            domains=run.trainer.domains,
        )
        self._carry: tuple[CarriedRows, ...] = ()
        self._rank = RankProcess(self._dir.path)
        self._rank_window = 1
        self._written = 0  # windows whose files lie where the rank looks for them, up to this one
        self._waits_for = 0  # the window whose file the rank waits for; 0: it has something to do
        self._silence = 0.0  # seconds since the rank said something or was given something
        self._stopping = asyncio.Event()
        self._log = logs.get(run=run.run)
        self.not_ready = "starting"

    def stop(self) -> None:
        """Finish the update in hand, save, leave. Safe to call from a signal handler."""
        self._stopping.set()

    async def run(self) -> int:
        """Train until the run ends, it is stopped, or a number is not finite.

        Raises:
            ConfigError, Fenced: the run cannot be trained like this, or not by this process.
        """
        training_metrics.at_zero(self._run.run)
        with only_one(self._dir.path):  # before anything is written: the folder may be another trainer's
            self._uploader.clear()
            self._progress = progress.ProgressFile(self._dir.path, self._begin_progress())
            self._progress.write()
            try:
                return await self._train()
            except Exception as error:
                self._say("failed", str(error) if isinstance(error, MindStreamError) else repr(error))
                raise
            finally:
                self._rank.kill()
                self._progress.close()

    async def _train(self) -> int:
        opened = await self._open()
        self._dir.write_run(self._run)
        await self._read_catalog()
        for window in opened.windows:
            self._planner.used(window)
        if opened.windows:
            self._carry = await asyncio.to_thread(self._carry_after, opened.windows[-1])
        helpers = [asyncio.create_task(work) for work in (self._plan(opened), self._uploader.run(), self._watch())]
        training = asyncio.create_task(self._keep_training())
        stopping = asyncio.create_task(self._stopping.wait())
        self.not_ready = ""
        try:
            await asyncio.wait({training, stopping, *helpers}, return_when=asyncio.FIRST_COMPLETED)
            _raise_from(helpers)
            if self._stopping.is_set() and not training.done():
                self._dir.ask_to_stop()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(training), STOP_SECONDS)
                self._rank.kill()
            code = await training
            await self._finish_uploads(helpers)
            return code
        finally:
            for task in (training, stopping, *helpers):
                task.cancel()

    async def _open(self) -> Journal:
        """The run's journal, taken over only when this configuration goes on with what the run has done so far."""
        found = await self._find_checkpoint()
        if found is not None:
            await asyncio.to_thread(resume.check, self._run, Vocabulary.read(self._run.vocab), found)
        return await journal.open_journal(
            self._bus,
            self._run.run,
            seed=self._run.seed,
            global_batch=self._trainer.global_batch,
            config_sha256=self._run.config_sha256,
            replay_of=self._replay_of,
            reached=1 if found is None else found.state.window,
        )

    # planning ---------------------------------------------------------------------------------------------------------

    async def _plan(self, opened: Journal) -> None:
        """Plan windows ahead of the rank, and put their files where it looks for them."""
        source: list[Window] = []
        while True:
            try:
                await self._read_catalog()
                if self._replay_of is not None:
                    await self._replay(opened, source)
                elif self._rank_window + AHEAD > len(opened.windows):
                    await self._plan_next(opened)
                await self._bring(opened.windows)
                if self._replay_of is not None and self._written >= len(source) and not self._dir.ended():
                    self._dir.write_end()
            except Transient as error:
                self._log.warning("planning waits", error=str(error))
                await asyncio.sleep(1.0)
            self._progress.progress.windows = len(opened.windows)
            training_metrics.WINDOWS_PLANNED.labels(self._run.run).set(len(opened.windows))
            await asyncio.sleep(0.2)

    async def _bring(self, windows: list[Window]) -> None:
        """Write the files of the windows that the rank needs next; what no checkpoint needs any more makes room."""
        while self._written < min(len(windows), self._rank_window + AHEAD - 1):
            number = self._written + 1
            await asyncio.to_thread(self._write_window, windows[number - 1])
            if self._written == number - 1:  # else the rank has gone back to an earlier one meanwhile
                self._written = number
            if self._waits_for == number:
                self._waits_for, self._silence = 0, 0.0
            await asyncio.to_thread(self._make_room, windows)

    def _make_room(self, windows: list[Window]) -> None:
        if self._shards.bytes() <= self._trainer.cache_bytes:
            return
        first = min(checkpoint.first_window(self._dir.checkpoints), self._rank_window)
        self._dir.forget_windows(first)  # before their shards: a rank that goes back asks for them again
        needed = {seq for window in windows[first - 1 :] for seq in _seqs(window)}
        self._shards.trim(self._trainer.cache_bytes, [self._catalog[seq] for seq in needed])

    async def _plan_next(self, opened: Journal) -> None:
        window = self._planner.next(
            number=len(opened.windows) + 1,
            carry=self._carry,
            now=time.time(),
            idle=self._rank_window >= len(opened.windows),
        )
        if window is None:
            return
        await opened.append(window)
        self._planner.used(window)
        self._carry = await asyncio.to_thread(self._carry_after, window)
        self._log.info(
            "window",
            window=window.number,
            shards=len(window.shards),
            epochs=sorted({shard.epoch for shard in window.shards}),
            carried=sum(len(part.rows) for part in window.carry),
        )

    async def _replay(self, opened: Journal, source: list[Window]) -> None:
        """Take over the windows of the journal that is replayed; ``source`` keeps those that were read."""
        assert self._replay_of is not None
        records, self._source_seq = await journal.read(self._bus, self._replay_of, after=self._source_seq)
        source += [record for record in records if isinstance(record, Window)]
        while len(opened.windows) < len(source):
            window = source[len(opened.windows)]
            await opened.append(msgspec.structs.replace(window, run=self._run.run, at=time.time()))

    def _carry_after(self, window: Window) -> tuple[CarriedRows, ...]:
        return plan.plan(window, seed=self._run.seed, global_batch=self._trainer.global_batch).carry

    async def _read_catalog(self) -> None:
        async for record in self._bus.read(CATALOG, after=self._planner.catalog_seq):
            event = decode(record.data)
            assert isinstance(event, CatalogShard), event
            self._check(event)
            self._catalog[record.seq] = event
            self._planner.add(record.seq, event, time.time())

    def _check(self, shard: CatalogShard) -> None:
        """Rows that this model cannot read are refused before any work."""
        if self._trainer.domains is not None and shard.domain not in self._trainer.domains:
            return
        if shard.tokenizer_sha256 != self._run.tokenizer_sha256:
            raise ConfigError(
                f"shard {shard.id} ({shard.domain}) was tokenized with the vocabulary {shard.tokenizer_sha256}, the base "
                f"model's is {self._run.tokenizer_sha256} ({self._run.vocab}). A pipeline has one tokenizer: set "
                "base.vocab to that vocabulary, or start another pipeline (another --state folder) for this model."
            )
        self._model.check_length(max((group.length for group in shard.groups), default=0))

    def _write_window(self, window: Window) -> None:
        files = self._shards.fetch_all(self._catalog[seq] for seq in _seqs(window))
        self._dir.write_window(WindowFile(window=window, shards=files))

    # the rank ---------------------------------------------------------------------------------------------------------

    async def _keep_training(self) -> int:
        """Run the rank, and run it again from its last checkpoint when it dies."""
        backoff = 1.0
        deaths = 0  # since the last checkpoint
        while True:
            self._dir.clear_requests()
            if self._stopping.is_set():  # while there was no rank that could be asked
                return 0
            self._silence, self._waits_for = 0.0, 0
            await self._rank.start()
            self._log.info("the rank is started", pid=self._rank.pid)
            async for said in self._rank.reports():
                self._hear(said)
                if isinstance(said, report.Saved):
                    deaths, backoff = 0, 1.0
            code = await self._rank.wait()
            if code in (0, NON_FINITE) or self._stopping.is_set():
                return code if code in (0, NON_FINITE) else 0
            words = self._rank.last_words()
            if code == USER:  # something that a person must put right: starting again cannot help
                raise ConfigError(words)
            deaths += 1
            self._log.error("the rank died", code=code, deaths=deaths, last_words=words)
            if deaths > self._trainer.max_restarts:
                self._say("failed", f"the rank died {deaths} times without reaching a checkpoint: {words}")
                return 1
            training_metrics.RESTARTS.labels(self._run.run).inc()
            self._progress.progress.restarts += 1
            self._say("restarting", f"the rank died (exit code {code}) and is started again from its last checkpoint")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), backoff)
            backoff = min(30.0, backoff * 2)

    async def _watch(self) -> None:
        """End a rank that is frozen, so that it is started again. Time is counted in ticks of this process: one that
        was itself suspended does not blame the rank."""
        limit = self._trainer.stall_seconds
        tick = min(1.0, limit / 10)
        while True:
            await asyncio.sleep(tick)
            self._silence = 0.0 if self._waits_for else self._silence + tick
            if self._silence > limit:
                self._log.error("the rank is frozen: it is ended and started again", silent_seconds=round(limit))
                self._rank.kill()
                self._silence = 0.0

    def _hear(self, said: report.Report) -> None:
        run, note = self._run.run, self._progress.progress
        self._silence, self._waits_for = 0.0, 0
        match said:
            case report.Started(step=step, resumed_from=resumed, notes=notes):
                self._progress.started(step)
                self._log.info("training starts", step=step, resumed_from=resumed, notes=list(notes))
                self._say("compiling", "; ".join(notes))
            case report.Compiled(length=length, seconds=seconds):
                self._log.info("compiled", length=length, seconds=round(seconds, 1))
            case report.Stepped():
                self._rank_window = said.window
                training_metrics.stepped(run, said)
                self._progress.stepped(said)
                if said.step % self._trainer.log_every == 0 or said.step == 1:
                    self._log.info(
                        "step",
                        step=said.step,
                        loss=round(said.loss, 4),
                        learning_rate=said.learning_rate,
                        grad_norm=round(said.grad_norm, 3),
                        tokens_per_second=round(note.tokens_per_second),
                    )
            case report.Saved(step=step, path=path):
                note.local_checkpoint = path
                self._progress.saved(step)
                self._uploader.offer(Path(path), step)
            case report.Waiting(window=window):
                self._rank_window = self._waits_for = window
                self._written = min(self._written, window - 1)  # whatever was there once: the rank has not found it
                self._say("waiting", f"for rows of window {window}")
            case report.Incident(message=message, path=path):
                training_metrics.INCIDENTS.labels(run).inc()
                training_metrics.LOSS.labels(run, "0").set(math.nan)
                self._log.error("incident", message=message, path=path)
                self._say("incident", message)
            case report.Finished(reason=reason):
                self._log.info("finished", reason=reason, step=said.step)
                self._say("stopped" if reason == "stopped" else "finished", reason)

    def _say(self, state: str, message: str) -> None:
        self._progress.progress.state = state
        self._progress.progress.message = message
        self._progress.write()

    # checkpoints ------------------------------------------------------------------------------------------------------

    async def _find_checkpoint(self) -> Checkpoint | None:
        """The newest sound checkpoint, here or in the store, must be here; the store must have it too."""
        folder, warn = self._dir.checkpoints, self._log.warning
        local = await asyncio.to_thread(checkpoint.latest_valid, folder, warn)
        step = -1 if local is None else local.state.step
        local = await patiently(lambda: self._uploads.restore(folder, newer_than=step, warn=warn)) or local
        if local is not None:
            if not await patiently(lambda: self._uploads.holds(local.state.step)):
                self._uploader.offer(local.path, local.state.step)
            self._written = local.state.window - 1
            self._rank_window = local.state.window
            note = self._progress.progress
            note.step, note.checkpoint_step = local.state.step, local.state.step
            note.tokens, note.rows, note.local_checkpoint = local.state.tokens, local.state.rows, str(local.path)
            note.train_seconds = local.state.seconds
            self._progress.saved(local.state.step)
        return local

    def _stored(self, pointer: Pointer, step: int) -> None:
        training_metrics.CHECKPOINT_STEP.labels(self._run.run).set(step)
        training_metrics.CHECKPOINT_TIME.labels(self._run.run).set(time.time())
        note = self._progress.progress
        note.checkpoint_step, note.checkpoint = step, pointer.objects[0].key.rsplit("/", 1)[0]
        self._log.info("checkpoint stored", step=step, key=note.checkpoint)

    async def _finish_uploads(self, helpers: list[asyncio.Task[None]]) -> None:
        """A run ends when its last checkpoint is in the store; a stop waits for that only so long."""
        finished = asyncio.create_task(self._uploader.finished())
        try:
            while not finished.done():
                timeout = STOP_SECONDS if self._stopping.is_set() else 1.0
                await asyncio.wait({finished, *helpers}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                _raise_from(helpers)
                if self._stopping.is_set() and not finished.done():
                    self._log.warning("the last checkpoint is here but not in the store yet; the next start stores it")
                    return
        finally:
            finished.cancel()

    def _begin_progress(self) -> progress.Progress:
        before = progress.read(self._dir.path) or progress.Progress(run=self._run.run)
        before.state, before.message, before.steps = "starting", "", self._trainer.steps
        return before


def _raise_from(helpers: list[asyncio.Task[None]]) -> None:
    """Planning, storing and watching go on for ever: one that has ended raises what it ended with."""
    for helper in helpers:
        if helper.done():
            helper.result()


def _seqs(window: Window) -> dict[int, None]:
    """The catalog's sequences of the shards that a window needs, in order."""
    return dict.fromkeys([shard.seq for shard in window.shards] + [part.seq for part in window.carry])
