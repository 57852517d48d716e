"""What a file's reader hands on: a record with its text, or the reason why there is none."""

from __future__ import annotations

import msgspec

MALFORMED = "malformed"  # the line, row or record cannot be read as one
NO_TEXT = "no_text"  # a record, but no text in the fields that should hold it
TOO_LONG = "too_long"  # longer than ingest.record_bytes
ENCODING = "encoding"  # a record of a web archive whose encoding cannot be told
OTHER = "other"  # what a web archive holds beside pages: counted, not kept


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """``place`` is where in the file it stands (a line number; empty for a whole file). With ``reason`` set it is a
    record that could not be read: ``text`` is then what was found instead.

    ``at`` is how many units (lines, rows, records) of the file lie before it: a reader that is told to skip so many
    begins with this record.
    """

    text: str
    place: str = ""
    format: str = "text"
    reason: str = ""
    detail: str = ""
    at: int = 0
