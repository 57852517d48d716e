"""Everything the stages have written down: manifests from the store, catalog and dead letters from the bus.

Manifests never change, so each is read once; ``refresh`` reads what is new.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec
from mindstream_common import manifests
from mindstream_common.bus import Bus, Record
from mindstream_common.events import (
    CatalogShard,
    CleanShard,
    DeadLetter,
    Event,
    RawShard,
    StageEvent,
    TokenShard,
    decode,
    decode_dead,
)
from mindstream_common.manifests import Manifest
from mindstream_common.stage import Counts
from mindstream_common.store import Store
from mindstream_common.topology import CATALOG, DEAD, STREAMS

STAGES: dict[str, type[Event]] = {
    "ingest": RawShard,
    "cleaning": CleanShard,
    "tokenizer": TokenShard,
    "writer": CatalogShard,
}


@dataclass
class Ledger:
    """``manifests[stage][shard id]``, ``catalog[sequence]``, ``dead[sequence]`` and what lies in the work queues."""

    store: Store
    bus: Bus
    manifests: dict[str, dict[str, Manifest]] = field(default_factory=lambda: {stage: {} for stage in STAGES})
    catalog: dict[int, CatalogShard] = field(default_factory=dict)
    dead: dict[int, DeadLetter] = field(default_factory=dict)
    queued: dict[str, set[str]] = field(default_factory=dict)  # stream -> ids of the events in it
    damaged: set[str] = field(default_factory=set)  # manifests that cannot be read, and why
    _read: set[str] = field(default_factory=set)  # keys

    def refresh_manifests(self) -> None:
        """Read the manifests that are new. Blocks: call it in a thread."""
        self.damaged.clear()
        with ThreadPoolExecutor(8) as pool:
            for stage, makes in STAGES.items():
                known = self.manifests[stage]
                new = [key for key, _ in manifests.all_of(self.store, makes) if key not in self._read]
                for key, data in zip(new, pool.map(self.store.get_bytes, new), strict=True):
                    manifest = self._decode(key, data)
                    if manifest is not None:
                        known[manifest.event.id] = manifest
                        self._read.add(key)

    def _decode(self, key: str, data: bytes) -> Manifest | None:
        try:
            return manifests.decode(data)
        except msgspec.MsgspecError as error:
            self.damaged.add(f"{key}: {error}")
            return None

    async def refresh_catalog(self) -> None:
        """Read the catalog's new events, and the dead letters (they can be taken away)."""
        async for record in self.bus.read(CATALOG, after=max(self.catalog, default=0)):
            event = decode(record.data)
            assert isinstance(event, CatalogShard), event
            self.catalog[record.seq] = event
        self.dead = {record.seq: decode_dead(record.data) async for record in self.bus.read(DEAD)}

    async def refresh_queues(self) -> None:
        """Read which events lie in the work queues, handed out or not."""
        self.queued = {}
        for stream in STREAMS:
            if stream.work_queue:
                self.queued[stream.name] = {_id(record) async for record in self.bus.read(stream)}

    def totals(self) -> dict[str, dict[str, Counts]]:
        """``totals[stage][domain]``: the sums of all manifests' counts."""
        found: dict[str, dict[str, Counts]] = {stage: defaultdict(Counts) for stage in STAGES}
        for stage, by_id in self.manifests.items():
            for manifest in by_id.values():
                add(found[stage][manifest.event.domain], manifest.counts)
        return found

    def rows(self) -> dict[str, tuple[int, int]]:
        """Catalogued ``(rows, tokens)`` by domain; an event that came twice counts once."""
        found: dict[str, tuple[int, int]] = {}
        for event in {event.root: event for event in self.catalog.values()}.values():
            rows, tokens = found.get(event.domain, (0, 0))
            found[event.domain] = (rows + event.rows, tokens + event.tokens)
        return found


def add(total: Counts, counts: Counts) -> None:
    """Add ``counts`` to ``total``, in place."""
    for name in (
        "documents_in",
        "documents_out",
        "bytes_in",
        "bytes_out",
        "rows",
        "tokens_in",
        "tokens_out",
        "tokens_dropped",
    ):
        setattr(total, name, getattr(total, name) + getattr(counts, name))
    for ours, theirs in ((total.dropped, counts.dropped), (total.extra, counts.extra)):
        for name, number in theirs.items():
            ours[name] = ours.get(name, 0) + number


def _id(record: Record) -> str:
    event: StageEvent = decode(record.data)
    return event.id
