"""Why a document is dropped: every reason of this stage, by the rule that gives it."""

from __future__ import annotations

MOJIBAKE = "mojibake"  # encoding: decoded wrongly before it came here, beyond repair
LANGUAGE = "language"  # language: fewer Hanzi among its letters than cleaning.language asks for
EMPTY = "empty"  # length: nothing left after cleaning
SYMBOLS_ONLY = "symbols_only"  # length: digits, punctuation and signs, no letter of any script
TOO_SHORT = "too_short"  # length: fewer letters and digits than cleaning.length.minimum
TOO_LONG = "too_long"  # length: more characters than cleaning.length.maximum
REPETITION = "repetition"  # repetition: the same lines or passages over and over
SENSITIVE = "sensitive"  # sensitive: holds a word of the lists
PERSONAL_DATA = "personal_data"  # personal_data: holds a kind that is set to drop
EXACT_DUPLICATE = "exact_duplicate"  # the same cleaned text was kept before
NEAR_DUPLICATE = "near_duplicate"  # a text much like it was kept before

REASONS = (
    MOJIBAKE, LANGUAGE, EMPTY, SYMBOLS_ONLY, TOO_SHORT, TOO_LONG, REPETITION, SENSITIVE, PERSONAL_DATA,
    EXACT_DUPLICATE, NEAR_DUPLICATE,
)  # fmt: skip
