"""Rows of MindRecord shards, by number. A shard is read once, as a whole, and stays in memory while there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from mindspore.mindrecord import FileReader
from mindstream_common.errors import InputError

from mindstream_trainer.rundir import ShardFile

DTYPES = {"uint16": "<u2", "int32": "<i4"}


class Span(NamedTuple):
    """Where a document's tokens stand in a row: from ``start``, before ``stop``."""

    document: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ShardData:
    """A shard in memory: the ids of all rows one after the other, where each row begins (int64 [rows + 1]), and the name
    of what each row holds (see :meth:`spans`). ``opens`` (int32 [rows]) counts the documents whose first row it is.
    ``words``, bool like ``ids``, marks ids that continue the word before them; None: the shard does not say."""

    shard: str
    ids: np.ndarray = field(repr=False)
    starts: np.ndarray = field(repr=False)
    documents: list[str] = field(repr=False)
    opens: np.ndarray = field(repr=False)
    words: np.ndarray | None = field(repr=False, default=None)

    def row(self, number: int) -> np.ndarray:
        """The ids of a row, with special tokens, without padding. Raises InputError when there is no such row."""
        ids: np.ndarray = self.ids[self._place(number)]
        return ids

    def continues(self, number: int) -> np.ndarray:
        """For each id of a row whether it continues the word before it. Raises InputError when the shard does not say."""
        if self.words is None:
            raise InputError(
                f"shard {self.shard} has no marks of words, and trainer.whole_word is on: set tokenizer.whole_word and "
                "send the texts through again, or set trainer.whole_word to false."
            )
        marks: np.ndarray = self.words[self._place(number)]
        return marks

    def spans(self, number: int) -> list[Span]:
        """The documents of a row. A row of one document is named by its id; a row of several names each of them as
        ``<id>@<start>-<stop>``, with blanks between."""
        name = self.documents[number]
        if "@" not in name:
            return [Span(name, 1, len(self.row(number)) - 1)]
        parts = [part.rsplit("@", 1) for part in name.split(" ")]
        return [Span(document, *map(int, span.split("-"))) for document, span in parts]

    def _place(self, number: int) -> slice:
        if not 0 <= number < len(self.documents):
            raise InputError(f"shard {self.shard} has {len(self.documents)} rows; row {number} was asked for.")
        return slice(int(self.starts[number]), int(self.starts[number + 1]))


def read(file: ShardFile, vocab_size: int) -> ShardData:
    """Read a shard whole.

    Raises:
        InputError: the file cannot be read, has other rows than its groups say, a row is longer than its group's
            length, or holds an id that the vocabulary lacks (with shard, row and id).
    """
    try:
        reader = FileReader(file.path)
        records = list(reader.get_next())
        reader.close()
    except Exception as error:  # MindSpore raises RuntimeError, TypeError, MRM*Error ...
        raise InputError(f"cannot read the MindRecord file {file.path} of shard {file.shard}: {error}") from error
    kind = np.dtype(DTYPES[file.dtype])
    sizes, documents = _rows(records, kind)
    promised = sum(group.rows for group in file.groups)
    if not len(sizes) == len(documents) == promised:
        raise InputError(f"shard {file.shard} ({file.path}) has {len(sizes)} rows, but its groups name {promised}.")
    data = b"".join(record["tokens"] for record in records)
    if len(data) != int(sizes.sum()) * kind.itemsize:
        raise InputError(f"shard {file.shard} ({file.path}) holds {len(data)} bytes of ids, no {file.dtype} for each.")
    starts = np.concatenate([[0], np.cumsum(sizes)])
    found = ShardData(
        file.shard, np.frombuffer(data, kind), starts, documents, _opens(documents), _words(records, sizes)
    )
    _check(found, file, vocab_size)
    return found


def _rows(records: list[dict[str, Any]], kind: np.dtype) -> tuple[np.ndarray, list[str]]:
    """Tokens of each row (int64 [rows]), and the rows' names. Older shards have a record for each row."""
    if records and "sizes" not in records[0]:
        sizes = np.array([len(record["tokens"]) // kind.itemsize for record in records], np.int64)
        return sizes, [record["document"] for record in records]
    sizes = np.frombuffer(b"".join(record["sizes"] for record in records), "<i4").astype(np.int64)
    return sizes, [name for record in records for name in record["documents"].split("\n")]


def _words(records: list[dict[str, Any]], sizes: np.ndarray) -> np.ndarray | None:
    if not records or "words" not in records[0]:
        return None
    marks = []
    row = 0
    for record in records:
        rows = len(record["sizes"]) // 4
        count = int(sizes[row : row + rows].sum())
        marks.append(np.unpackbits(np.frombuffer(record["words"], np.uint8), count=count).astype(bool))
        row += rows
    return np.concatenate(marks)


def _opens(documents: list[str]) -> np.ndarray:
    opens = np.zeros(len(documents), np.int32)
    seen: set[str] = set()
    for row, name in enumerate(documents):
        for part in name.split(" "):
            document = part.rsplit("@", 1)[0]
            if document not in seen:
                seen.add(document)
                opens[row] += 1
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
