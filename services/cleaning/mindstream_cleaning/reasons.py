"""Why a document is dropped: every reason of this stage, and the tests that need only the text."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindstream_cleaning.config import CleaningConfig

EMPTY = "empty"  # nothing left after cleaning
SYMBOLS_ONLY = "symbols_only"  # digits, punctuation and signs, no letter of any script
TOO_SHORT = "too_short"  # fewer than cleaning.min_characters letters and digits
MOJIBAKE = "mojibake"  # decoded wrongly before it came here, beyond repair
EXACT_DUPLICATE = "exact_duplicate"  # the same cleaned text was kept before
NEAR_DUPLICATE = "near_duplicate"  # a text much like it was kept before

REASONS = (EMPTY, SYMBOLS_ONLY, TOO_SHORT, MOJIBAKE, EXACT_DUPLICATE, NEAR_DUPLICATE)

_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W_]")


def reason_of(text: str, config: CleaningConfig) -> tuple[str, str]:
    """(reason, detail) to drop a cleaned text, or ``("", "")`` to keep it."""
    if not text:
        return EMPTY, ""
    if not _LETTER.search(text):
        return SYMBOLS_ONLY, ""
    found = sum(1 for _ in islice(_WORD.finditer(text), config.min_characters))
    if found < config.min_characters:
        return TOO_SHORT, f"{found} letters and digits, cleaning.min_characters is {config.min_characters}"
    return "", ""
