"""Texts that were encoded together, and what every encoder offers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """N texts, one after the other in ``text``, each followed by a newline.

    ``points`` uint32 [characters] are its code points, ``chars`` int64 [N + 1] where each text begins in it, ``ids``
    int32 [tokens] those of all texts, without special tokens. ``done`` [characters]: how many tokens belong to words
    that have ended with that character or before. ``begins`` and ``ends`` int64 [tokens]: the characters of the word that
    a token belongs to, half-open; None unless they were asked for.
    """

    text: str
    points: npt.NDArray[np.uint32]
    chars: Places
    ids: Ids
    done: npt.NDArray[np.int32]
    begins: Places | None = None
    ends: Places | None = None

    @property
    def tokens(self) -> Places:
        """Where each text's tokens begin in ``ids``, int64 [N + 1]."""
        return np.concatenate(([0], self.done[self.chars[1:] - 1])).astype(np.int64)


class TokenEncoder(Protocol):
    """``entries`` counts the vocabulary, ``sha256`` is its file's. A row is ``begin``, then for each of its documents the
    tokens and ``end``. ``unknown`` is the id for what cannot be spelt, -1 where everything can."""

    entries: int
    sha256: str
    unknown: int
    begin: tuple[int, ...]
    end: tuple[int, ...]

    def encode(self, texts: Sequence[bytes], positions: bool = False) -> Batch:
        """Encode UTF-8 texts; a special token's name in a text stays text."""
        ...


def join(texts: Sequence[bytes]) -> tuple[str, npt.NDArray[np.uint32], Places]:
    """``text``, ``points`` and ``chars`` of a :class:`Batch`."""
    joined = (b"\n".join(texts) + b"\n").decode() if texts else ""
    points = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
    if len(points) == sum(map(len, texts)) + len(texts):  # ASCII alone
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    else:
        lengths = np.fromiter((len(text.decode()) for text in texts), np.int64, len(texts))
    return joined, points, np.concatenate(([0], np.cumsum(lengths + 1))).astype(np.int64)
