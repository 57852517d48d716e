"""The audit: every document that ingest accepted is in exactly one place, and every token is counted.

For every shard: documents in = documents out + dropped, what came out of one stage went into the next, and the way ends
in the catalog, in the dead letters, or is still under way. What is in none of these places is lost; what is catalogued
under two shards is doubled.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict

import msgspec
from mindstream_common.events import RunStarted, Window, decode_journal
from mindstream_common.manifests import Manifest
from mindstream_common.topology import JOURNAL, STREAM_OF
from mindstream_trainer import chain

from mindstream_cli.ledger import STAGES, Ledger

NEXT = dict(zip(STAGES, [*list(STAGES)[1:], ""], strict=True))
PATIENCE = 6.0  # seconds that an event may be between two places before it counts as lost


class Flow(msgspec.Struct, kw_only=True):
    """What became of a domain's documents and tokens."""

    accepted: int = 0  # documents that ingest has read
    dropped: dict[str, int] = msgspec.field(default_factory=dict)  # stage.reason -> documents
    dead: int = 0
    waiting: int = 0
    catalogued: int = 0
    rows: int = 0
    tokens: int = 0  # that the tokenizer made
    tokens_dropped: int = 0
    tokens_catalogued: int = 0
    tokens_waiting: int = 0

    @property
    def balanced(self) -> bool:
        """Documents in = catalogued + dropped + dead + waiting, and the same for tokens."""
        documents = self.catalogued + sum(self.dropped.values()) + self.dead + self.waiting
        tokens = self.tokens_catalogued + self.tokens_dropped + self.tokens_waiting
        return self.accepted == documents and self.tokens == tokens


class Report(msgspec.Struct, kw_only=True):
    """The audit's result. ``problems`` is empty when everything balances."""

    flows: dict[str, Flow]
    stages: dict[str, dict[str, int]]
    shards: dict[str, int]
    problems: list[str]
    dead_letters: int
    files_waiting: int
    files_seen_before: int = 0  # files whose content had been taken: skipped
    runs: dict[str, dict[str, int]]

    @property
    def waiting(self) -> int:
        """Documents and file bundles that are still under way."""
        return self.files_waiting + sum(flow.waiting for flow in self.flows.values())


async def audit(ledger: Ledger) -> Report:
    """Read everything and balance it. An event that is just between two places is looked for again for some seconds."""
    deadline = time.monotonic() + PATIENCE
    while True:
        await ledger.refresh_queues()  # upstream first: what leaves a queue now is found further down
        await asyncio.to_thread(ledger.refresh_manifests)
        await ledger.refresh_catalog()
        report = _balance(ledger)
        if not report.problems or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.5)
    await _runs(ledger, report)
    return report


def _balance(ledger: Ledger) -> Report:
    children: dict[tuple[str, str], list[Manifest]] = defaultdict(list)
    for stage, by_id in ledger.manifests.items():
        for manifest in by_id.values():
            children[stage, manifest.input].append(manifest)
    catalogued = {event.id for event in ledger.catalog.values()}
    dead = {(letter.stage, _event_id(letter.event)) for letter in ledger.dead.values()}
    flows: dict[str, Flow] = defaultdict(Flow)
    problems = [f"DAMAGED: the manifest {text}" for text in sorted(ledger.damaged)]
    for manifest in ledger.manifests["ingest"].values():
        flow = flows[manifest.event.domain]
        flow.accepted += manifest.counts.documents_in
        _drops(flow, "ingest", manifest)
        _follow(ledger, "ingest", manifest, children, catalogued, dead, flow, problems)
    _unfinished(ledger, children, dead, problems)
    _doubles(ledger, problems)
    return Report(
        flows=dict(flows),
        stages={
            stage: {
                "documents_in": sum(m.counts.documents_in for m in by_id.values()),
                "documents_out": sum(m.counts.documents_out for m in by_id.values()),
                "dropped": sum(sum(m.counts.dropped.values()) for m in by_id.values()),
                "shards": len(by_id),
            }
            for stage, by_id in ledger.manifests.items()
        },
        shards={"catalog_events": len(ledger.catalog), "catalogued": len(catalogued)},
        problems=problems,
        dead_letters=len(ledger.dead),
        files_waiting=len(ledger.queued.get("FILES", ())),
        files_seen_before=sum(m.counts.extra.get("files_duplicate", 0) for m in ledger.manifests["ingest"].values()),
        runs={},
    )


def _follow(
    ledger: Ledger,
    stage: str,
    manifest: Manifest,
    children: dict[tuple[str, str], list[Manifest]],
    catalogued: set[str],
    dead: set[tuple[str, str]],
    flow: Flow,
    problems: list[str],
) -> None:
    """Follow one shard to where its way ends, adding what is met to ``flow``."""
    documents = manifest.counts.documents_out
    while documents:
        if stage == "writer":
            _arrived(ledger, manifest, catalogued, flow, problems)
            return
        following = NEXT[stage]
        found = children.get((following, manifest.event.id), [])
        if not found:
            tokens = manifest.counts.tokens_out
            if (following, manifest.event.id) in dead:
                flow.dead += documents
                flow.tokens_dropped += tokens
            elif _under_way(ledger, stage, manifest):
                flow.waiting += documents
                flow.tokens_waiting += tokens
            else:
                problems.append(
                    f"LOST: {documents} documents of {stage}'s shard {manifest.event.id} ({manifest.event.domain})"
                )
            return
        child = next((c for c in found if c.event.id in catalogued), found[0])
        if child.counts.documents_in != documents or (
            stage == "tokenizer" and child.counts.tokens_in != manifest.counts.tokens_out
        ):
            problems.append(
                f"UNBALANCED: {stage}'s shard {manifest.event.id} passed on {documents} documents and "
                f"{manifest.counts.tokens_out} tokens, {following} read {child.counts.documents_in} and {child.counts.tokens_in}"
            )
        _drops(flow, following, child)
        if following == "tokenizer":
            flow.tokens += child.counts.tokens_in
        flow.tokens_dropped += child.counts.tokens_dropped
        stage, manifest, documents = following, child, child.counts.documents_out


def _arrived(ledger: Ledger, manifest: Manifest, catalogued: set[str], flow: Flow, problems: list[str]) -> None:
    counts = manifest.counts
    if manifest.event.id in catalogued:
        flow.catalogued += counts.documents_out
        flow.rows += counts.rows
        flow.tokens_catalogued += counts.tokens_out
    elif _under_way(ledger, "writer", manifest):
        flow.waiting += counts.documents_out
        flow.tokens_waiting += counts.tokens_out
    else:
        problems.append(
            f"LOST: {counts.documents_out} documents of the MindRecord shard {manifest.event.id}: never catalogued"
        )


def _under_way(ledger: Ledger, stage: str, manifest: Manifest | None, *, or_itself: bool = True) -> bool:
    """Whether the shard's event (``or_itself``), or an event that it was made from, lies in a work queue."""
    makes = STREAM_OF[STAGES[stage]].name
    while manifest is not None:
        if or_itself and manifest.event.id in ledger.queued.get(makes, ()):
            return True
        or_itself = True
        above = list(STAGES)[list(STAGES).index(stage) - 1] if stage != "ingest" else None
        if above is None:
            return manifest.input in ledger.queued.get("FILES", ())
        makes = STREAM_OF[STAGES[above]].name
        stage, manifest = above, ledger.manifests[above].get(manifest.input)
    return False


def _unfinished(
    ledger: Ledger,
    children: dict[tuple[str, str], list[Manifest]],
    dead: set[tuple[str, str]],
    problems: list[str],
) -> None:
    """An input that gave some parts must give the last one too, or still be worked on."""
    for (stage, input), found in children.items():
        if any(manifest.last for manifest in found) or (stage, input) in dead:
            continue
        if not _under_way(ledger, stage, max(found, key=lambda manifest: manifest.part), or_itself=False):
            problems.append(
                f"LOST: {stage} has stored {len(found)} parts of {input}, and the last one is not among them"
            )


def _drops(flow: Flow, stage: str, manifest: Manifest) -> None:
    for reason, number in manifest.counts.dropped.items():
        name = f"{stage}.{reason}"
        flow.dropped[name] = flow.dropped.get(name, 0) + number


def _doubles(ledger: Ledger, problems: list[str]) -> None:
    """Two catalogued shards that descend from one raw shard would be the same documents twice."""
    by_root: dict[str, set[str]] = defaultdict(set)
    for event in ledger.catalog.values():
        by_root[event.root].add(event.id)
    for root, ids in by_root.items():
        if len(ids) > 1:
            problems.append(f"DOUBLED: raw shard {root} was catalogued as {', '.join(sorted(ids))}")


async def _runs(ledger: Ledger, report: Report) -> None:
    """Each run's journal: windows in order, each shard once per pass, each window carrying what the one before left."""
    windows: dict[str, list[Window]] = defaultdict(list)
    starts: dict[str, RunStarted] = {}  # a later one with other values is refused by the trainer
    async for record in ledger.bus.read(JOURNAL):
        entry = decode_journal(record.data)
        if isinstance(entry, Window):
            windows[entry.run].append(entry)
        elif entry.global_batch is not None:
            starts.setdefault(entry.run, entry)
    for run, listed in windows.items():
        passes = [(shard.seq, shard.epoch) for window in listed for shard in window.shards]
        if len(set(passes)) != len(passes):
            report.problems.append(f"DOUBLED: run {run!r} has a shard twice in the same pass")
        if [window.number for window in listed] != list(range(1, len(listed) + 1)):
            report.problems.append(f"LOST: the journal of run {run!r} lacks a window")
        elif run in starts:
            report.problems += await asyncio.to_thread(_broken, starts[run], listed)
        report.runs[run] = {"windows": len(listed), "shards": len({seq for seq, _ in passes}), "passes": len(passes)}


def _broken(start: RunStarted, windows: list[Window]) -> list[str]:
    """Windows that do not carry what the one before left over; that is computed again from the journal alone."""
    assert start.global_batch is not None
    problems: list[str] = []
    for broken in chain.breaks(windows, seed=start.seed, global_batch=start.global_batch):
        where = f"window {broken.number} of run {start.run!r}"
        if broken.lost:
            problems.append(f"LOST: {where} does not carry {broken.lost} rows that the window before left over")
        if broken.doubled:
            problems.append(f"DOUBLED: {where} carries {broken.doubled} rows that the window before did not leave over")
        if not broken.lost + broken.doubled:
            problems.append(f"UNBALANCED: {where} carries the rows of the window before in another order")
    return problems


def _event_id(raw: msgspec.Raw) -> str:
    found = msgspec.json.decode(raw)
    return str(found.get("id", "")) if isinstance(found, dict) else ""
