"""White space: one space between words, one newline between lines, none at the ends."""

from __future__ import annotations

import re

BLANKS = "\t\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
# Only what is to be changed is matched: a substitution costs far more than a look.
_SPACES = re.compile(f"[ {BLANKS}]{{2,}}|[{BLANKS}]")
_LINES = re.compile(" \n[ \n]*|\n[ \n]+")


def normalise(text: str) -> str:
    """Collapse runs of blanks (also U+3000) and of newlines."""
    return _LINES.sub("\n", _SPACES.sub(" ", text)).strip(" \n")
