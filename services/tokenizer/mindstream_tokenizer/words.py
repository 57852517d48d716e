"""Which tokens continue the word before them, for whole-word masking.

Words are jieba's (its dictionary and hidden Markov model, in Rust: rjieba). A document in which one of their borders
falls inside what the tokenizer takes for one word (two emoji side by side, Latin letters with accents) is marked by
characters: no token continues another.
"""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt
import rjieba

from mindstream_tokenizer.batch import Batch


def continues(batch: Batch) -> tuple[npt.NDArray[np.bool_], list[int]]:
    """bool [tokens], and which texts cannot be marked: what the marks say of those means nothing. The batch must have
    positions."""
    assert batch.begins is not None
    assert batch.ends is not None
    border = _borders(batch)
    word = np.cumsum(border, dtype=np.int32)  # of each character
    first, last = word[batch.begins], word[batch.ends - 1]
    tokens = batch.tokens
    marks = np.zeros(len(batch.ids), bool)
    marks[1:] = first[1:] == last[:-1]
    broken = np.unique(np.searchsorted(tokens, np.flatnonzero(first != last), side="right") - 1)
    return marks, broken.tolist()


def _borders(batch: Batch) -> npt.NDArray[np.bool_]:
    """True at each character that begins a word. The newline behind each text is a word of its own."""
    chars = batch.chars.tolist()
    words = chain.from_iterable([*map(len, rjieba.cut(batch.text[a : b - 1])), 1] for a, b in pairwise(chars))
    sizes = np.fromiter(words, np.int64)
    starts = np.cumsum(sizes) - sizes
    border = np.zeros(len(batch.points), bool)
    border[starts] = True
    assert int(sizes.sum()) == len(border), "jieba's words are not the text"
    return border
