"""The training loop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
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


class Training:
    """A run in progress: ``state`` is where it stands, ``saved`` the last step that lies in a checkpoint."""

    def __init__(
        self, config: TrainerConfig, folder: RunDir, vocab: Path, net: Net, feed: Feed, inputs: Inputs, state: State, saved: int,
        send: report.Send, stop: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.config, self.folder, self.vocab, self.net, self.feed, self.inputs = (
            config,
            folder,
            vocab,
            net,
            feed,
            inputs,
        )
        self.state, self.saved, self.send, self.stop = state, saved, send, stop
        self.history: deque[incident.Past] = deque(maxlen=100)
        self._lengths: set[int] = set()

    def run(self) -> str:
        """Train until the steps are done, the data has ended, or stop was asked for; returns which of them.

        Raises:
            NonFinite: before the update that it would have spoilt; the weights before it are in a checkpoint.
        """
        while (reason := self._finished()) is None:
            upcoming = self.feed.next((self.state.window, self.state.batch), self.stop, self._waiting)
            if upcoming is None:
                reason = "stopped" if self.stop() else "end"
                break
            began, rate = time.monotonic(), learning_rate(self.config, self.state.step + 1)
            try:
                result = self.net.step(
                    self.inputs.micro_batches(upcoming.batch, self.state.step + 1, self.config.micro_batch),
                    self.state.step + 1,
                    rate,
                )
            except NonFinite as error:
                self._save()
                self._explain(error, upcoming, rate)
                raise
            self._advance(upcoming, result, rate, time.monotonic() - began)
            if self.state.step % self.config.checkpoint_every == 0:
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
        if done.batch.length not in self._lengths:
            self._lengths.add(done.batch.length)
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

    def _explain(self, error: NonFinite, upcoming: Next, rate: float) -> None:
        place, step = (upcoming.window, upcoming.number), self.state.step + 1
        path, message = incident.write(
            self.folder.incidents,
            error,
            self.inputs,
            upcoming.batch,
            step=step,
            place=place,
            learning_rate=rate,
            history=list(self.history),
        )
        self.send(report.Incident(step=self.state.step, path=str(path), message=message))
