"""Rule ``encoding``: text that was decoded wrongly before it came here is repaired where nothing was lost, and dropped
where it was."""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated

import ftfy
from mindstream_common.config import Section
from msgspec import Meta

from mindstream_cleaning import tags
from mindstream_cleaning.page import Page, Rule, Verdict
from mindstream_cleaning.reasons import MOJIBAKE

# What the bytes 0x80-0xBF of UTF-8 look like when read as Latin-1 or Windows-1252.
_TAIL = "[\u0080-\u00bf" + bytes(range(0x80, 0xA0)).decode("cp1252", "ignore") + "]"
# A character beyond U+07FF read so; ftfy is 50 times slower than this gate.
_GATE = re.compile(f"[\u00e0-\u00ef]{_TAIL}{{2}}")
_RUN = re.compile(f"(?:[\u00c2-\u00df]{_TAIL}|[\u00e0-\u00ef]{_TAIL}{{2}}|[\u00f0-\u00f4]{_TAIL}{{3}}|[\x20-\x7e]+)+")
# Encodings only: no width, quote, ligature or entity is touched.
_CONFIG = ftfy.TextFixerConfig(
    unescape_html=False, remove_terminal_escapes=False, fix_latin_ligatures=False, fix_character_width=False,
    uncurl_quotes=False, fix_line_breaks=False, fix_surrogates=False, remove_control_chars=False, normalization=None,
)  # fmt: skip
LOST = "锟斤拷"  # U+FFFD twice, written as UTF-8 and read as GBK


class EncodingConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``repair``: undo UTF-8 that was read as Latin-1 or Windows-1252. ``replaced_share``: a text of which more than
    this share is U+FFFD, or that holds ``锟斤拷``, is dropped as ``mojibake``."""

    enabled: bool = True
    repair: bool = True
    replaced_share: Annotated[float, Meta(ge=0, le=1)] = 0.01


def rule(config: EncodingConfig) -> Rule:
    """Repairs, brings into NFC, and drops what is beyond repair."""

    def apply(page: Page) -> Verdict | None:
        if page.text.isascii():
            return None
        text = repair(page.text) if config.repair else page.text
        page.text = unicodedata.normalize("NFC", text)
        if is_lost(page.text, config.replaced_share, markup=page.format == "html"):
            return Verdict(MOJIBAKE, "bytes were replaced before this text came here")
        return None

    return apply


def repair(text: str) -> str:
    """Undo UTF-8 that was read as Latin-1 or Windows-1252 (``é«˜è¡€åŽ‹`` is 高血压); the rest stays as it is."""
    if not _GATE.search(text):
        return text
    return _RUN.sub(lambda run: _undo(run.group()) if _GATE.search(run.group()) else run.group(), text)


def _undo(run: str) -> str:
    return str(ftfy.fix_encoding(run, _CONFIG))


def is_lost(text: str, share: float = 0.01, *, markup: bool = False) -> bool:
    """Whether bytes were replaced before the text came here: ``锟斤拷``, or more than ``share`` of it is U+FFFD.

    With ``markup`` the tags do not count as text.
    """
    if LOST in text:
        return True
    replaced = text.count("\ufffd")
    if not replaced:
        return False
    if markup:
        text = tags.to_text(text).replace(tags.BREAK, "")
    return replaced > share * len(text)
