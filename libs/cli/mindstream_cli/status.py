"""``mindstream status``: the state of everything, from what the stages have stored."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from mindstream_common.bus import NatsBus
from mindstream_common.topology import STREAMS
from mindstream_trainer import progress
from mindstream_trainer.progress import Progress
from rich.console import Console
from rich.table import Table

from mindstream_cli import stack
from mindstream_cli.connection import Connection, connect
from mindstream_cli.ledger import STAGES, Ledger

TAKES = dict(zip(STAGES, [s.name for s in STREAMS if s.work_queue], strict=True))


class StageStatus(msgspec.Struct, kw_only=True):
    """One stage. ``waiting``: events in its queue; ``working``: handed out to a worker."""

    documents_in: int = 0
    documents_out: int = 0
    dropped: dict[str, int] = msgspec.field(default_factory=dict)
    shards: int = 0
    waiting: int = 0
    working: int = 0


class Status(msgspec.Struct, kw_only=True):
    """Everything that ``status`` shows."""

    stages: dict[str, StageStatus]
    catalog: dict[str, dict[str, int]]  # domain -> rows, tokens
    dead_letters: int
    runs: list[Progress]
    services: dict[str, int]  # name -> metrics port


async def collect(state: Path) -> Status:
    """Read it from the store and the bus."""
    async with connect(state) as connection:
        return await gather(connection, Ledger(connection.store, connection.bus), state)


async def gather(connection: Connection, ledger: Ledger, state: Path) -> Status:
    """The same with a ledger that is kept, so that what was read before is not read again."""
    await asyncio.to_thread(ledger.refresh_manifests)
    await ledger.refresh_catalog()
    stages = {}
    for stage, by_domain in ledger.totals().items():
        found = StageStatus(shards=len(ledger.manifests[stage]))
        for counts in by_domain.values():
            found.documents_in += counts.documents_in
            found.documents_out += counts.documents_out
            for reason, number in counts.dropped.items():
                found.dropped[reason] = found.dropped.get(reason, 0) + number
        found.waiting, found.working = await _queue(connection.bus, TAKES[stage], stage)
        stages[stage] = found
    running = stack.running(state)
    return Status(
        stages=stages,
        catalog={domain: {"rows": rows, "tokens": tokens} for domain, (rows, tokens) in sorted(ledger.rows().items())},
        dead_letters=len(ledger.dead),
        runs=runs(state),
        services=running.services if running else {},
    )


def runs(state: Path) -> list[Progress]:
    """The progress of every run whose files lie under ``state``."""
    found = [progress.read(path) for path in sorted((state / "runs").glob("*"))]
    return [run for run in found if run is not None]


async def _queue(bus: NatsBus, stream: str, durable: str) -> tuple[int, int]:
    found = await bus.waiting(stream, durable)
    return found.pending, found.working


def encode(status: Status) -> str:
    """JSON."""
    return msgspec.json.format(msgspec.json.encode(status)).decode()


def show(status: Status, console: Console) -> None:
    """Tables for a person."""
    console.print(stage_table(status))
    if status.catalog:
        table = Table("domain", "rows", "tokens", title="catalog", title_justify="left")
        for domain, counts in status.catalog.items():
            table.add_row(domain, f"{counts['rows']:,}", f"{counts['tokens']:,}")
        console.print(table)
    for run in status.runs:
        console.print(run_line(run), highlight=False)
    if status.dead_letters:
        console.print(f"{status.dead_letters} dead letters: mindstream dead list", style="red")


def stage_table(status: Status) -> Table:
    """One row a stage."""
    table = Table("stage", "documents", "out")
    table.add_column("dropped", overflow="fold")
    for name in ("shards", "waiting", "working"):
        table.add_column(name)
    for name, stage in status.stages.items():
        reasons = ", ".join(f"{reason} {number:,}" for reason, number in sorted(stage.dropped.items()))
        table.add_row(
            name,
            f"{stage.documents_in:,}",
            f"{stage.documents_out:,}",
            reasons or "0",
            f"{stage.shards:,}",
            str(stage.waiting),
            str(stage.working),
        )
    return table


def run_line(run: Progress) -> str:
    """A run in one line."""
    steps = f"{run.step}/{run.steps}" if run.steps else str(run.step)
    loss = "–" if run.loss is None else f"{run.loss:.3f}"
    left = ""
    if run.steps and run.step_seconds and run.state == "training":
        left = f", {time_left(run):.0f} s left"
    message = f" ({run.message})" if run.message and run.state not in ("training",) else ""
    return (
        f"run {run.run}: {run.state}{message}, step {steps}, loss {loss}, {run.tokens_per_second:,.0f} tokens/s{left}, "
        f"window {run.window}/{run.windows}, checkpoint {run.checkpoint_step or '–'}"
    )


def time_left(run: Progress) -> float:
    """Seconds to the last step at the present speed."""
    assert run.steps
    return run.step_seconds * (run.steps - run.step)
