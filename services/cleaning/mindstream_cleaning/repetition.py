"""Rule ``repetition``: texts that say the same lines or passages over and over are dropped.

The measures are those of Rae et al. 2021 ("Scaling Language Models: ... Gopher", appendix A.1.1): the share of
characters in lines that came before, and the share of n-grams that came before, here n-grams of characters.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import zstandard
from mindstream_common.config import Section
from msgspec import Meta

from mindstream_cleaning import letters
from mindstream_cleaning.page import Page, Rule, Verdict
from mindstream_cleaning.reasons import REPETITION

Share = Annotated[float, Meta(ge=0, le=1)]
LINES = 6  # fewer lines are not judged by lines
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class RepetitionConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``repeated_lines``: most characters that may be in lines that came before (share of all). ``repeated_ngrams``:
    most n-grams of ``ngram`` characters that may have come before (share of all). 1 switches a measure off. Texts of
    fewer than ``minimum_characters`` are not judged."""

    enabled: bool = True
    repeated_lines: Share = 0.5
    repeated_ngrams: Share = 0.6
    ngram: Annotated[int, Meta(ge=2, le=64)] = 10
    minimum_characters: Annotated[int, Meta(ge=1)] = 100


def rule(config: RepetitionConfig) -> Rule:
    """Drops as ``repetition``."""
    # A fast compressor finds repetition at 400 MB/s; only what it can shorten well is counted exactly. Of a text in
    # which a share s of the n-grams has come before, hardly more than 1 - s is left.
    gate = 0.9 / (1 - config.repeated_ngrams) if config.repeated_ngrams < 1 else None
    compressor = zstandard.ZstdCompressor(level=-1, write_checksum=False, write_content_size=False)

    def apply(page: Page) -> Verdict | None:
        text = page.text
        if len(text) < config.minimum_characters:
            return None
        share = repeated_lines(text) if config.repeated_lines < 1 else 0.0
        if share > config.repeated_lines:
            return Verdict(REPETITION, _detail(share, "characters are in lines", "lines", config.repeated_lines))
        if gate is None:
            return None
        data = text.encode("utf-8", "surrogatepass")
        if len(data) < gate * len(compressor.compress(data)):
            return None
        share = repeated_ngrams(text, config.ngram)
        if share > config.repeated_ngrams:
            return Verdict(
                REPETITION, _detail(share, f"{config.ngram}-grams are ones", "ngrams", config.repeated_ngrams)
            )
        return None

    return apply


def repeated_lines(text: str) -> float:
    """The share of characters in lines that came before; 0 for fewer than :data:`LINES` lines."""
    lines = text.split("\n")
    if len(lines) < LINES:
        return 0.0
    once = set(lines)
    if len(once) == len(lines):
        return 0.0
    return 1 - sum(map(len, once)) / max(1, sum(map(len, lines)))


def repeated_ngrams(text: str, n: int) -> float:
    """The share of n-grams of characters that came before (by a 64-bit hash); 0 when the text is shorter than n."""
    points = letters.code_points(text).astype(np.uint64)
    total = len(points) - n + 1
    if total < 1:
        return 0.0
    hashes = np.zeros(total, np.uint64)
    for offset in range(n):
        hashes *= _FACTOR
        hashes += points[offset : offset + total]
        hashes ^= hashes >> np.uint64(29)
    hashes.sort()
    return float(np.count_nonzero(hashes[1:] == hashes[:-1])) / total


def _detail(share: float, what: str, key: str, most: float) -> str:
    return f"{share:.2f} of the {what} that came before, cleaning.repetition.repeated_{key} is {most}"
