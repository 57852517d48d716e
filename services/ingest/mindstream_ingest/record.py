"""What a file's reader hands on: a record with its text, or the reason why there is none."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

import msgspec

MALFORMED = "malformed"  # the line or row cannot be read as a record
NO_TEXT = "no_text"  # a record, but no text field in it
TOO_LONG = "too_long"  # longer than ingest.record_bytes

_HTML = re.compile(
    r"\s*(<!--|<!doctype\s+html|<(html|head|body|div|p|span|table|article|section|main|ul|ol|h[1-6]|br|img|a|b|font|center)\b[^<>]*>)",
    re.IGNORECASE,
)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """``place`` is where in the file it stands (a line number; empty for a whole file). With ``reason`` set it is a
    record that could not be read: ``text`` is then what was found instead."""

    text: str
    place: str = ""
    format: str = "text"
    reason: str = ""
    detail: str = ""


def from_fields(fields: Mapping[str, Any], names: tuple[str, ...], place: str, raw: str) -> Record:
    """Join the named fields that are present, in the order of ``names``."""
    found = [(name, fields[name]) for name in names if isinstance(fields.get(name), str)]
    if not found:
        detail = f"none of {', '.join(names)} holds text; fields found: {', '.join(map(str, fields)) or 'none'}"
        return Record(text=raw, place=place, reason=NO_TEXT, detail=detail)
    filled = [(name, value) for name, value in found if value]
    marked = [name == "html" or bool(_HTML.match(value)) for name, value in filled]
    if not any(marked):
        return Record(text="\n".join(value for _, value in filled), place=place)
    parts = [
        value if is_html else f"<p>{html.escape(value)}</p>" for (_, value), is_html in zip(filled, marked, strict=True)
    ]
    return Record(text="\n".join(parts), place=place, format="html")
