"""``mindstream drops restore``: dropped documents are sent in again and not dropped for the same reason a second time.

They become new documents of new raw shards, as if ingest had read them: with new ids, the source that they had, and the
reasons for which cleaning must spare them. A document that was dropped as a duplicate is not compared again.

What is restored is first written down as a plan, under the next number in ``restored/``; of two plans at the same
moment one comes second and leaves out what the first has. A document is in one plan at most, so doing it twice does
nothing twice. A plan whose carrying out was cut off is carried out by the next call: each step may happen twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from mindstream_common import documents, events, manifests
from mindstream_common.bus import Bus
from mindstream_common.documents import Document
from mindstream_common.errors import ConfigError, InputError, Transient
from mindstream_common.events import RawShard
from mindstream_common.ids import configuration_hash, shard_id
from mindstream_common.manifests import Manifest
from mindstream_common.stage import Counts
from mindstream_common.store import Store
from mindstream_common.topology import manifest_key, shard_key, subject_of
from rich.console import Console

from mindstream_cli.connection import connect
from mindstream_cli.drops import Dropped, RawDocuments, Selection, check_reason, find
from mindstream_cli.ledger import Ledger

FOLDER = "restored/"
SHARD_DOCUMENTS = 2000
SHARD_CHARACTERS = 4_000_000
PATIENCE = 60.0  # seconds that the bus may be away or its stream full
CONFIGURATION = configuration_hash("restore 1")


class Restored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dropped document, and the reason that it had."""

    document: str
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="restore.v1"):
    """The documents of one raw shard to make."""

    domain: str
    documents: tuple[Restored, ...]

    @property
    def input(self) -> str:
        """The name of this work, from which the shard's id is derived."""
        return shard_id("restore", (self.domain, *(f"{d.document} {d.reason}" for d in self.documents)), CONFIGURATION)

    @property
    def shard(self) -> str:
        """The raw shard's id."""
        return shard_id("ingest", (self.input,), CONFIGURATION)


class Result(msgspec.Struct, kw_only=True):
    """How many documents were restored now, had been before, cannot be because another stage than cleaning dropped
    them, and cannot be because their raw shard is not in the object store any more."""

    restored: int = 0
    before: int = 0
    unread: int = 0
    gone: int = 0


def need_choice(reason: str, document: str) -> None:
    """Raises ConfigError when neither is named: everything that was ever dropped is hardly meant."""
    if not (reason or document):
        raise ConfigError("name what to restore: --document ID, or --reason REASON (and --domain, --limit).")


async def run(state: Path, selection: Selection, limit: int | None, console: Console) -> None:
    """Restore what is meant, and say so."""
    async with connect(state) as connection:
        ledger = Ledger(connection.store, connection.bus)
        await asyncio.to_thread(ledger.refresh_manifests)
        result = await restore(ledger, connection.bus, selection, limit)
    console.print(f"{result.restored} documents are on their way again; {result.before} had been sent in again before.")
    if result.unread:
        console.print(
            f"{result.unread} were dropped by another stage than cleaning and stay dropped: mend their file and submit it."
        )
    if result.gone:
        console.print(
            f"{result.gone} cannot be had any more, because their raw shards were deleted: submit their files."
        )


async def restore(ledger: Ledger, bus: Bus, selection: Selection, limit: int | None = None) -> Result:
    """Plan and carry out.

    Args:
        limit: restore at most so many.

    Raises:
        InputError: no dropped document is meant.
        Transient: the store or the bus is away. The next call goes on with it.
    """
    result = await asyncio.to_thread(_plan, ledger, selection, limit)
    failed = []
    for number, plan in await asyncio.to_thread(_unfinished, ledger.store):
        try:
            event = await asyncio.to_thread(_make, ledger, plan)
        except InputError as error:  # of an earlier call: it keeps the others not waiting
            failed.append(f"{_key(number)}: {error}")
            continue
        await _announce(bus, event, plan)
        await asyncio.to_thread(ledger.store.put_bytes, f"{FOLDER}{number:08d}.done", b"")
    if failed:
        raise InputError(
            f"{result.restored} documents are on their way again, but what was planned before cannot be carried out: "
            + "; ".join(failed)
        )
    return result


def _plan(ledger: Ledger, selection: Selection, limit: int | None) -> Result:
    check_reason(ledger, selection)
    result = Result()
    waiting: dict[str, list[Dropped]] = {}
    planned = {one.document for _, plan in _plans(ledger.store) for one in plan.documents}
    raw = RawDocuments(ledger)
    for found in find(ledger, selection):
        if found.stage != "cleaning":
            result.unread += 1
        elif found.drop.document in planned:
            result.before += 1
        elif not raw.exists(found.drop.document):
            result.gone += 1
        elif limit is None or result.restored < limit:
            result.restored += 1
            batch = waiting.setdefault(found.domain, [])
            batch.append(found)
            if len(batch) == SHARD_DOCUMENTS or sum(len(one.drop.text) for one in batch) > SHARD_CHARACTERS:
                _write_plan(ledger.store, found.domain, waiting.pop(found.domain), result)
    for domain, batch in sorted(waiting.items()):
        _write_plan(ledger.store, domain, batch, result)
    if result == Result():
        raise InputError("no dropped document is meant. `mindstream drops --reason REASON --show 5` shows their ids.")
    return result


def _write_plan(store: Store, domain: str, batch: list[Dropped], result: Result) -> None:
    """Write a plan under the next number that is free, without what another call has planned in the meantime."""
    while batch:
        plans = dict(_plans(store))
        planned = {one.document for plan in plans.values() for one in plan.documents}
        left = [found for found in batch if found.drop.document not in planned]
        result.restored -= len(batch) - len(left)
        result.before += len(batch) - len(left)
        batch = left
        plan = Plan(
            domain=domain,
            documents=tuple(Restored(document=f.drop.document, reason=f.drop.reason) for f in batch),
        )
        if batch and store.put_if_absent(_key(max(plans, default=0) + 1), msgspec.json.encode(plan)):
            return


def _plans(store: Store) -> Iterator[tuple[int, Plan]]:
    for key, _ in sorted(store.list(FOLDER)):
        if key.endswith(".json"):
            yield int(Path(key).stem), msgspec.json.decode(store.get_bytes(key), type=Plan)


def _unfinished(store: Store) -> list[tuple[int, Plan]]:
    done = {int(Path(key).stem) for key, _ in store.list(FOLDER) if key.endswith(".done")}
    return [(number, plan) for number, plan in _plans(store) if number not in done]


def _key(number: int) -> str:
    return f"{FOLDER}{number:08d}.json"


def _make(ledger: Ledger, plan: Plan) -> RawShard:
    """Object, then manifest; the first manifest wins."""
    store, id = ledger.store, plan.shard
    if found := manifests.find(store, RawShard, plan.domain, id):
        assert isinstance(found.event, RawShard), found
        return found.event
    again = list(_documents(ledger, plan))
    size = sum(len(document.text.encode()) for document in again)
    with TemporaryDirectory(prefix="mindstream-restore-") as folder:
        path = Path(folder) / f"{id}.parquet"
        documents.write(path, again)
        object = store.put_file(shard_key(RawShard, plan.domain, id, ".parquet"), path)
    event = RawShard(
        id=id, domain=plan.domain, objects=(object,), created=time.time(), root=id, parents=(plan.input,),
        documents=len(again),
    )  # fmt: skip
    counts = Counts(
        documents_in=len(again), documents_out=len(again), bytes_in=size, bytes_out=size, extra={"restored": len(again)}
    )
    manifest = Manifest(
        stage="ingest", input=plan.input, part=0, last=True, event=event, counts=counts, configuration=CONFIGURATION
    )
    if store.put_if_absent(manifest_key(RawShard, plan.domain, id), manifests.encode(manifest)):
        return event
    return _make(ledger, plan)


def _documents(ledger: Ledger, plan: Plan) -> Iterator[Document]:
    """The documents as they came, with new ids and what they are spared.

    Raises:
        InputError: a raw shard was deleted since this was planned.
    """
    raw = RawDocuments(ledger)
    for row, one in enumerate(plan.documents):
        found = raw.get(one.document)
        if found is None:
            raise InputError(
                f"document {one.document}: its raw shard is not in the object store any more. Put it back, or submit its "
                "file again."
            )
        spared = sorted({*found.spared.split(","), one.reason} - {""})
        yield msgspec.structs.replace(found, id=f"{plan.shard}/{row}", spared=",".join(spared))


async def _announce(bus: Bus, event: RawShard, plan: Plan) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            await bus.publish(subject_of(event), events.encode(event), id=f"ingest:{plan.input}:0")
            return
        except Transient as error:
            if time.monotonic() > until:
                raise Transient(f"{error} (waited {PATIENCE:.0f} s). The same command goes on with it.") from error
            await asyncio.sleep(0.5)
