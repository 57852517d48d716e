"""HTML's tags without a parser: which there are, and the text of pages on which the parser would stand still.

The parser needs time in the square of the depth, of the options of one list and of the attributes of one tag: a page of
a megabyte can take minutes. And it needs some hundred bytes for each tag: gigabytes for a page of nothing but tags. What
is here takes time and memory in proportion to the length, whatever the page.
"""

from __future__ import annotations

import re
from html import unescape

HIDDEN = frozenset((
    "head", "iframe", "noscript", "object", "script", "style", "svg", "template",
))  # fmt: skip
BLOCKS = frozenset((
    "address", "article", "aside", "blockquote", "br", "button", "caption", "center", "dd", "details", "dialog",
    "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5",
    "h6", "header", "hgroup", "hr", "legend", "li", "main", "menu", "nav", "ol", "optgroup", "option", "p", "pre",
    "section", "select", "summary", "table", "tbody", "textarea", "tfoot", "thead", "tr", "ul",
))  # fmt: skip
# Elements that have no end or need none.
OPEN = frozenset((
    "area", "base", "br", "col", "dd", "dt", "embed", "hr", "img", "input", "li", "link", "meta", "option", "p",
    "source", "td", "th", "tr", "track", "wbr",
))  # fmt: skip
BREAK = "\x1e"  # stands for a line's end while the source's own line ends are still white space; removed from input

MANY = 20_000  # tags; below it nothing is slow
MOST = 200_000  # tags; from here on the parser's memory counts
DEEP = 2_000  # browsers stop at 512
OPTIONS = 5_000
ATTRIBUTES = 2_000

_TAG = re.compile(r"<(/?)([a-zA-Z][\w-]*+)[^<>]*+>")
_LONG = re.compile(r"<[^<>]{20000}[^<>]*+")
_OPTION = re.compile("<option", re.IGNORECASE)
_TITLE = re.compile(r"<title[^<>]*+>([^<]*+)", re.IGNORECASE)


def are_absurd(html: str) -> bool:
    """Whether the parser should not see this page."""
    if any(len(tag.group().split()) > ATTRIBUTES for tag in _LONG.finditer(html)):
        return True
    tags = html.count("<")
    return tags > MOST or (tags > MANY and (_depth(html) > DEEP or sum(1 for _ in _OPTION.finditer(html)) > OPTIONS))


def _depth(html: str) -> int:
    depth = deepest = 0
    for tag in _TAG.finditer(html):
        if tag.group(2).lower() not in OPEN:
            depth = max(0, depth - 1) if tag.group(1) else depth + 1
            deepest = max(deepest, depth)
    return deepest


def to_text(html: str) -> str:
    """The text between the tags, with :data:`BREAK` around blocks; what is hidden is left out up to its end tag, and
    kept where that is missing."""
    html = _without_comments(html)
    parts = []
    at = 0
    without_end: set[str] = set()
    lower = html.lower()
    while tag := _TAG.search(html, at):
        name = tag.group(2).lower()
        parts.append(html[at : tag.start()])
        parts.append(BREAK if name in BLOCKS else "")
        at = tag.end()
        if name in HIDDEN and not tag.group(1) and name not in without_end:
            end = lower.find(f"</{name}", at)
            if end < 0:
                without_end.add(name)
            at = max(at, end)
    parts.append(html[at:])
    return unescape("".join(parts))


def _without_comments(html: str) -> str:
    first, *rest = html.split("<!--")
    return first + "".join(part.partition("-->")[2] for part in rest)


def title(html: str) -> str:
    """What ``<title>`` holds, or nothing."""
    found = _TITLE.search(html)
    return unescape(found.group(1)) if found else ""
