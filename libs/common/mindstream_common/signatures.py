"""Signatures of documents: how alike are two of them? The same arithmetic as in ``claims.lua``, for tests and people.

A signature is, in this order:

* 4 bytes: the number n of different 5-grams, little endian;
* 128 bytes: an odd sketch of 1024 bits over one 5-gram in 2^L, those whose hash has L given bits 0. The level L is the
  least with n / 2^L <= 1024: longer documents are sampled;
* 64 bytes, when n > 0.7 * 1024 * 2^L: an odd sketch of 512 bits at level L + 1, because a document as long as this one
  may lie on the other side of the boundary. A sketch of 1024 bits folds to one of 512 by XOR of its halves.

If d 5-grams of those that are sampled lie in one document only, the bits that differ are m/2 (1 - e^(-2d/m)) of m on
average (Mitzenmacher, Pagh and Pham 2014, section 4), and with s the sum of both numbers the Jaccard index is
(s - d) / (s + d).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BITS = 1024
MOST = 1024  # 5-grams in a sketch
HALF_FROM = 0.7  # of the most that a level takes: from here on the sketch of the next level is there too
SIZES = (4 + BITS // 8, 4 + BITS // 8 + BITS // 16)  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketches:
    """The sketches of a batch: for each document ``bands`` bands of 8 bytes and a signature, or ``b""``. Documents
    that share a band are similar when their signatures give a Jaccard index of at least ``threshold``."""

    threshold: float
    bands: int
    of: Sequence[bytes]

    def signature(self, row: int) -> bytes:
        """The signature of a document. Raises ValueError when the sketch is of another length."""
        signature = self.of[row][8 * self.bands :]
        if self.of[row] and len(signature) not in SIZES:
            raise ValueError(f"a sketch has {len(self.of[row])} bytes, not {self.bands} bands and a signature")
        return signature

    def bands_of(self, row: int) -> list[bytes]:
        """The bands of a document."""
        return [self.of[row][at : at + 8] for at in range(0, min(8 * self.bands, len(self.of[row])), 8)]


def similarity(one: bytes, other: bytes) -> float:
    """The estimated Jaccard index; 0 when it is out of reach of an estimate, that is below about 0.6."""
    sizes = [int.from_bytes(signature[:4], "little") for signature in (one, other)]
    levels = [max(0, math.ceil(math.log2(max(size, 1) / MOST))) for size in sizes]
    level, bits = max(levels), BITS
    if levels[0] == levels[1]:
        differ = _differ(one[4 : 4 + BITS // 8], other[4 : 4 + BITS // 8])
    else:
        low, high = (one, other) if levels[0] < levels[1] else (other, one)
        bits //= 2
        half = low[4 + BITS // 8 :]
        if abs(levels[0] - levels[1]) > 1 or not half:
            return 0.0
        middle = 4 + bits // 8
        folded = int.from_bytes(high[4:middle], "big") ^ int.from_bytes(high[middle : middle + bits // 8], "big")
        differ = _differ(half, folded.to_bytes(bits // 8, "big"))
    if 2 * differ >= bits:
        return 0.0
    alone = -bits / 2 * math.log(1 - 2 * differ / bits)
    total = sum(sizes) / (1 << level)
    return min(max(0.0, (total - alone) / (total + alone)), min(sizes) / max(sizes))


def _differ(one: bytes, other: bytes) -> int:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).bit_count()
