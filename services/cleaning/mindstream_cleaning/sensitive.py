"""Rule ``sensitive``: words of lists are masked, or the documents that hold them dropped."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from mindstream_common.config import Section
from mindstream_common.errors import ConfigError

from mindstream_cleaning.page import Page, Rule, Verdict
from mindstream_cleaning.reasons import SENSITIVE


class SensitiveConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``files``: lists of words, UTF-8, one a line (empty lines and lines that begin with ``#`` do not count); a path
    is relative to the run's file. ``words``: more of them. ``action``: ``mask`` writes a ``*`` for each character,
    ``drop`` drops the document as ``sensitive``. Without words nothing is done."""

    enabled: bool = True
    files: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    action: Literal["mask", "drop"] = "mask"

    def __post_init__(self) -> None:
        for name in self.files:
            if not Path(name).is_file():
                raise ConfigError(f"files: {name} is not there. Name a UTF-8 file of one word a line.")


def load(config: SensitiveConfig) -> tuple[str, ...]:
    """All words, sorted, each once. Raises ConfigError when a file cannot be read."""
    found = set(config.words) - {""}
    for name in config.files:
        try:
            lines = Path(name).read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"cleaning.sensitive.files: {name} cannot be read as UTF-8 text: {error}. Name a file of one word a line."
            ) from error
        found |= {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    return tuple(sorted(found))


def digest(words: tuple[str, ...]) -> str:
    """sha256 (hex) of the words: another list gives other texts, so it is part of the stage's configuration."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def rule(config: SensitiveConfig, words: tuple[str, ...]) -> Rule:
    """Masks or drops."""
    if not words:
        return lambda page: None
    from ahocorasick_rs import AhoCorasick, MatchKind  # only where words are given

    automaton = AhoCorasick(words, matchkind=MatchKind.LeftmostLongest)

    def apply(page: Page) -> Verdict | None:
        found = automaton.find_matches_as_indexes(page.text)
        if not found:
            return None
        if config.action == "drop":
            return Verdict(SENSITIVE, f"holds {words[found[0][0]]!r}, {len(found)} such words in all")
        page.text = _mask(page.text, [(start, end) for _, start, end in found])
        page.counts["masked_sensitive"] += len(found)
        return None

    return apply


def _mask(text: str, spans: list[tuple[int, int]]) -> str:
    parts: list[str] = []
    at = 0
    for start, end in spans:
        parts += (text[at:start], "*" * (end - start))
        at = end
    return "".join([*parts, text[at:]])
