"""Where sentences end, for a whole batch at once.

A sentence ends after its mark and the quotes and brackets that close behind it, or with its line. A Latin full stop
counts before a blank only (3.5 and example.com go on).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mindstream_tokenizer.batch import Batch

MARK, CLOSING, STOP, LINE, BLANK = 1, 2, 4, 8, 16
_KINDS = np.zeros(0x10000, np.uint8)
_KINDS[[ord(c) for c in "。？！!?"]] = MARK
_KINDS[[ord(c) for c in '”’」』）)"】》〕']] = CLOSING
_KINDS[[p for p in range(0x10000) if chr(p).isspace()]] = BLANK
_KINDS[ord(".")] = STOP
_KINDS[ord("\n")] |= LINE


def ends(batch: Batch) -> npt.NDArray[np.int32]:
    """For each end of a sentence, how many of the batch's tokens lie before it; ascending."""
    kinds = _KINDS[np.minimum(batch.points, 0xFFFF)]
    kinds[batch.chars[1:] - 1] = 0  # the newlines between the texts are not theirs
    before_blank = np.zeros(len(kinds), bool)
    before_blank[:-1] = (kinds[1:] & BLANK) != 0
    marks = np.flatnonzero((kinds == MARK) | ((kinds == STOP) & before_blank))
    others = np.flatnonzero(kinds != CLOSING)  # what stands behind the last text is one
    behind = others[np.searchsorted(others, marks + 1)] if len(marks) else marks
    lines = np.flatnonzero(kinds & LINE) + 1
    found: npt.NDArray[np.int32] = np.unique(batch.done[np.concatenate((behind, lines)) - 1])
    return found
