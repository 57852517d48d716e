"""Characters: one form for each, none that cannot be seen. Full-width forms and punctuation stay (that would be NFKC)."""

from __future__ import annotations

import re
import unicodedata

_LINE_ENDS = re.compile("\r\n?|[\u000b\u000c\u001c-\u001e\u0085\u2028\u2029]")
# Controls, soft hyphen, zero-width characters and joiners, marks of direction, byte order mark, noncharacters.
_UNSEEN = re.compile(
    "[\u0000-\u0008\u000e-\u001b\u001f\u007f-\u0084\u0086-\u009f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064"
    "\u2066-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff]"
)


def normalise(text: str) -> str:
    """Every line end a newline, unseen characters removed, then NFC."""
    text = _UNSEEN.sub("", _LINE_ENDS.sub("\n", text))
    return text if text.isascii() else unicodedata.normalize("NFC", text)
