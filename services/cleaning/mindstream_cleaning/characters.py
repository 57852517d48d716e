"""Rule ``characters``: one form for each character, none that cannot be seen, white space that means something.

Full-width forms and punctuation stay (that would be NFKC).
"""

from __future__ import annotations

import re
import unicodedata

from mindstream_common.config import Section

from mindstream_cleaning import whitespace
from mindstream_cleaning.page import Page, Rule

_LINE_END = "\u000b\u000c\u001c-\u001e\u0085\u2028\u2029"
# Controls, soft hyphen, zero-width characters and joiners, marks of direction, byte order mark, noncharacters, and
# halves of surrogate pairs, which no encoding can write.
_HIDDEN = (
    "\u0000-\u0008\u000e-\u001b\u001f\u007f-\u0084\u0086-\u009f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064"
    "\u2066-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff"
)
_LINE_ENDS = re.compile(f"\r\n?|[{_LINE_END}]")
_UNSEEN = re.compile(f"[{_HIDDEN}]")
_ANY = re.compile(f"[\r{_LINE_END}{_HIDDEN}]")
# Anything at all that this rule changes: most texts have none of it, and are read once.
_GATE = re.compile(f"[\r{_LINE_END}{_HIDDEN}{whitespace.BLANKS}]|  | \n|\n[ \n]")


class CharactersConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """No parameters."""

    enabled: bool = True


def rule(config: CharactersConfig) -> Rule:
    """Line ends, unseen characters, NFC and white space."""

    def apply(page: Page) -> None:
        if _GATE.search(page.text):
            page.text = whitespace.normalise(normalise(page.text))
        else:
            page.text = unicodedata.normalize("NFC", page.text).strip(" \n")

    return apply


def normalise(text: str) -> str:
    """Every line end a newline, unseen characters removed, then NFC."""
    if _ANY.search(text):
        text = _UNSEEN.sub("", _LINE_ENDS.sub("\n", text))
    return text if text.isascii() else unicodedata.normalize("NFC", text)
