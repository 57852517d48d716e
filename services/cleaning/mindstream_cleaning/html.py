"""Rule ``html``: blocks become lines, inline tags join, what nobody reads is left out."""

from __future__ import annotations

import re

from mindstream_common.config import Section
from selectolax.lexbor import LexborHTMLParser, LexborNode

from mindstream_cleaning import boilerplate, tags
from mindstream_cleaning.boilerplate import LINK, LINK_END
from mindstream_cleaning.page import Page, Rule
from mindstream_cleaning.tags import BLOCKS, BREAK, HIDDEN

_SPACE = re.compile(r"[ \t\r\n\f]+")
_HIDDEN = sorted(HIDDEN)
_AROUND = ["nav", "footer", "aside", "menu", "button", "select"]
_BLOCKS = ",".join(sorted(BLOCKS))


class HtmlConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``main_content``: of whole pages, leave out menus, lists of links and notices around the text."""

    enabled: bool = True
    main_content: bool = False


def rule(config: HtmlConfig) -> Rule:
    """Makes pages of format ``html`` text; others pass as they are."""

    def apply(page: Page) -> None:
        if page.format == "html":
            page.text = to_text(page.text, main_content=config.main_content)
            page.format = "text"

    return apply


def to_text(html: str, *, main_content: bool = False) -> str:
    """The text that a reader of the page sees, one block a line; also of fragments without ``<html>``.

    A page whose body shows nothing gives its title, if it has one.
    """
    html = html.replace(BREAK, "").replace("\0", "")
    if main_content:
        html = html.replace(LINK, "").replace(LINK_END, "")
    text = tags.to_text(html) if tags.are_absurd(html) else _by_parser(html, main_content)
    lines = [line for part in text.split(BREAK) if (line := _SPACE.sub(" ", part).strip(" "))]
    if main_content:
        lines = boilerplate.without(lines)
    return "\n".join(lines) or _SPACE.sub(" ", tags.title(html)).strip()


def _by_parser(html: str, main_content: bool) -> str:
    parser = LexborHTMLParser(html)
    root = parser.root
    if root is None:
        return ""
    root.strip_tags(_HIDDEN)
    if main_content:
        _mark(root)
    for node in root.css(_BLOCKS):
        node.insert_before(BREAK)
        node.insert_after(BREAK)
    for node in root.css("td,th"):
        node.insert_after(" ")
    for node in root.css("pre,textarea"):  # here the source's line ends count
        node.replace_with(node.text().replace("\n", BREAK))
    return str(root.text())


def _mark(root: LexborNode) -> None:
    """Take away what stands around the text by its tag, and mark the links."""
    root.strip_tags(_AROUND)
    for node in root.css("a"):
        node.insert_before(LINK)
        node.insert_after(LINK_END)
