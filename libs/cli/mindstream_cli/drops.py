"""``mindstream drops``: what the stages have dropped and why, by reason, and the documents themselves."""

from __future__ import annotations

import asyncio
import io
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pyarrow.parquet as pq
from mindstream_common import documents
from mindstream_common.documents import Document
from mindstream_common.errors import InputError
from mindstream_common.manifests import Manifest
from mindstream_common.stage import Drop
from mindstream_common.store import NotFound
from rich.console import Console
from rich.table import Table

from mindstream_cli.connection import connect
from mindstream_cli.ledger import STAGES, Ledger

SHOWN = 200  # characters of a text


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """A dropped document and where it was dropped."""

    stage: str
    domain: str
    drop: Drop


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which dropped documents are meant; what is empty asks for nothing."""

    reason: str = ""
    domain: str = ""
    document: str = ""

    def has(self, found: Dropped) -> bool:
        """Whether it is meant."""
        return (
            self.reason in ("", found.drop.reason)
            and self.domain in ("", found.domain)
            and self.document in ("", found.drop.document)
        )


def counts(ledger: Ledger) -> dict[tuple[str, str, str], int]:
    """``counts[domain, stage, reason]``: documents, from the manifests."""
    found: Counter[tuple[str, str, str]] = Counter()
    for stage in STAGES:
        for manifest in ledger.manifests[stage].values():
            for reason, number in manifest.counts.dropped.items():
                found[manifest.event.domain, stage, reason] += number
    return dict(sorted(found.items()))


def find(ledger: Ledger, selection: Selection) -> Iterator[Dropped]:
    """The dropped documents that are meant, shard by shard in the order of the shards' ids."""
    for stage in STAGES:
        for _, manifest in sorted(ledger.manifests[stage].items()):
            if manifest.drops is None or not _may_have(manifest, selection):
                continue
            for row in pq.read_table(io.BytesIO(ledger.store.get_bytes(manifest.drops.key))).to_pylist():
                found = Dropped(stage=stage, domain=manifest.event.domain, drop=msgspec.convert(row, Drop))
                if selection.has(found):
                    yield found


def _may_have(manifest: Manifest, selection: Selection) -> bool:
    """Whether it is worth while to read a shard's drops."""
    root = selection.document.split("/", 1)[0]  # a document is named after its raw shard
    return (
        selection.reason in ("", *manifest.counts.dropped)
        and selection.domain in ("", manifest.event.domain)
        and root in ("", getattr(manifest.event, "root", ""))
    )


@dataclass
class RawDocuments:
    """Documents as they came, by id: the raw shard that the id names is read. The last one is kept."""

    ledger: Ledger
    _shard: str = ""
    _documents: dict[str, Document] = field(default_factory=dict)
    _there: dict[str, bool] = field(default_factory=dict)

    def get(self, id: str) -> Document | None:
        """The document, or None when its raw shard is not there any more."""
        shard = id.split("/", 1)[0]
        if shard != self._shard:
            self._documents = {document.id: document for document in self._read(shard)}
            self._shard = shard
        return self._documents.get(id)

    def exists(self, id: str) -> bool:
        """Whether the document's raw shard is still in the store."""
        shard = id.split("/", 1)[0]
        if shard not in self._there:
            manifest = self.ledger.manifests["ingest"].get(shard)
            self._there[shard] = manifest is not None and all(
                self.ledger.store.exists(object.key) for object in manifest.event.objects
            )
        return self._there[shard]

    def _read(self, shard: str) -> list[Document]:
        manifest = self.ledger.manifests["ingest"].get(shard)
        if manifest is None:
            return []
        with TemporaryDirectory(prefix="mindstream-drops-") as folder:
            found: list[Document] = []
            for object in manifest.event.objects:
                path = Path(folder) / "raw.parquet"
                try:
                    self.ledger.store.get_file(object, path)
                except NotFound:
                    return []
                found += documents.read(path)
            return found


async def run(state: Path, selection: Selection, show: int, as_json: bool, console: Console) -> None:
    """Counts by reason, then ``show`` of the documents."""
    async with connect(state) as connection:
        ledger = Ledger(connection.store, connection.bus)
        await asyncio.to_thread(ledger.refresh_manifests)
        await asyncio.to_thread(report, ledger, selection, show, as_json, console)


def report(ledger: Ledger, selection: Selection, show: int, as_json: bool, console: Console) -> None:
    """Print them.

    Raises:
        InputError: nothing was ever dropped for such a reason.
    """
    numbers = {
        key: number
        for key, number in counts(ledger).items()
        if selection.domain in ("", key[0]) and selection.reason in ("", key[2])
    }
    check_reason(ledger, selection)
    wanted = 1 if selection.document else show
    raw = RawDocuments(ledger)
    chosen = list(islice(find(ledger, selection), wanted))
    kept = [raw.get(found.drop.duplicate_of) if found.drop.duplicate_of else None for found in chosen]
    if as_json:
        _as_json(numbers, chosen, kept)
        return
    table = Table("domain", "stage", "reason", "documents")
    for (domain, stage, reason), number in numbers.items():
        table.add_row(domain, stage, reason, str(number))
    console.print(table if numbers else "Nothing was dropped.")
    for found, document in zip(chosen, kept, strict=True):
        _print(found, document, console)
    if numbers and not chosen:
        console.print("See some of them: mindstream drops --reason REASON --show 5")


def check_reason(ledger: Ledger, selection: Selection) -> None:
    """Raises InputError when nothing was ever dropped for the reason."""
    known = sorted({reason for _, _, reason in counts(ledger)})
    if selection.reason and selection.reason not in known:
        raise InputError(
            f"--reason {selection.reason!r}: nothing was dropped for that. Reasons so far: {', '.join(known) or 'none'}."
        )


def _print(found: Dropped, kept: Document | None, console: Console) -> None:
    drop = found.drop
    console.print()
    console.print(f"{found.domain} · {found.stage}.{drop.reason} · {drop.source}", style="bold", markup=False)
    console.print(f"document {drop.document}", markup=False, highlight=False)
    if drop.detail:
        console.print(f"because: {drop.detail}", markup=False, highlight=False)
    console.print(f"text: {begin(drop.text)}", markup=False, highlight=False)
    if drop.duplicate_of:
        where = f"kept: {drop.duplicate_of}"
        text = f"{kept.source}: {begin(kept.text)}" if kept else "its raw shard is not there any more"
        console.print(f"{where} · {text}", markup=False, highlight=False)


def begin(text: str) -> str:
    """How a text begins, on one line, with what cannot be printed made visible."""
    shown = "".join(c if c.isprintable() else "⏎" if c == "\n" else "�" for c in text[:SHOWN])
    return shown + (f"… ({len(text)} characters)" if len(text) > SHOWN else "")


def _as_json(numbers: dict[tuple[str, str, str], int], chosen: list[Dropped], kept: list[Document | None]) -> None:
    found = {
        "counts": [{"domain": d, "stage": s, "reason": r, "documents": n} for (d, s, r), n in numbers.items()],
        "documents": [
            {"stage": one.stage, "domain": one.domain, **msgspec.to_builtins(one.drop)}
            | ({"kept_source": document.source, "kept_text": document.text} if document else {})
            for one, document in zip(chosen, kept, strict=True)
        ],
    }
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
