"""``mindstream audit``: run the audit and show it."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from mindstream_cli.audit import Report, audit
from mindstream_cli.connection import connect
from mindstream_cli.ledger import Ledger


async def run(state: Path, as_json: bool, wait: float, console: Console) -> int:
    """Audit, print, and return the exit code: 1 when the numbers do not balance."""
    deadline = time.monotonic() + wait
    async with connect(state) as connection:
        ledger = Ledger(connection.store, connection.bus)
        report = await audit(ledger)
        while report.waiting and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            report = await audit(ledger)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report)).decode() + "\n")
    else:
        show(report, console)
    return 0 if balanced(report) else 1


def balanced(report: Report) -> bool:
    """Whether every number adds up."""
    return not report.problems and all(flow.balanced for flow in report.flows.values())


def show(report: Report, console: Console) -> None:
    """Tables for a person, and a verdict."""
    table = Table(
        "domain",
        "accepted",
        "= catalogued",
        "+ dropped",
        "+ dead",
        "+ under way",
        "rows",
        "tokens",
        "= in rows",
        "+ dropped",
    )
    for domain, flow in sorted(report.flows.items()):
        dropped = sum(flow.dropped.values())
        numbers = [flow.accepted, flow.catalogued, dropped, flow.dead, flow.waiting, flow.rows, flow.tokens]
        numbers += [flow.tokens_catalogued, flow.tokens_dropped]
        table.add_row(domain, *(f"{number:,}" for number in numbers))
    console.print(table)
    for domain, flow in sorted(report.flows.items()):
        for reason, number in sorted(flow.dropped.items()):
            console.print(f"  {domain}: {number:,} dropped by {reason}", highlight=False)
    for run, counts in sorted(report.runs.items()):
        console.print(
            f"  run {run}: {counts['windows']} windows, {counts['shards']} shards, {counts['passes']} passes",
            highlight=False,
        )
    if report.dead_letters:
        console.print(f"{report.dead_letters} dead letters (mindstream dead list)", style="yellow")
    if report.files_waiting:
        console.print(f"{report.files_waiting} file bundles wait for ingest")
    for problem in report.problems:
        console.print(problem, style="red", markup=False)
    if balanced(report):
        console.print("The numbers balance: nothing lost, nothing twice.", style="green")
    else:
        console.print("The numbers do NOT balance.", style="bold red")
