"""The section ``ingest`` of a run's file."""

from __future__ import annotations

from typing import Annotated

from mindstream_common.config import Section
from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]


class IngestConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How files become raw shards.

    ``text_fields``: which fields of a jsonl or csv record hold its text, joined by a newline in this order; those that a
    record lacks are left out (a file may name its own in its :class:`~mindstream_common.events.SourceFile`).
    ``shard_documents`` and ``shard_bytes`` (UTF-8): a raw shard is closed when either is reached.
    ``record_bytes``: the longest single document; ``file_bytes``: the longest file, decompressed;
    ``compression_ratio``: how many times larger than its compressed bytes a file may be before it is taken for a bomb
    (below 64 MB nothing is).
    """

    text_fields: tuple[str, ...] = ("title", "text", "content", "ask", "answer", "html")
    shard_documents: Positive = 2000
    shard_bytes: Positive = 8_000_000
    record_bytes: Positive = 16_000_000
    file_bytes: Positive = 200_000_000_000
    compression_ratio: Positive = 200
