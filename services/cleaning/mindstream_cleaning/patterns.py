"""What personal data looks like, and the checks that tell it from other numbers.

Hanzi are word characters, so ``\\b`` would miss numbers that are glued to them: bounds are the digits themselves.
Patterns see a text whose full-width ASCII was made narrow, character for character. Each needs time in proportion to the
text: what repeats is possessive or bounded and begins where its own characters begin.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from mindstream_cleaning import identifiers


class Kind(NamedTuple):
    """A kind of personal data: its name, what is written in its place, its pattern, and whether a match is one.

    ``sure(match, strict)``: check digits are asked for unless ``strict``.
    """

    name: str
    mask: str
    pattern: re.Pattern[str]
    sure: Callable[[str, bool], bool]


def _digits(found: str) -> str:
    return re.sub(r"[ -]", "", found)


def _always(found: str, strict: bool) -> bool:
    return True


def _id_card(found: str, strict: bool) -> bool:
    return identifiers.is_id_card(found) or (strict and identifiers.is_id_shaped(found))


def _credit_code(found: str, strict: bool) -> bool:
    if identifiers.is_credit_code(found):
        return True
    return strict and not found.isdigit() and found[0] in "159NY"


def _bank_card(found: str, strict: bool) -> bool:
    digits = _digits(found)
    if identifiers.is_id_shaped(digits):  # a mistyped identity number is no card, even if Luhn's digit happens to fit
        return False
    return identifiers.is_card_shaped(digits) and (strict or identifiers.is_luhn(digits))


def _plate(found: str, strict: bool) -> bool:
    return sum(character.isdigit() for character in found) >= 2


def _passport(found: str, strict: bool) -> bool:
    return strict or found[0] in "EGeg"


PROVINCES = "京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼"
_PREFIX = r"(?:(?:\+|00)?86[ -]?)?"
_BEFORE = r"(?<![0-9])(?<![0-9]\.)"

# In the order of precedence: where two overlap, the first stands. Sure ones (with check digits) come first.
KINDS = (
    Kind("id_card", "[身份证号]", re.compile(r"(?<![0-9])[1-9][0-9]{16}[0-9Xx](?![0-9])"), _id_card),
    Kind(
        "credit_code",
        "[统一社会信用代码]",
        re.compile(r"(?<![0-9A-Za-z])[0-9A-HJ-NPQRTUWXY]{2}[0-9]{6}[0-9A-HJ-NPQRTUWXY]{10}(?![0-9A-Za-z])"),
        _credit_code,
    ),
    Kind(
        "bank_card",
        "[银行卡号]",
        re.compile(
            _BEFORE + r"(?:[0-9]{15,19}|[0-9]{4}(?:[ -][0-9]{4}){3}(?:[ -]?[0-9]{1,3})?|3[47][0-9]{2}[ -][0-9]{6}[ -][0-9]{5})"
            r"(?![0-9])(?!\.[0-9])"
        ),
        _bank_card,
    ),
    Kind(
        "email",
        "[邮箱]",
        re.compile(r"(?<![\w.%+-])[A-Za-z0-9._%+-]++@(?:[A-Za-z0-9-]++\.)+[A-Za-z]{2,24}(?![A-Za-z0-9])", re.ASCII),
        _always,
    ),
    Kind(
        "mobile",
        "[手机号]",
        re.compile(_BEFORE + _PREFIX + r"1[3-9][0-9](?:[ -]?[0-9]{4}){2}(?![0-9])(?!\.[0-9])"),
        _always,
    ),
    Kind(
        "landline",
        "[固定电话]",
        re.compile(
            _BEFORE + r"(?:(?:\+|00)86[ -]?(?:10|2[0-9]|[3-9][0-9]{2})|\(0(?:10|2[0-9]|[3-9][0-9]{2})\)|0(?:10|2[0-9]|[3-9][0-9]{2}))"
            r"[ -]?[2-9][0-9]{2,3}[ -]?[0-9]{4}(?![0-9])(?!\.[0-9])(?:(?:转|-)[0-9]{1,6}(?![0-9]))?"
        ),
        _always,
    ),
    Kind(
        "plate",
        "[车牌号]",
        re.compile(
            rf"[{PROVINCES}][A-HJ-NP-Z][·•・. -]?(?:[A-HJ-NP-Z0-9]{{5,6}}|[A-HJ-NP-Z0-9]{{4}}[挂学警港澳])(?![A-Za-z0-9])"
        ),
        _plate,
    ),
    Kind(
        "passport",
        "[护照号]",
        # After 字 it is the number of a licence (国药准字), not of a person.
        re.compile(r"(?<![A-Za-z0-9字第])(?:[EeGg][0-9]{8}|[Ee][A-HJ-NP-Za-hj-np-z][0-9]{7}|[DdSsPpHhMm][0-9]{8})(?![A-Za-z0-9])"),
        _passport,
    ),
)  # fmt: skip

# Everything that a match may consist of, but for the province of a plate, which stands before. Chinese text has few such
# places, and only they are looked at; one character before them is enough for what a pattern wants to know of it.
DASHES = "\u2010-\u2015\u2212"  # hyphens, dashes and the minus sign: people write them in numbers
_ISLAND = re.compile(f"[0-9A-Za-z@._%+ ()·•・转挂学警港澳\uff01-\uff5e{DASHES}-]{{6,}}")
_DASH = re.compile(f"[{DASHES}]")
_WIDE = re.compile("[\uff01-\uff5e]")


class Found(NamedTuple):
    """Personal data at ``start:end``."""

    start: int
    end: int
    kind: Kind


def find(text: str, kinds: tuple[Kind, ...] = KINDS, strict: bool = False) -> list[Found]:
    """What ``text`` holds of ``kinds``, by place, without overlaps."""
    found: list[Found] = []
    for island in _ISLAND.finditer(text):
        start = max(0, island.start() - 1)
        found += _in_island(text[start : island.end()], start, kinds, strict)
    return found


def _in_island(island: str, start: int, kinds: tuple[Kind, ...], strict: bool) -> list[Found]:
    if not island.isascii():
        island = _DASH.sub("-", _WIDE.sub(lambda wide: chr(ord(wide.group()) - 0xFEE0), island))
    taken: list[Found] = []
    for kind in kinds:
        new = [
            Found(start + match.start(), start + match.end(), kind)
            for match in kind.pattern.finditer(island)
            if kind.sure(match.group(), strict)
        ]
        if new:
            taken = sorted(taken + _clear_of(taken, new)) if taken else new
    return taken


def _clear_of(taken: list[Found], new: list[Found]) -> list[Found]:
    """Those of ``new`` that overlap nothing in ``taken``; both are sorted."""
    clear, at = [], 0
    for found in new:
        while at < len(taken) and taken[at].end <= found.start:
            at += 1
        if at == len(taken) or taken[at].start >= found.end:
            clear.append(found)
    return clear
