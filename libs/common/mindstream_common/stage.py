"""What a stage is: a pure function from one shard to shards. Everything else is the runner's.

A stage's own file imports this module and nothing of NATS, S3, Valkey or Prometheus. It gets :class:`Work` (verified
local files, a scratch folder, claims) and yields :class:`Product` (local files and counts). The runner
(:mod:`mindstream_common.runner`) pulls, heartbeats, stores, publishes, acks, retries, counts and drains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from mindstream_common.events import Event, FileBundle, Shard
from mindstream_common.signatures import Sketches

E = TypeVar("E", bound=Event)


class Counts(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The numbers that ``mindstream audit`` balances; they are stored in the manifest.

    documents_in == documents_out + sum(dropped.values()), and tokens_in == tokens_out + tokens_dropped.
    Tokens are counted without special tokens. A stage that knows nothing of rows or tokens leaves them 0.
    """

    documents_in: int = 0
    documents_out: int = 0
    dropped: dict[str, int] = msgspec.field(default_factory=dict)
    bytes_in: int = 0
    bytes_out: int = 0
    rows: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_dropped: int = 0
    extra: dict[str, int] = msgspec.field(default_factory=dict)

    def check(self) -> None:
        """An output that does not balance is a bug of the stage; it must never be stored."""
        assert self.documents_in == self.documents_out + sum(self.dropped.values()), self
        assert self.tokens_in == self.tokens_out + self.tokens_dropped, self


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """A document that was dropped, kept where a person can look: ``detail`` says what it was measured against,
    ``duplicate_of`` names the kept document that it repeats."""

    document: str
    source: str
    reason: str
    text: str
    detail: str = ""
    duplicate_of: str = ""


class Holder(NamedTuple):
    """Why a document is a duplicate: ``owner`` is the kept document that it repeats, ``""`` when there is none.
    ``exact`` when both have the same hash; else ``similarity`` is the estimated Jaccard index of their sketches."""

    owner: str = ""
    exact: bool = False
    similarity: float = 0.0


class Claims(Protocol):
    """Who was first. Answers survive crashes and redeliveries: asking again gives the same."""

    def claim(self, batch: str, keys: Sequence[bytes], owners: Sequence[str]) -> list[str]:
        """For each key: ``""`` when ``owners[i]`` holds it (it is the first, now or in an earlier delivery), else the
        owner that held it before. ``batch`` names the call: the same batch gets the same answers again.

        Keys are 16-byte hashes. Two equal keys in one call: the first owner wins.
        """
        ...

    def claim_similar(
        self, batch: str, keys: Sequence[bytes], owners: Sequence[str], sketches: Sketches
    ) -> list[Holder]:
        """The same for documents that may also be similar: one that is, to a document that was kept, holds nothing
        and is never the reason for dropping another. A document without a sketch is compared by its key alone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Generic[E]):
    """What a stage works on.

    ``known``: counts of the parts that an earlier delivery has stored, from part 0 on. What a stage yields for those is
    not looked at; one that can go on from there without doing them again may yield empty products in their place.
    """

    event: E
    files: tuple[Path, ...]  # event.objects, downloaded and verified, in the same order
    folder: Path  # scratch: outputs go here; emptied afterwards
    claims: Claims
    known: tuple[Counts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One output shard: local files by suffix (``.parquet``; ``.mindrecord`` and ``.mindrecord.db``), what was counted,
    what was dropped, further fields of the next event, and input files that can never be read (ingest)."""

    files: dict[str, Path] = field(default_factory=dict)
    counts: Counts
    drops: Sequence[Drop] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    dead: Sequence[tuple[FileBundle, str]] = ()


class Stage(Protocol[E]):
    """A stage: built once in the worker process, then called for every event.

    ``run`` yields at least one product; products of the same event must come in the same order with the same bytes
    each time. ``configuration`` is the hash that goes into shard ids. Raise ``Poison`` for an event that can never
    succeed and ``Transient`` for one that may succeed later; a bad document never fails its shard, it is a drop.
    """

    configuration: str

    def run(self, work: Work[E]) -> Iterable[Product] | Iterator[Product]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One line per service: what the stage takes and makes. The runner derives subjects, streams, keys and metrics."""

    name: str  # ingest, cleaning, tokenizer, writer
    takes: type[Event]
    makes: type[Shard]
    claims: bool = False  # whether ``work.claims`` is used: others need no Valkey
    claims_version: str = ""  # what the claims rest on: another one forgets those before (see claims.namespace)
