"""Where each event travels and where its objects lie: streams, subjects and keys, in one table."""

from __future__ import annotations

from dataclasses import dataclass

from mindstream_common.events import CatalogShard, CleanShard, Event, FileBundle, RawShard, TokenShard


@dataclass(frozen=True, slots=True)
class Stream:
    """A JetStream stream. A work queue hands each message to one worker and pushes back when it is full."""

    name: str
    subject: str  # its subjects are <subject>.>
    work_queue: bool


FILES = Stream("FILES", "files", True)
RAW = Stream("RAW", "raw", True)
CLEAN = Stream("CLEAN", "clean", True)
TOKENS = Stream("TOKENS", "tokens", True)
CATALOG = Stream("CATALOG", "catalog", False)
JOURNAL = Stream("JOURNAL", "journal", False)
DEAD = Stream("DEAD", "dead", False)
STREAMS = (FILES, RAW, CLEAN, TOKENS, CATALOG, JOURNAL, DEAD)

STREAM_OF: dict[type[Event], Stream] = {
    FileBundle: FILES,
    RawShard: RAW,
    CleanShard: CLEAN,
    TokenShard: TOKENS,
    CatalogShard: CATALOG,
}
_FOLDER_OF: dict[type[Event], str] = {
    FileBundle: "files",
    RawShard: "raw",
    CleanShard: "clean",
    TokenShard: "tokens",
    CatalogShard: "mindrecord",
}


def subject_of(event: Event) -> str:
    """The subject that this event is published on, ``<stream's subject>.<domain>``."""
    return f"{STREAM_OF[type(event)].subject}.{event.domain}"


def shard_key(makes: type[Event], domain: str, id: str, suffix: str) -> str:
    """Key of a shard's object, e.g. ``shards/raw/medical/<id>.parquet``."""
    return f"shards/{_FOLDER_OF[makes]}/{domain}/{id}{suffix}"


def manifest_key(makes: type[Event], domain: str, id: str) -> str:
    """Key of a shard's manifest, beside the shard."""
    return shard_key(makes, domain, id, ".manifest.json")


def drops_key(makes: type[Event], domain: str, id: str) -> str:
    """Key of the documents that were dropped while the shard was made."""
    return f"drops/{_FOLDER_OF[makes]}/{domain}/{id}.parquet"
