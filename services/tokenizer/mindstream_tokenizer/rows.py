"""Documents' tokens cut into rows, at the ends of sentences where that is possible."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mindstream_tokenizer.batch import Ids, Places

Groups = Sequence[Sequence[int]]
SLACK = 16  # a full row may leave one in so many places empty, to end with a sentence


@dataclass(frozen=True, slots=True)
class Spans:
    """Pieces of documents: span *i* holds tokens ``starts[i]`` to ``stops[i]`` of the shard, which are of document
    ``documents[i]``, and stands in row ``rows[i]``; rows ascend from 0."""

    rows: list[int] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)

    def add(self, row: int, document: int, start: int, stop: int) -> None:
        """One more span."""
        self.rows.append(row)
        self.documents.append(document)
        self.starts.append(start)
        self.stops.append(stop)


def single(tokens: Sequence[int], ends: Sequence[int], capacity: int) -> Spans:
    """Rows of one document each; a document has as many as it needs.

    Each row takes as many whole sentences as fit into ``capacity`` tokens; a sentence is cut only where it is longer.
    ``tokens`` [documents + 1] says where each document begins, ``ends`` where sentences end.
    """
    spans = Spans()
    row = 0
    for document in range(len(tokens) - 1):
        start, last = tokens[document], tokens[document + 1]
        while start < last:
            stop = last
            if last - start > capacity:
                at = bisect_right(ends, start + capacity)
                stop = ends[at - 1] if at and ends[at - 1] > start else start + capacity
            spans.add(row, document, start, stop)
            start, row = stop, row + 1
    return spans


def full(tokens: Sequence[int], ends: Sequence[int], length: int, special: tuple[int, int], groups: Groups) -> Spans:
    """Rows filled across documents (FULL-SENTENCES of Liu et al. 2019, "RoBERTa", section 4.2); none has documents of two
    ``groups``.

    ``special`` counts the special tokens before a row's first document and after each. A row ends with a sentence when
    that leaves at most one place in SLACK empty, else it is filled to the last place.
    """
    spans = Spans()
    for group in groups:
        _fill(spans, tokens, ends, length, special, group)
    return spans


def _fill(
    spans: Spans,
    tokens: Sequence[int],
    ends: Sequence[int],
    length: int,
    special: tuple[int, int],
    group: Sequence[int],
) -> None:
    begin, end = special
    slack = length // SLACK
    row, room = spans.rows[-1] + 1 if spans.rows else 0, length - begin
    for document in group:
        start, last = tokens[document], tokens[document + 1]
        while start < last:
            capacity = room - end
            if room < length - begin and capacity <= min(slack, last - start - 1):  # not worth a beginning
                row, room = row + 1, length - begin
                continue
            stop = min(last, start + capacity)
            if stop < last:
                at = bisect_right(ends, stop)
                if at and ends[at - 1] > start and stop - ends[at - 1] <= slack:
                    stop = ends[at - 1]
            spans.add(row, document, start, stop)
            room -= stop - start + end
            if stop < last:
                row, room = row + 1, length - begin
            start = stop


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows as they are stored: ``ids`` of all rows one after the other, ``starts`` [rows + 1]; ``special``, bool like
    ``ids``; ``order`` int32: which of the shard's tokens stand in the other places; ``places`` [spans], where a span's
    tokens begin in ``ids``."""

    ids: Ids
    starts: Places
    special: npt.NDArray[np.bool_]
    order: Ids
    places: Places

    def spread(self, marks: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Marks of the shard's tokens, laid out as ``ids``; False at special tokens and where a span begins."""
        laid = np.zeros(len(self.ids), bool)
        laid[~self.special] = marks[self.order]
        laid[self.places] = False
        return laid


def lay_out(ids: Ids, spans: Spans, begin: Sequence[int], end: Sequence[int]) -> Layout:
    """Put special tokens around the spans: ``begin`` before a row, ``end`` after every span."""
    starts, sizes = np.array(spans.starts, np.int64), np.array(spans.stops, np.int64) - spans.starts
    first = np.diff(np.array(spans.rows, np.int64), prepend=-1) > 0
    lengths = sizes + len(end) + len(begin) * first
    after = np.cumsum(lengths)
    places = after - sizes - len(end)
    total = int(after[-1]) if len(after) else 0
    laid, special = np.empty(total, np.int32), np.zeros(total, bool)
    for offset, id in enumerate(begin):
        laid[places[first] - len(begin) + offset] = id
        special[places[first] - len(begin) + offset] = True
    for offset, id in enumerate(end):
        laid[places + sizes + offset] = id
        special[places + sizes + offset] = True
    order = np.arange(int(sizes.sum()), dtype=np.int32)
    order += np.repeat((starts - (np.cumsum(sizes) - sizes)).astype(np.int32), sizes)
    laid[~special] = ids[order]
    return Layout(laid, np.concatenate(((after - lengths)[first], [total])), special, order, places)
