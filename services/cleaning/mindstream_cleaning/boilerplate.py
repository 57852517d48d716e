"""What surrounds a page's text: menus, lists of links, notices. Left out when ``cleaning.html.main_content`` asks for it.

A line of a page is judged by how much of it is links, whether it reads like prose and whether it is a notice of rights;
a short line (a heading, a caption) goes with its neighbours. The idea is that of Kohlschütter et al. 2010 ("Boilerplate Detection using Shallow
Text Features": link density and length of a block and of those around it) and of jusText.
"""

from __future__ import annotations

import re
from typing import Literal

LINK, LINK_END = "\x1c", "\x1d"  # around the text of a link; removed from input
PROSE = 20  # characters from which a line with a mark of punctuation in it is text
LONG = 60  # ... and without one
LINKS = 0.5  # share of a line from which it is a list of links
NEAR = 3  # lines that a short one may be away from the text that it belongs to

_LINKED = re.compile(f"{LINK}([^{LINK}{LINK_END}]*){LINK_END}")
_MARKS = str.maketrans("", "", LINK + LINK_END)
_ENDS = tuple("。！？；.!?…”")
_INNER = re.compile("[，。、；：,;]")
_NOTICE = re.compile("版权所有|[©Ⓒ]|copyright|all rights reserved|ICP[备证]|公安?网?备|备案号", re.IGNORECASE)


def without(lines: list[str]) -> list[str]:
    """The lines that are the page's text, without marks. All of them when none looks like text."""
    kinds = [_kind(line) for line in lines]
    plain = [line.translate(_MARKS) for line in lines]
    if "text" not in kinds:
        return plain
    return [line for line, kept in zip(plain, _near_text(kinds), strict=True) if kept]


def _kind(line: str) -> Literal["text", "short", "links"]:
    length = len(line.translate(_MARKS))
    linked = sum(len(found.group(1)) for found in _LINKED.finditer(line))
    if linked > LINKS * length or (length < LONG and _NOTICE.search(line)):
        return "links"
    prose = line.endswith(_ENDS) or length >= LONG or (length >= PROSE and _INNER.search(line))
    return "text" if prose else "short"


def _near_text(kinds: list[Literal["text", "short", "links"]]) -> list[bool]:
    """Whether each line is text, or a short one near text with no links between them."""
    kept = [kind == "text" for kind in kinds]
    for numbers in (range(len(kinds)), range(len(kinds) - 1, -1, -1)):
        since = NEAR + 1
        for number in numbers:
            if kinds[number] == "text":
                since = 0
            elif kinds[number] == "links":
                since = NEAR + 1
            else:
                since += 1
                kept[number] = kept[number] or since <= NEAR
    return kept
