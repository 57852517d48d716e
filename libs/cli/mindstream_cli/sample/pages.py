"""HTML as it is found: a whole page with head, style, script and navigation, and inline tags in the middle of words."""

from __future__ import annotations

import html
import random
import re

PAIR = re.compile(r"[一-鿿]{2}")
MARKS = ("b", "em", "span", "strong", "font", "i")
Table = list[tuple[str, ...]]


def page(
    rng: random.Random, title: str, paragraphs: list[str], site: str, links: list[str], table: Table | None = None
) -> str:
    """A page with the title as heading, a table after the second paragraph, and the last but one as a list at times."""
    body = [f"<h1>{html.escape(title)}</h1>"]
    as_list = rng.randrange(len(paragraphs)) if rng.random() < 0.6 else -1
    for number, text in enumerate(paragraphs):
        body.append(_list(text) if number == as_list else f"<p>{_marked(rng, html.escape(text, quote=False))}</p>")
        if table and number == 1:
            body.append(_table(table))
    return _frame(title, site, links, body)


def _marked(rng: random.Random, text: str) -> str:
    """The text with one to three inline tags, each around a character or two inside a word."""
    places = [match.start() + 1 for match in PAIR.finditer(text)]
    for place in sorted(rng.sample(places, min(len(places), rng.randint(1, 3))), reverse=True):
        mark = rng.choice(MARKS)
        text = f"{text[:place]}<{mark}>{text[place]}</{mark}>{text[place + 1 :]}"
    return text


def _list(text: str) -> str:
    items = [part for part in re.split(r"(?<=。)", text) if part]
    return "<ul>\n" + "\n".join(f"  <li>{html.escape(item, quote=False)}</li>" for item in items) + "\n</ul>"


def _table(rows: Table) -> str:
    head, *rest = rows
    lines = ["<tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rest]
    return "<table>\n<caption>主要财务数据</caption>\n" + "\n".join(lines) + "\n</table>"


def _frame(title: str, site: str, links: list[str], body: list[str]) -> str:
    menu = "".join(f'<li><a href="#{number}">{link}</a></li>' for number, link in enumerate(links, 1))
    return f"""<!DOCTYPE html>
<html lang="zh-CN">
<head>
<meta charset="utf-8">
<title>{html.escape(title)} - {site}</title>
<style>body {{ font-family: serif; line-height: 1.8 }} td, th {{ border: 1px solid #999 }}</style>
<script>var page = {{ "id": {len(title)}, "tip": "脚本里的文字不是正文" }};</script>
</head>
<body>
<nav><ul>{menu}</ul></nav>
<main>
{chr(10).join(body)}
</main>
<footer><p>{site}&nbsp;&copy;&nbsp;示例页面</p></footer>
</body>
</html>
"""
