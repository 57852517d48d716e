"""The training loop."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mindstream_trainer import checkpoint, incident, report, weights
from mindstream_trainer.checkpoint import State
from mindstream_trainer.config import TrainerConfig
from mindstream_trainer.errors import NonFinite
from mindstream_trainer.feed import Feed, Inputs, Next
from mindstream_trainer.net import Net
from mindstream_trainer.rundir import RunDir
from mindstream_trainer.schedule import learning_rate
from mindstream_trainer.step import Result

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Training:
    """A run in progress."""

    config: TrainerConfig
    folder: RunDir
    vocab: Path
    net: Net
    feed: Feed
    inputs: Inputs
    state: State  # where the run stands
    saved: int  # the last step that lies in a checkpoint; -1: none
    send: report.Send
    stop: Callable[[], bool]
    history: deque[incident.Past] = field(default_factory=lambda: deque(maxlen=100))
    lengths: set[int] = field(default_factory=set)  # row lengths that are compiled

    def run(self) -> str:
        """Train until the steps are done, the data has ended, or stop was asked for; returns which of them.

        Raises:
            NonFinite: before the update that it would have spoilt; the weights before it are in a checkpoint. Or after
                it, with ``spoilt``; then the last checkpoint is an earlier one.
        """
        while (reason := self._finished()) is None:
            upcoming = self.feed.next((self.state.window, self.state.batch), self.stop, self._waiting)
            if upcoming is None:
                reason = "stopped" if self.stop() else "end"
                break
            began, step = time.monotonic(), self.state.step + 1
            rate = learning_rate(self.config, step)
            micro_batches = self.inputs.micro_batches(upcoming.batch, step, self.config.micro_batch)
            try:
                result = self.net.step(micro_batches, step, rate)
            except NonFinite as error:
                self._bury(error, upcoming, step, rate)
                raise
            self._advance(upcoming, result, rate, time.monotonic() - began)
            if step % self.config.checkpoint_every == 0:
                self._save()
        self._save()
        self.send(report.Finished(step=self.state.step, reason=reason))
        return reason

    def _finished(self) -> str | None:
        if self.config.steps is not None and self.state.step >= self.config.steps:
            return "steps"
        return "stopped" if self.stop() else None

    def _waiting(self, window: int) -> None:
        self.send(report.Waiting(step=self.state.step, window=window))

    def _advance(self, done: Next, result: Result, rate: float, seconds: float) -> None:
        tokens, documents = self.inputs.count(done.batch)
        state, rows = self.state, len(done.batch.row)
        self.state = state = msgspec.structs.replace(
            state, step=state.step + 1, window=done.cursor[0], batch=done.cursor[1], rows=state.rows + rows,
            tokens=state.tokens + tokens, documents=state.documents + documents, seconds=state.seconds + seconds,
        )  # fmt: skip
        if done.batch.length not in self.lengths:
            self.lengths.add(done.batch.length)
            self.send(report.Compiled(step=state.step, length=done.batch.length, seconds=seconds))
        self.history.append(incident.Past(step=state.step, loss=result.loss, grad_norm=result.norm, learning_rate=rate))
        self.send(
            report.Stepped(
                step=state.step, window=done.window, batch=done.number, length=done.batch.length, loss=result.loss,
                learning_rate=rate, grad_norm=result.norm, loss_scale=state.loss_scale, rows=rows, documents=documents,
                tokens=tokens, masked=result.masked, seconds=seconds, data_wait_seconds=done.waited,
            )
        )  # fmt: skip

    def _save(self) -> None:
        if self.saved == self.state.step:
            return
        began = time.monotonic()
        model, optimizer = self.net.arrays()
        path = checkpoint.save(
            self.folder.checkpoints,
            weights.to_hf(model, self.net.config),
            optimizer,
            self.net.config,
            self.vocab,
            self.state,
        )
        checkpoint.prune(self.folder.checkpoints, self.config.keep_checkpoints)
        self.saved = self.state.step
        self.send(report.Saved(step=self.state.step, path=str(path), seconds=time.monotonic() - began))

    def _bury(self, error: NonFinite, upcoming: Next, step: int, rate: float) -> None:
        """Save what is sound and say what happened. Whatever fails here, the number remains what ends the run."""
        try:
            if not error.spoilt:
                self._save()
        except Exception:
            log.exception("the weights before update %d cannot be saved", step)
        try:
            self._explain(error, upcoming, step, rate)
        except Exception:
            log.exception("the incident at update %d cannot be written down", step)

    def _explain(self, error: NonFinite, upcoming: Next, step: int, rate: float) -> None:
        path, message = incident.write(
            self.folder.incidents,
            error,
            self.inputs,
            upcoming.batch,
            step=step,
            place=(upcoming.window, upcoming.number),
            learning_rate=rate,
            saved=self.saved,
            history=list(self.history),
        )
        self.send(report.Incident(step=self.state.step, path=str(path), message=message))
