"""A small grammar: hand-written sentence frames with slots, read from ``material/*.txt`` and filled by a seeded generator.

A material file has sections, each begun by a line with ``@``; lines with ``#`` are comments:

    @list 水果                  words, separated by blanks or line ends
    @table 菜: 名 | 主料 | ...   rows, cells separated by ``|``, several items of a cell by ``、``
    @frames 做法                one frame a line
    @page 做菜 菜               a kind of document about a row of table 菜 (or about nothing): the first line names
                                the frames of its title, each further line those of a paragraph (``做法*2-3``)

In a frame ``{水果}`` is a word of that list (never the same twice in a sentence), ``{水果1}`` one that stays the same in
the whole document, ``{菜.主料}`` an item of a cell of the document's row, ``{菜.主料*}`` the whole cell, ``{3-9}`` a
number, ``{2.0-9.5}`` one with a decimal place. Words may hold slots themselves.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from importlib.resources import files

SLOT = re.compile(r"\{([^{}]+)\}")
NUMBER = re.compile(r"(\d+(?:\.\d)?)-(\d+(?:\.\d)?)\Z")
BOUND = re.compile(r"(\D+)\d\Z")
STEP = re.compile(r"([^\s*]+?)(?:\*(\d)(?:-(\d))?)?\Z")
TRIES = 24  # draws before a sentence that was written already is written again

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Page:
    """A kind of document: the table that it is about (or ""), and the frames of its title and paragraphs."""

    name: str
    table: str
    title: str
    paragraphs: tuple[tuple[str, ...], ...]


@dataclass(slots=True)
class Material:
    """What the material files hold, by name."""

    lists: dict[str, list[str]] = field(default_factory=dict)
    tables: dict[str, list[Row]] = field(default_factory=dict)
    frames: dict[str, list[str]] = field(default_factory=dict)
    pages: dict[str, Page] = field(default_factory=dict)


def load(*names: str) -> Material:
    """Read ``material/<name>.txt`` for each name. A name that is defined twice, or a slot that nothing fills, is an
    error of the material (:class:`ValueError`)."""
    material = Material()
    for name in names:
        text = (files(__package__) / "material" / f"{name}.txt").read_text(encoding="utf-8")
        for section in re.split(r"(?m)^@", text)[1:]:
            head, *lines = [line.strip() for line in section.splitlines()]
            add_section(material, head, [line for line in lines if line and not line.startswith("#")])
    check(material)
    return material


def add_section(material: Material, head: str, lines: list[str]) -> None:
    """Add what a section holds: its head without the ``@``, its lines. Raises :class:`ValueError` for a kind that does
    not exist, a name that is taken, a row with too few or too many cells."""
    kind, _, rest = head.partition(" ")
    name = re.split(r"[:\s]", rest)[0]
    if name in getattr(material, "frames" if kind == "frames" else f"{kind}s", ()):
        raise ValueError(f"sample material defines {kind} {name!r} twice")
    if kind == "list":
        material.lists[name] = " ".join(lines).split()
    elif kind == "table":
        columns = _cells(rest.partition(":")[2])
        material.tables[name] = [dict(zip(columns, _cells(line), strict=True)) for line in lines]
    elif kind == "frames":
        material.frames[name] = lines
    elif kind == "page":
        title, *paragraphs = lines
        table = rest.partition(" ")[2].strip()
        material.pages[name] = Page(name, table, title, tuple(tuple(p.split()) for p in paragraphs))
    else:
        raise ValueError(f"sample material has a section @{head!r}; sections are list, table, frames and page")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")]


def check(material: Material) -> None:
    """Every slot without a point must name a list or a range of numbers; what a table's slot needs is bound later."""
    for name, entries in material.lists.items():
        if not entries or any("。" in word for word in entries):
            raise ValueError(f"sample material: list {name!r} is empty or holds a sentence, which is a frame's place")
    words = [w for entries in (*material.lists.values(), *material.frames.values()) for w in entries]
    for word in words:
        for slot in SLOT.findall(word):
            bound = BOUND.match(slot)
            known = slot in material.lists or (bound and bound[1] in material.lists)
            if not (known or NUMBER.match(slot) or "." in slot):
                raise ValueError(f"sample material: nothing fills the slot {slot!r} of {word!r}")


class Voice:
    """Writes sentences. ``begin`` starts a document; a sentence that was written before is avoided while others are
    left, in this document and in all earlier ones."""

    def __init__(self, material: Material, rng: random.Random) -> None:
        self.material = material
        self.rng = rng
        self._seen: set[str] = set()
        self._used: set[str] = set()  # frames of this document
        self._bound: dict[str, str] = {}
        self._rows: dict[str, Row] = {}
        self._decks: dict[str, list[Row]] = {}

    def begin(self, **rows: Row) -> None:
        """Start a document about these rows (by table name)."""
        self._used, self._bound, self._rows = set(), {}, dict(rows)

    def row(self, table: str) -> Row:
        """The next row of a table: every row once, in a shuffled order, then again."""
        if not self._decks.get(table):
            self._decks[table] = self.rng.sample(self.material.tables[table], len(self.material.tables[table]))
        return self._decks[table].pop()

    def say(self, group: str) -> str:
        """A sentence from a group of frames."""
        frames = self.material.frames[group]
        unused = [frame for frame in frames if frame not in self._used] or frames
        for _ in range(TRIES):
            frame, before = self.rng.choice(unused), dict(self._bound)
            text = self.fill(frame)
            if text not in self._seen:
                break
            self._bound = before
        else:
            text = self.fill(frame)
        self._used.add(frame)
        self._seen.add(text)
        return text

    def paragraph(self, steps: Iterable[str]) -> str:
        """Sentences of several groups; ``name*2-3`` is two or three of that group, ``name*0-1`` perhaps one."""
        sentences: list[str] = []
        for step in steps:
            name, low, high = STEP.match(step).groups()  # type: ignore[union-attr]
            count = self.rng.randint(int(low or 1), int(high or low or 1))
            sentences += [self.say(name) for _ in range(count)]
        return "".join(sentences)

    def page(self, page: Page, **rows: Row) -> tuple[str, list[str]]:
        """A document of this kind, about these rows and one of the page's own table: its title and its paragraphs."""
        own = {page.table: self.row(page.table)} if page.table and page.table not in rows else {}
        self.begin(**own, **rows)
        title = self.say(page.title)
        return title, [self.paragraph(steps) for steps in page.paragraphs]

    def fill(self, frame: str) -> str:
        """The frame with its slots filled."""
        taken: set[str] = set()

        def one(match: re.Match[str]) -> str:
            return self.fill(self._word(match[1], taken))

        return SLOT.sub(one, frame)

    def _word(self, slot: str, taken: set[str]) -> str:
        if number := NUMBER.match(slot):
            return self._number(number[1], number[2])
        if "." in slot:
            table, column = slot.split(".")
            cell = self._rows[table][column.rstrip("*")]
            return cell if column.endswith("*") else self._choose(cell.split("、"), taken)
        if slot in self.material.lists:
            return self._choose(self.material.lists[slot], taken, set(self._bound.values()))
        if slot not in self._bound:
            words = self.material.lists[BOUND.match(slot)[1]]  # type: ignore[index]
            self._bound[slot] = self._choose(words, taken, set(self._bound.values()))
        taken.add(self._bound[slot])
        return self._bound[slot]

    def _choose(self, words: list[str], taken: set[str], others: AbstractSet[str] = frozenset()) -> str:
        word = self.rng.choice([w for w in words if w not in taken and w not in others] or words)
        taken.add(word)
        return word

    def _number(self, low: str, high: str) -> str:
        if "." in low:
            return f"{self.rng.randint(round(float(low) * 10), round(float(high) * 10)) / 10:.1f}"
        return str(self.rng.randint(int(low), int(high)))
