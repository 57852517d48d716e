"""White space: one space between words, one newline between lines, none at the ends."""

from __future__ import annotations

import re

_SPACES = re.compile("[ \t\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]+")
_LINES = re.compile(" ?\n[ \n]*")


def normalise(text: str) -> str:
    """Collapse runs of blanks (also U+3000) and of newlines."""
    return _LINES.sub("\n", _SPACES.sub(" ", text)).strip(" \n")
