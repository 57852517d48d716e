"""Which characters are letters and which of them Hanzi, from Unicode's properties, as one table of a byte each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LETTER, HANZI = 1, 2
_TOGETHER = 1 << 18  # characters
_LETTERS = re.compile(r"[^\W\d_]+")
# Unified ideographs with their extensions A-H, compatibility ideographs, and 〇.
_HANZI = ((0x3007, 0x3008), (0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, 0x323B0))


class Letters(NamedTuple):
    """How many letters (of any script, Hanzi among them) and how many Hanzi a text has."""

    letters: int
    hanzi: int

    @property
    def hanzi_share(self) -> float:
        """Hanzi among the letters, 0 to 1; 0 without letters."""
        return self.hanzi / self.letters if self.letters else 0.0


@cache
def _table() -> NDArray[np.uint8]:
    """For each code point 0, :data:`LETTER`, or both bits."""
    table = np.zeros(0x110000, np.uint8)
    for run in _LETTERS.finditer("".join(map(chr, range(0x110000)))):
        table[run.start() : run.end()] = LETTER
    for first, end in _HANZI:
        table[first:end] = LETTER | HANZI
    return table


def code_points(text: str) -> NDArray[np.uint32]:
    """The text's code points, uint32."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def count(text: str) -> Letters:
    """Count them."""
    return count_all([text])[0]


def count_all(texts: Sequence[str]) -> list[Letters]:
    """Count them in each text: for short texts together is several times faster than one by one."""
    found: list[Letters] = []
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size > _TOGETHER:
            found += _count(batch)
            batch, size = [], 0
    return found + (_count(batch) if batch else [])


def _count(texts: list[str]) -> list[Letters]:
    kinds = _table()[code_points("\n".join([*texts, ""]))]  # each text has an end, so that none is empty
    starts = np.cumsum([0] + [len(text) + 1 for text in texts[:-1]])
    letters = np.add.reduceat(kinds & LETTER, starts, dtype=np.int64)
    hanzi = np.add.reduceat(kinds >> 1, starts, dtype=np.int64)
    return [Letters(*pair) for pair in zip(letters.tolist(), hanzi.tolist(), strict=True)]
