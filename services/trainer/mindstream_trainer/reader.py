"""Rows of MindRecord shards, by number. A shard is read once, as a whole, and stays in memory while there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from mindspore.mindrecord import FileReader
from mindstream_common.errors import InputError

from mindstream_trainer.rundir import ShardFile

DTYPES = {"uint16": "<u2", "int32": "<i4"}


@dataclass(frozen=True, slots=True)
class ShardData:
    """A shard in memory: the ids of all rows one after the other, where each row begins (int64 [rows + 1]), and what
    document each row is of. ``opens`` (bool [rows]) marks the first row of each document."""

    shard: str
    ids: np.ndarray = field(repr=False)
    starts: np.ndarray = field(repr=False)
    documents: list[str] = field(repr=False)
    opens: np.ndarray = field(repr=False)

    def row(self, number: int) -> np.ndarray:
        """The ids of a row, with [CLS] and [SEP], without padding. Raises InputError when there is no such row."""
        if not 0 <= number < len(self.documents):
            raise InputError(f"shard {self.shard} has {len(self.documents)} rows; row {number} was asked for.")
        ids: np.ndarray = self.ids[self.starts[number] : self.starts[number + 1]]
        return ids


def read(file: ShardFile, vocab_size: int) -> ShardData:
    """Read a shard whole.

    Raises:
        InputError: the file cannot be read, has other rows than its groups say, a row is longer than its group's
            length, or holds an id that the vocabulary lacks (with shard, row and id).
    """
    try:
        reader = FileReader(file.path)
        records = [(record["tokens"], record["document"]) for record in reader.get_next()]
        reader.close()
    except Exception as error:  # MindSpore raises RuntimeError, TypeError, MRM*Error ...
        raise InputError(f"cannot read the MindRecord file {file.path} of shard {file.shard}: {error}") from error
    promised = sum(group.rows for group in file.groups)
    if len(records) != promised:
        raise InputError(f"shard {file.shard} ({file.path}) has {len(records)} rows, but its groups name {promised}.")
    kind = np.dtype(DTYPES[file.dtype])
    sizes = np.array([len(tokens) for tokens, _ in records], np.int64)
    if (sizes % kind.itemsize).any():
        raise InputError(
            f"shard {file.shard}: row {int(np.argmax(sizes % kind.itemsize))} is no array of {file.dtype}."
        )
    starts = np.concatenate([[0], np.cumsum(sizes // kind.itemsize)])
    documents = [document for _, document in records]
    data = ShardData(
        file.shard, np.frombuffer(b"".join(tokens for tokens, _ in records), kind), starts, documents, _opens(documents)
    )
    _check(data, file, vocab_size)
    return data


def _opens(documents: list[str]) -> np.ndarray:
    first = dict(reversed([(document, row) for row, document in enumerate(documents)]))
    opens = np.zeros(len(documents), bool)
    opens[list(first.values())] = True
    return opens


def _check(data: ShardData, file: ShardFile, vocab_size: int) -> None:
    lengths = np.diff(data.starts)
    allowed = np.repeat([group.length for group in file.groups], [group.rows for group in file.groups])
    for row in np.flatnonzero(lengths > allowed)[:1]:
        raise InputError(
            f"shard {data.shard}: row {row} has {lengths[row]} tokens; its group's length is {allowed[row]}."
        )
    for at in np.flatnonzero((data.ids >= vocab_size) | (data.ids < 0))[:1]:
        row = int(np.searchsorted(data.starts, at, side="right")) - 1
        raise InputError(
            f"shard {data.shard}: row {row} holds the token id {data.ids[at]}, but the vocabulary has {vocab_size} entries. "
            "The shard was made with another tokenizer."
        )


class Reader:
    """Shards by id, the most recently used ones kept, up to ``capacity`` bytes of ids."""

    def __init__(self, vocab_size: int, capacity: int = 1 << 30) -> None:
        self.vocab_size, self.capacity = vocab_size, capacity
        self._files: dict[str, ShardFile] = {}
        self._kept: OrderedDict[str, ShardData] = OrderedDict()

    def know(self, files: Iterable[ShardFile]) -> None:
        """From now on these shards can be asked for."""
        self._files |= {file.shard: file for file in files}

    def shard(self, shard: str) -> ShardData:
        """Raises InputError when the shard is unknown or cannot be used (see :func:`read`)."""
        if shard not in self._kept:
            if shard not in self._files:
                raise InputError(f"shard {shard} is in the plan, but the window's file does not say where it lies.")
            self._kept[shard] = read(self._files[shard], self.vocab_size)
        self._kept.move_to_end(shard)
        while len(self._kept) > 1 and sum(data.ids.nbytes for data in self._kept.values()) > self.capacity:
            self._kept.popitem(last=False)
        return self._kept[shard]
