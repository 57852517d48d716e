"""A document on its way through the rules, and what a rule may say about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Page:
    """``text`` as the rules so far have made it; ``format`` is ``html`` until it has been made text.

    ``counts`` is what the rules count (``masked_mobile``); it is stored in the shard's manifest.
    """

    text: str
    format: str = "text"
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a document is dropped: one of :data:`mindstream_cleaning.reasons.REASONS`, and what it was measured against."""

    reason: str
    detail: str = ""


# A rule may change the page. It returns why the document is to be dropped, or None. It must not raise.
Rule = Callable[[Page], Verdict | None]
