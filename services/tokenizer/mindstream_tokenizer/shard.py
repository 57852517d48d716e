"""A clean shard, read and encoded: columns, not objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from mindstream_tokenizer import sentences
from mindstream_tokenizer.batch import Ids, Places, TokenEncoder

PIECE = 1 << 20  # bytes: a longer text is encoded in pieces
FULL_STOP = "。".encode()
BATCH = 1 << 19  # bytes of text that are encoded together: they stay in the processor's cache


@dataclass(frozen=True, slots=True)
class Shard:
    """N documents: their ``names``, ``sources`` and ``texts``; ``tokens`` int64 [N + 1], where each begins in ``ids``
    (int32, without special tokens); ``ends``, how many tokens lie before each end of a sentence; ``words``, bool like
    ``ids``, what continues the word before it (None: not asked for), and how many documents ``fell_back`` to characters.
    """

    names: pa.Array
    sources: pa.Array
    texts: Sequence[bytes]
    ids: Ids
    tokens: Places
    ends: Places
    words: npt.NDArray[np.bool_] | None
    fell_back: int

    @property
    def hashes(self) -> list[int]:
        """64 bits of each text."""
        return [xxhash.xxh3_64_intdigest(text) for text in self.texts]

    def document(self, number: int) -> dict[str, str]:
        """What the ledger of drops keeps of a document."""
        text = self.texts[number].decode()
        return {"document": self.names[number].as_py(), "source": self.sources[number].as_py(), "text": text}


def read(paths: Sequence[Path], encoder: TokenEncoder, whole_word: bool) -> Shard:
    """Read clean documents and encode them."""
    tables = [pq.read_table(path, columns=["id", "source", "text"]) for path in paths]
    documents = pa.concat_tables(tables).combine_chunks()
    names, sources = (_column(documents, name, pa.string()) for name in ("id", "source"))
    texts = _column(documents, "text", pa.large_binary()).to_pylist()
    pieces = [_pieces(text) for text in texts]
    first = np.cumsum([0, *map(len, pieces)])  # of each document's pieces
    ids, tokens, ends, words = [np.zeros(0, np.int32)], [np.zeros(1, np.int64)], [np.zeros(0, np.int64)], []
    before = done = 0
    broken: list[int] = []
    for some in _batches(list(chain.from_iterable(pieces))):
        batch = encoder.encode(some, positions=whole_word)
        ids.append(batch.ids)
        tokens.append(batch.tokens[1:] + before)
        ends.append(sentences.ends(batch).astype(np.int64) + before)
        if whole_word:
            from mindstream_tokenizer.words import continues  # its dictionary takes 50 MB

            marks, unmarked = continues(batch)
            words.append(marks)
            broken += [done + piece for piece in unmarked]
        before, done = before + len(batch.ids), done + len(some)
    starts = np.concatenate(tokens)[first]
    fell_back = np.unique(np.searchsorted(first, broken, side="right") - 1).tolist()
    marked = np.concatenate([np.zeros(0, bool), *words]) if whole_word else None
    for document in fell_back:
        marked[starts[document] : starts[document + 1]] = False  # type: ignore[index]
    joined = (np.concatenate(ids), starts, np.concatenate(ends))
    return Shard(names, sources, texts, *joined, marked, len(fell_back))


def _pieces(text: bytes) -> list[bytes]:
    """A text, cut where it is longer than PIECE so that memory stays bounded: behind a line, else behind a sentence or a
    blank, else between two characters (then a word of a million bytes becomes two)."""
    found, start = [], 0
    while len(text) - start > PIECE:
        stop = start + PIECE
        at = _behind(text, b"\n", start, stop) or max(_behind(text, c, start, stop) for c in (FULL_STOP, b" "))
        if not at:
            at = stop
            while text[at] & 0xC0 == 0x80:  # inside a character
                at -= 1
        found.append(text[start:at])
        start = at
    return [*found, text[start:]]


def _behind(text: bytes, mark: bytes, start: int, stop: int) -> int:
    """Where the last ``mark`` ends, 0 where there is none."""
    at = text.rfind(mark, start, stop)
    return at + len(mark) if at >= 0 else 0


def _column(table: pa.Table, name: str, type: pa.DataType) -> pa.Array:
    column = table[name].cast(type)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], type)])


def _batches(texts: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    start = size = 0
    for number, text in enumerate(texts):
        if size and size + len(text) > BATCH:
            yield texts[start:number]
            start, size = number, 0
        size += len(text)
    if start < len(texts):
        yield texts[start:]
