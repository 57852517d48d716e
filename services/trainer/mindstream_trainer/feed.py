"""From a run's cursor to the next batch, waiting for its window; and from a batch to the model's inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from mindstream_common.events import Window

from mindstream_trainer import dropout
from mindstream_trainer.config import ModelConfig
from mindstream_trainer.masking import Key, Masked, mask
from mindstream_trainer.plan import Batch, Plan, plan, slice_batch
from mindstream_trainer.reader import Reader
from mindstream_trainer.rundir import RunDir
from mindstream_trainer.vocabulary import Vocabulary

POLL_SECONDS = 0.05


class Next(NamedTuple):
    """A batch, its place (window from 1, batch from 0), the cursor after it, and the seconds waited for its window."""

    batch: Batch
    window: int
    number: int
    cursor: tuple[int, int]
    waited: float


class Feed:
    """Batches in the order of the plan."""

    def __init__(self, folder: RunDir, reader: Reader, model: ModelConfig, *, seed: int, global_batch: int) -> None:
        self.folder, self.reader, self.model, self.seed, self.global_batch = folder, reader, model, seed, global_batch
        self._window, self._plan = 0, Plan((), ())

    def next(self, cursor: tuple[int, int], stop: Callable[[], bool], waiting: Callable[[int], None]) -> Next | None:
        """The batch at ``cursor`` or, where its window has no more, the first one after it. None: stop was asked for, or
        the data has ended. ``waiting`` is called once for a window that is not there yet.

        Raises:
            UserError: a window's file cannot be read, or its rows are longer than the model's positions.
        """
        began, told = time.monotonic(), 0
        window, number = cursor
        while not self._open(window) or number >= len(self._plan.batches):
            if self._window == window:
                window, number = window + 1, 0
                continue
            if stop() or (self.folder.ended() and self.folder.read_window(window) is None):
                return None
            if told != window:
                told = window
                waiting(window)
            time.sleep(POLL_SECONDS)
        return Next(self._plan.batches[number], window, number, (window, number + 1), time.monotonic() - began)

    def _open(self, number: int) -> bool:
        """True when the plan of window ``number`` is at hand."""
        if self._window == number:
            return True
        file = self.folder.read_window(number)
        if file is None:
            return False
        self.reader.know(file.shards)
        self._window, self._plan = number, self._planned(file.window)
        return True

    def _planned(self, window: Window) -> Plan:
        planned = plan(window, seed=self.seed, global_batch=self.global_batch)
        for length in {batch.length for batch in planned.batches}:
            self.model.check_length(length)
        return planned


class Inputs:
    """Micro-batches as the model takes them: masked tokens and dropout's masks, all by key, nothing remembered."""

    def __init__(
        self,
        reader: Reader,
        vocabulary: Vocabulary,
        model: ModelConfig,
        *,
        seed: int,
        probability: float,
        hidden: float,
        attention: float,
        whole_word: bool = False,
    ) -> None:
        self.reader, self.vocabulary, self.model = reader, vocabulary, model
        self.seed, self.probability, self.hidden, self.attention = seed, probability, hidden, attention
        self.whole_word = whole_word

    def masked(self, batch: Batch) -> Masked:
        """The rows of a batch, padded and masked. Raises InputError when a shard cannot be used."""
        rows = batch.rows
        tokens = [self.reader.shard(row.shard).row(row.row) for row in rows]
        keys = [Key(row.shard, row.row, row.epoch) for row in rows]
        words = [self.reader.shard(row.shard).continues(row.row) for row in rows] if self.whole_word else None
        return mask(
            tokens,
            keys,
            length=batch.length,
            seed=self.seed,
            probability=self.probability,
            vocabulary=self.vocabulary,
            words=words,
        )

    def micro_batches(
        self, batch: Batch, step: int, micro: int | None, rank: int = 0, world: int = 1
    ) -> Iterator[list[np.ndarray]]:
        """What :class:`mindstream_trainer.step.TrainStep` takes, for update ``step``."""
        for part in slice_batch(batch, rank, world, micro):
            keeps = dropout.masks(
                self.model,
                self.hidden,
                self.attention,
                seed=self.seed,
                step=step,
                first=part.first,
                rows=len(part.row),
                length=part.length,
            )
            yield [*self.masked(part), *keeps]

    def count(self, batch: Batch) -> tuple[int, int]:
        """(tokens without [CLS] and [SEP], documents that begin here in their first epoch) of a batch."""
        ends = (self.vocabulary.special["cls"], self.vocabulary.special["sep"])
        tokens = documents = 0
        for row in batch.rows:
            data = self.reader.shard(row.shard)
            ids = data.row(row.row)
            tokens += len(ids) - int(np.isin(ids, ends).sum())
            documents += int(data.opens[row.row]) if row.epoch == 0 else 0
        return tokens, documents
