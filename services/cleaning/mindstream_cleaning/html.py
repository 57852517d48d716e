"""HTML to text: blocks become lines, inline tags join, what nobody reads is left out."""

from __future__ import annotations

import re
from html import unescape

from selectolax.lexbor import LexborHTMLParser

HIDDEN = ["script", "style", "noscript", "template", "svg", "iframe", "object", "head"]
BLOCKS = (
    "address,article,aside,blockquote,br,button,caption,center,dd,details,dialog,dir,div,dl,dt,fieldset,figcaption,figure,"
    "footer,form,h1,h2,h3,h4,h5,h6,header,hgroup,hr,legend,li,main,menu,nav,ol,option,optgroup,p,pre,section,select,"
    "summary,table,tbody,textarea,tfoot,thead,tr,ul"
)
BREAK = "\x1e"  # stands for a line's end while the source's own line ends are still white space; removed from input
MANY_TAGS = 20_000
DEEP = 2_000  # the parser needs time in the square of the depth; browsers stop at 512
VOID = {
    "area",
    "base",
    "br",
    "col",
    "embed",
    "hr",
    "img",
    "input",
    "link",
    "meta",
    "source",
    "track",
    "wbr",
    "p",
    "li",
    "td",
    "tr",
    "option",
}

_SPACE = re.compile(r"[ \t\r\n\f]+")
_TAG = re.compile(r"<(/?)([a-zA-Z][\w-]*)[^<>]*>")
_HIDDEN = re.compile(r"<!--.*?-->|<(script|style|noscript|template|svg|head)\b.*?</\1\s*>", re.IGNORECASE | re.DOTALL)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)


def to_text(html: str) -> str:
    """The text that a reader of the page sees, one block a line; also of fragments without ``<html>``.

    A page whose body shows nothing gives its title, if it has one.
    """
    html = html.replace(BREAK, "").replace("\0", "")
    text = _by_pattern(html) if html.count("<") > MANY_TAGS and _depth(html) > DEEP else _by_parser(html)
    lines = (_SPACE.sub(" ", line).strip() for line in text.split(BREAK))
    found = "\n".join(line for line in lines if line)
    if not found and (title := _TITLE.search(html)):
        found = _SPACE.sub(" ", unescape(title.group(1))).strip()
    return found


def _by_parser(html: str) -> str:
    parser = LexborHTMLParser(html)
    root = parser.root
    if root is None:
        return ""
    root.strip_tags(HIDDEN)
    for node in parser.css(BLOCKS):
        node.insert_before(BREAK)
        node.insert_after(BREAK)
    for node in parser.css("td,th"):
        node.insert_after(" ")
    for node in parser.css("pre,textarea"):  # here the source's line ends count
        node.replace_with(node.text().replace("\n", BREAK))
    return str(root.text())


def _by_pattern(html: str) -> str:
    """For what no browser would nest that deep: time in proportion to the length."""
    return unescape(_TAG.sub(BREAK, _HIDDEN.sub("", html)))


def _depth(html: str) -> int:
    depth = deepest = 0
    for tag in _TAG.finditer(html):
        if tag.group(2).lower() not in VOID:
            depth = max(0, depth - 1) if tag.group(1) else depth + 1
            deepest = max(deepest, depth)
    return deepest
