"""The section ``ingest`` of a run's file."""

from __future__ import annotations

from typing import Annotated

import msgspec
from mindstream_common import ids
from mindstream_common.config import Section
from mindstream_common.errors import ConfigError
from mindstream_common.events import Domain
from msgspec import Meta

from mindstream_ingest import mapping
from mindstream_ingest.fields import parse

Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]


class HttpConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/documents``. Without MINDSTREAM_INGEST_TOKEN in the environment it listens on 127.0.0.1 only.

    ``body_bytes``: the longest body, decompressed. ``waiting_bytes``: bodies in memory at one time; more are turned
    away with 503. ``seconds``: for a client to send its whole request. ``gather_seconds``: how long an event waits for
    others to share a bundle. ``patience_seconds``: how long a full queue is waited for before the answer is 503.
    """

    port: Annotated[int, Meta(ge=1, le=65535)]
    host: str = "127.0.0.1"
    body_bytes: Positive = 16_000_000
    waiting_bytes: Positive = 128_000_000
    seconds: Seconds = 30.0
    gather_seconds: Annotated[float, Meta(ge=0, le=5)] = 0.2
    patience_seconds: Seconds = 5.0


class SourceConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place that is looked at again and again: ``s3`` is a prefix of our own bucket (``inbox/medical/``) or of
    another one on the same endpoint (``s3://bucket/prefix/``); ``folder`` is a path on this machine."""

    domain: Domain
    s3: str = ""
    folder: str = ""
    poll_seconds: Seconds = 10.0
    text_fields: tuple[str, ...] = ()
    template: str = ""

    def __post_init__(self) -> None:
        if bool(self.s3) == bool(self.folder):
            raise ConfigError("a source has either s3 (a prefix) or folder (a path)")
        if self.template and self.text_fields:
            raise ConfigError("a source has either text_fields or template")
        mapping.check(self.text_fields, self.template)
        if self.template:
            parse(self.template)


class IngestConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How files become raw shards.

    ``text_fields``: which fields of a record hold its text, joined by a newline in this order; those that a record
    lacks are left out (a file may name its own in its :class:`~mindstream_common.events.SourceFile`).
    ``shard_documents`` and ``shard_bytes`` (UTF-8): a raw shard is closed when either is reached.
    ``record_bytes``: the longest single document; ``file_bytes``: the longest file, decompressed, and all members of an
    archive together; ``compression_ratio``: how many times larger than its compressed bytes a file may be before it is
    taken for a bomb (below 64 MB nothing is). ``archive_members``: the most files in a tar or zip.
    ``office_bytes``: the longest pdf or docx file; ``office_seconds``: processor time that reading one may take.
    """

    text_fields: tuple[str, ...] = ("title", "text", "content", "ask", "answer", "html")
    shard_documents: Positive = 2000
    shard_bytes: Positive = 8_000_000
    record_bytes: Positive = 16_000_000
    file_bytes: Positive = 200_000_000_000
    compression_ratio: Positive = 200
    archive_members: Positive = 20_000
    office_bytes: Positive = 100_000_000
    office_seconds: Seconds = 60.0
    http: HttpConfig | None = None
    sources: tuple[SourceConfig, ...] = ()

    def hash(self, algorithm: str) -> str:
        """Names what decides the bytes of raw shards; where files come from does not."""
        return ids.configuration_hash(msgspec.structs.replace(self, http=None, sources=()), ingest=algorithm)
