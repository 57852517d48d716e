"""HTML to text: blocks become lines, inline tags join, what nobody reads is left out."""

from __future__ import annotations

import re

from selectolax.lexbor import LexborHTMLParser

from mindstream_cleaning import tags
from mindstream_cleaning.tags import BLOCKS, BREAK, HIDDEN

_SPACE = re.compile(r"[ \t\r\n\f]+")


def to_text(html: str) -> str:
    """The text that a reader of the page sees, one block a line; also of fragments without ``<html>``.

    A page whose body shows nothing gives its title, if it has one.
    """
    html = html.replace(BREAK, "").replace("\0", "")
    text = tags.to_text(html) if tags.are_absurd(html) else _by_parser(html)
    lines = (_SPACE.sub(" ", line).strip() for line in text.split(BREAK))
    return "\n".join(line for line in lines if line) or _SPACE.sub(" ", tags.title(html)).strip()


def _by_parser(html: str) -> str:
    parser = LexborHTMLParser(html)
    root = parser.root
    if root is None:
        return ""
    root.strip_tags(sorted(HIDDEN))
    for node in parser.css(",".join(sorted(BLOCKS))):
        node.insert_before(BREAK)
        node.insert_after(BREAK)
    for node in parser.css("td,th"):
        node.insert_after(" ")
    for node in parser.css("pre,textarea"):  # here the source's line ends count
        node.replace_with(node.text().replace("\n", BREAK))
    return str(root.text())
