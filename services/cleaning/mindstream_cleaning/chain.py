"""The chain of rules, in the order of the configuration, each counted by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from mindstream_common import ids
from mindstream_common.documents import Document

from mindstream_cleaning import (
    characters,
    html,
    language,
    length,
    mojibake,
    personal,
    repetition,
    sensitive,
    simplified,
)
from mindstream_cleaning.config import CleaningConfig
from mindstream_cleaning.page import Page, Rule, Verdict
from mindstream_cleaning.sensitive import SensitiveConfig

_MAKERS: dict[str, Callable[..., Rule]] = {
    "encoding": mojibake.rule,
    "html": html.rule,
    "characters": characters.rule,
    "simplified": simplified.rule,
    "language": language.rule,
    "length": length.rule,
    "repetition": repetition.rule,
    "personal_data": personal.rule,
}


class Chain:
    """Rules that a document goes through until one drops it.

    Raises:
        ConfigError: a list of sensitive words cannot be read.
    """

    def __init__(self, config: CleaningConfig) -> None:
        self._words = sensitive.load(config.sensitive)
        self.rules = [(name, self._make(name, config)) for name in config.rules if getattr(config, name).enabled]
        self._config = config

    def _make(self, name: str, config: CleaningConfig) -> Rule:
        if name == "sensitive":
            return sensitive.rule(config.sensitive, self._words)
        return _MAKERS[name](getattr(config, name))

    def configuration(self, **versions: str) -> str:
        """The hash of everything that decides the texts: of lists of words their content, not their paths."""
        plain = SensitiveConfig(enabled=self._config.sensitive.enabled, action=self._config.sensitive.action)
        config = msgspec.structs.replace(self._config, sensitive=plain)
        return ids.configuration_hash(config, words=sensitive.digest(self._words), **versions)

    def clean(self, document: Document, spared: frozenset[str] = frozenset()) -> tuple[Page, Verdict | None]:
        """The document after the rules, and why it is dropped (never for a reason in ``spared``). Rules that changed
        it are counted in ``page.counts`` as ``touched_<rule>``."""
        page = Page(text=document.text, format=document.format)
        for name, before, verdict in self.steps(page):
            if page.text != before:
                page.counts[f"touched_{name}"] += 1
            if verdict is not None and verdict.reason not in spared:
                return page, verdict
        return page, None

    def steps(self, page: Page) -> Iterator[tuple[str, str, Verdict | None]]:
        """Apply one rule after the other to ``page``; yields (rule, text before it, its verdict)."""
        for name, rule in self.rules:
            before = page.text
            yield name, before, rule(page)
