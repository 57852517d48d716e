"""The events that the services pass to each other.

An event says "these objects are ready"; it never carries text. Every event is a frozen msgspec Struct, tagged with its
name and version. Unknown fields are refused, so a change of an event is a new version with a golden file of its own.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from mindstream_common.errors import Poison

Domain = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,47}\Z")]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Id = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Count = Annotated[int, Meta(ge=0)]
Split = Literal["train", "held_out"]


class Object(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One object in the store: where it lies, and what it must contain to be believed."""

    key: str
    size: Count  # bytes
    sha256: Sha256


class Event(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """What every event has.

    ``id`` is derived from the parents and the configuration (see :func:`mindstream_common.ids.shard_id`), so the same
    work always carries the same name. ``created`` is seconds since the epoch; it informs people and decides nothing.
    """

    id: Id
    domain: Domain
    objects: tuple[Object, ...]
    created: float


class Shard(Event, frozen=True, kw_only=True):
    """An event about a shard: ``root`` is the raw shard it descends from, ``parents`` what it was made of."""

    root: Id
    parents: tuple[Id, ...]
    documents: Count


class SourceFileV1(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a bundle as ``files.v1`` said it."""

    name: str
    text_fields: tuple[str, ...] = ()


class FileBundleV1(Event, frozen=True, kw_only=True, tag="files.v1"):
    """Files that were accepted, as written before ``files.v2``. Read for ever, never written."""

    files: tuple[SourceFileV1, ...]

    def upgraded(self) -> FileBundle:
        """The same bundle, with the same id, as it is written now."""
        files = tuple(SourceFile(name=file.name, text_fields=file.text_fields) for file in self.files)
        return FileBundle(id=self.id, domain=self.domain, objects=self.objects, created=self.created, files=files)


class SourceFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a bundle: the name that people know it by, and where in its records the text is.

    ``text_fields`` are joined by newlines; ``template`` (``{ask}\\n{answer}``) takes their place when it is set.
    ``members``: only these files of an archive (the ones that a dead letter is about); empty means all.
    """

    name: str
    text_fields: tuple[str, ...] = ()
    template: str = ""
    members: tuple[str, ...] = ()


class FileBundle(Event, frozen=True, kw_only=True, tag="files.v2"):
    """Files that were accepted: their bytes lie in the store; ``files[i]`` describes ``objects[i]``."""

    files: tuple[SourceFile, ...]


class RawShard(Shard, frozen=True, kw_only=True, tag="raw.v1"):
    """Documents as they came, one per Parquet row."""


class CleanShard(Shard, frozen=True, kw_only=True, tag="clean.v1"):
    """Documents that survived cleaning."""


class TokenShard(Shard, frozen=True, kw_only=True, tag="tokens.v1"):
    """Rows of token ids."""

    rows: Count
    tokens: Count  # without special tokens
    vocab_size: Count
    tokenizer_sha256: Sha256


class RowGroup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Consecutive rows of a MindRecord shard that share a split and a padded length."""

    split: Split
    length: Count
    rows: Count


class CatalogShard(Shard, frozen=True, kw_only=True, tag="catalog.v1"):
    """A MindRecord shard that was read back and can be trained on.

    ``objects`` are the ``.mindrecord`` and its ``.db``. Rows lie in the order of ``groups``: row numbers of group *g*
    start at the sum of the rows of the groups before it.
    """

    rows: Count
    tokens: Count
    vocab_size: Count
    tokenizer_sha256: Sha256
    dtype: Literal["uint16", "int32"]
    groups: tuple[RowGroup, ...]


class DeadLetter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="dead.v1"):
    """An event that could not be worked on, and why."""

    stage: str
    domain: str
    subject: str  # where the event waited: `dead retry` publishes it there again
    event: msgspec.Raw
    kind: Literal["poison", "failed", "died"]
    error: str
    attempts: Count
    at: float


class WindowShard(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A catalogued shard in a window: which pass over it this is (0 = first), and its rows by length."""

    seq: Count  # its sequence in CATALOG
    shard: Id
    domain: Domain
    epoch: Count
    groups: tuple[RowGroup, ...]


class CarriedRows(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows of an earlier window that did not fill a global batch; they come first in this one."""

    seq: Count
    shard: Id
    domain: Domain
    epoch: Count
    length: Count
    rows: tuple[Count, ...]


class RunStartedV1(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="run_started.v1"
):
    """A start as written before ``run_started.v2``. Read for ever, never written."""

    run: str
    seed: int
    config_sha256: Sha256
    owner: str
    at: float
    replay_of: str | None = None

    def upgraded(self) -> RunStarted:
        """The same start as it is written now; it did not say its global batch."""
        return RunStarted(
            run=self.run, seed=self.seed, global_batch=None, config_sha256=self.config_sha256, owner=self.owner,
            at=self.at, replay_of=self.replay_of,
        )  # fmt: skip


class RunStarted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="run_started.v2"):
    """First record of a run's journal, and one more each time a trainer takes the run over.

    ``seed`` and ``global_batch`` (rows; None: version 1 did not say) are all that cuts a window into batches.
    """

    run: str
    seed: int
    global_batch: Annotated[int, Meta(ge=1)] | None
    config_sha256: Sha256
    owner: str
    at: float
    replay_of: str | None = None


class Window(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="window.v1"):
    """What a run trains on next. Written before anyone trains on it; with the run's seed and configuration it fixes
    every batch (:func:`mindstream_trainer.plan.plan`)."""

    run: str
    number: Count  # 1, 2, 3, ...
    shards: tuple[WindowShard, ...]
    carry: tuple[CarriedRows, ...] = ()
    at: float


StageEvent = FileBundle | RawShard | CleanShard | TokenShard | CatalogShard
JournalRecord = RunStarted | Window

_stage_decoder = msgspec.json.Decoder(StageEvent | FileBundleV1)
_journal_decoder = msgspec.json.Decoder(JournalRecord | RunStartedV1)
_dead_decoder = msgspec.json.Decoder(DeadLetter)


def encode(event: Struct) -> bytes:
    """JSON with fields in their declared order: the same event is always the same bytes."""
    return msgspec.json.encode(event)


def decode(data: bytes) -> StageEvent:
    """Read a stage event; one of an older version comes back as the newest.

    Raises:
        Poison: the bytes are not an event of a known type and version, or hold unknown fields.
    """
    try:
        event = _stage_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Poison(f"not an event that this version reads: {error}; it begins {data[:120]!r}") from error
    return event.upgraded() if isinstance(event, FileBundleV1) else event


def decode_journal(data: bytes) -> JournalRecord:
    """Read a record of a run's journal; one of an older version comes back as the newest.

    Raises:
        msgspec.MsgspecError: it is not one.
    """
    record = _journal_decoder.decode(data)
    return record.upgraded() if isinstance(record, RunStartedV1) else record


def decode_dead(data: bytes) -> DeadLetter:
    """Read a dead letter. Raises :class:`msgspec.MsgspecError` when it is not one."""
    return _dead_decoder.decode(data)
