"""Rule ``language``: texts with too few Hanzi among their letters are dropped."""

from __future__ import annotations

from typing import Annotated

from mindstream_common.config import Section
from msgspec import Meta

from mindstream_cleaning import letters
from mindstream_cleaning.page import Page, Rule, Verdict
from mindstream_cleaning.reasons import LANGUAGE


class LanguageConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``minimum_hanzi_share``: of the letters (any script; digits and signs do not count), at least this share must be
    Hanzi. 0 keeps everything. A text of fewer than ``minimum_letters`` is not judged."""

    enabled: bool = True
    minimum_hanzi_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    minimum_letters: Annotated[int, Meta(ge=1)] = 20


def rule(config: LanguageConfig) -> Rule:
    """Drops as ``language``."""

    def apply(page: Page) -> Verdict | None:
        if not config.minimum_hanzi_share:
            return None
        found = letters.count(page.text)
        if found.letters < config.minimum_letters or found.hanzi_share >= config.minimum_hanzi_share:
            return None
        return Verdict(
            LANGUAGE,
            f"{found.hanzi} of {found.letters} letters are Hanzi ({found.hanzi_share:.3f}), "
            f"cleaning.language.minimum_hanzi_share is {config.minimum_hanzi_share}",
        )

    return apply
