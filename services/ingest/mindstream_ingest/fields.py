"""Which fields of a record hold its text, and how they become one: joined by newlines, or by a template."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindstream_common.errors import ConfigError

from mindstream_ingest.record import NO_TEXT, Record

_HTML = re.compile(
    r"\s*(<!--|<!doctype\s+html|<(html|head|body|div|p|span|table|article|section|main|ul|ol|h[1-6]|br|img|a|b|font|center)\b[^<>]*>)",
    re.IGNORECASE,
)
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|\\n|\\t|[^{}\\]+|\\|[{}]")
_LITERAL = {"{{": "{", "}}": "}", "\\n": "\n", "\\t": "\t"}


@dataclass(frozen=True, slots=True)
class Fields:
    """``names``: fields that are joined by newlines, those that a record lacks left out. ``pieces``: a template's
    literal text and, as one-element tuples, its fields, all of which a record must have.
    ``asked``: someone named these fields, so that a file without one of them is refused."""

    names: tuple[str, ...]
    pieces: tuple[str | tuple[str], ...] = ()
    asked: bool = False

    @classmethod
    def of(cls, names: tuple[str, ...], template: str, default: tuple[str, ...]) -> Fields:
        """What a file asks for, else the default. Raises ConfigError when the template cannot be read."""
        if template:
            pieces = parse(template)
            return cls(tuple(dict.fromkeys(piece[0] for piece in pieces if isinstance(piece, tuple))), pieces, True)
        return cls(names or default, (), bool(names))

    def record(self, value: Mapping[str, Any], raw: str | bytes, place: str, at: int) -> Record:
        """The document of one record, or a drop that says which field is missing. ``raw`` is kept with a drop."""
        return self._templated(value, raw, place, at) if self.pieces else self._joined(value, raw, place, at)

    def _joined(self, value: Mapping[str, Any], raw: str | bytes, place: str, at: int) -> Record:
        found = [(name, value[name]) for name in self.names if isinstance(value.get(name), str)]
        if not found:
            detail = f"none of {', '.join(self.names)} holds text; fields found: {_listed(value)}"
            return Record(text=text_of(raw), place=place, reason=NO_TEXT, detail=detail, at=at)
        filled = [(name, text) for name, text in found if text]
        marked = [name == "html" or looks_like_html(text) for name, text in filled]
        if not any(marked):
            return Record(text="\n".join([text for _, text in filled]), place=place, at=at)
        parts = [
            text if is_html else f"<p>{html.escape(text)}</p>"
            for (_, text), is_html in zip(filled, marked, strict=True)
        ]
        return Record(text="\n".join(parts), place=place, format="html", at=at)

    def _templated(self, value: Mapping[str, Any], raw: str | bytes, place: str, at: int) -> Record:
        texts: dict[str, str] = {}
        for name in self.names:
            found = value.get(name, ...)
            if found is None or isinstance(found, str):
                texts[name] = found or ""
            elif isinstance(found, int | float):
                texts[name] = str(found)
            else:
                what = "is missing" if found is ... else f"holds a {type(found).__name__}"
                detail = f"the template's field {name!r} {what}; fields found: {_listed(value)}"
                return Record(text=text_of(raw), place=place, reason=NO_TEXT, detail=detail, at=at)
        if not any(texts.values()):
            return Record(
                text=text_of(raw), place=place, reason=NO_TEXT, detail="the template's fields are empty", at=at
            )
        marked = {name: name == "html" or looks_like_html(text) for name, text in texts.items()}
        if not any(marked.values()):
            parts = [piece if isinstance(piece, str) else texts[piece[0]] for piece in self.pieces]
            return Record(text="".join(parts), place=place, at=at)
        parts = [
            html.escape(piece).replace("\n", "<br>")
            if isinstance(piece, str)
            else texts[piece[0]] if marked[piece[0]] else html.escape(texts[piece[0]])
            for piece in self.pieces
        ]  # fmt: skip
        return Record(text="".join(parts), place=place, format="html", at=at)


def parse(template: str) -> tuple[str | tuple[str], ...]:
    r"""A template's pieces: ``{name}`` is a field, ``{{`` and ``}}`` are braces, ``\n`` and ``\t`` may be written out.

    Raises:
        ConfigError: a brace stands alone, or no field is named.
    """
    pieces: list[str | tuple[str]] = []
    for found in _PIECE.finditer(template):
        text = found.group()
        if found.group(1):
            pieces.append((found.group(1),))
        elif text in "{}":
            raise ConfigError(
                f"template {template!r}: the brace at character {found.start() + 1} has no partner. A field is written "
                "{name}, a brace itself {{ or }}."
            )
        else:
            pieces.append(_LITERAL.get(text, text))
    if not any(isinstance(piece, tuple) for piece in pieces):
        raise ConfigError(
            f"template {template!r} names no field. Write fields as {{name}}, such as '{{ask}}\\n{{answer}}'."
        )
    return tuple(pieces)


def looks_like_html(text: str) -> bool:
    """Whether a field begins like a piece of HTML."""
    return ("<" in text[:200]) and bool(_HTML.match(text))


def text_of(raw: str | bytes) -> str:
    """What was found instead of a record, for people."""
    return raw if isinstance(raw, str) else raw.decode("utf-8", "replace")


def _listed(value: Mapping[str, Any]) -> str:
    return ", ".join(map(str, value))[:500] or "none"
