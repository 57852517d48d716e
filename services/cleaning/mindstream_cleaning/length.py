"""Rule ``length``: texts that are empty, hold nothing but digits and signs, or are too short or too long are dropped."""

from __future__ import annotations

import re
from itertools import islice
from typing import Annotated

from mindstream_common.config import Section
from msgspec import Meta

from mindstream_cleaning.page import Page, Rule, Verdict
from mindstream_cleaning.reasons import EMPTY, SYMBOLS_ONLY, TOO_LONG, TOO_SHORT

_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W_]")


class LengthConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``minimum``: a cleaned text with fewer letters, Hanzi and digits is dropped as ``too_short``. Five, because the
    shortest thing that teaches a language model anything is a clause; ``好`` and ``谢谢医生`` are none.
    ``maximum``: one with more characters is dropped as ``too_long``; left out, none is."""

    enabled: bool = True
    minimum: Annotated[int, Meta(ge=1)] = 5
    maximum: Annotated[int, Meta(ge=1)] | None = None


def rule(config: LengthConfig) -> Rule:
    """Drops as ``empty``, ``symbols_only``, ``too_short`` or ``too_long``."""

    def apply(page: Page) -> Verdict | None:
        text = page.text
        if not text:
            return Verdict(EMPTY)
        if not _LETTER.search(text):
            return Verdict(SYMBOLS_ONLY)
        found = sum(1 for _ in islice(_WORD.finditer(text), config.minimum))
        if found < config.minimum:
            return Verdict(TOO_SHORT, f"{found} letters and digits, cleaning.length.minimum is {config.minimum}")
        if config.maximum is not None and len(text) > config.maximum:
            return Verdict(TOO_LONG, f"{len(text)} characters, cleaning.length.maximum is {config.maximum}")
        return None

    return apply
