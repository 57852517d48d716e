"""A document's tokens cut into rows: at the ends of sentences, inside one only where it is longer than a row."""

from __future__ import annotations

import re

import numpy as np

from mindstream_tokenizer.encoder import Encoded

# A sentence ends after its mark and the quotes and brackets that close behind it, or with its line. A Latin full stop
# counts before a blank only (3.5 and example.com go on).
SENTENCE_END = re.compile(r"""(?:[。？！!?]|\.(?=\s))[”’」』）)"】》〕]*|\n""")


def cut(text: str, encoded: Encoded, capacity: int) -> list[tuple[int, int]]:
    """Rows of at most ``capacity`` tokens as half-open spans; together they are every token, in order.

    Each row takes as many whole sentences as fit.
    """
    total = len(encoded.ids)
    if total <= capacity:
        return [(0, total)] if total else []
    positions = np.fromiter((match.end() for match in SENTENCE_END.finditer(text)), np.int32)
    cuts = np.searchsorted(encoded.ends, positions, side="right")  # tokens that lie before each sentence's end
    spans = []
    start = 0
    while total - start > capacity:
        at = int(np.searchsorted(cuts, start + capacity, side="right"))
        stop = int(cuts[at - 1]) if at else 0
        if stop <= start:
            stop = start + capacity
        spans.append((start, stop))
        start = stop
    spans.append((start, total))
    return spans
