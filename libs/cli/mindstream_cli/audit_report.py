"""``mindstream audit``: run the audit and show it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Column, Table

from mindstream_cli.audit import Flow, Report, audit
from mindstream_cli.connection import connect
from mindstream_cli.hints import count
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
    """A table for a person (a column per domain), and a verdict."""
    domains = sorted(report.flows)
    table = Table(Column(no_wrap=True), *domains, title="Where every document and every token is", title_justify="left")
    lines: list[tuple[str, Callable[[Flow], int]]] = [
        ("documents accepted", lambda flow: flow.accepted),
        ("= catalogued", lambda flow: flow.catalogued),
        ("+ dropped", lambda flow: sum(flow.dropped.values())),
        *((f"    {reason}", partial(_dropped, reason)) for reason in _reasons(report)),
        ("+ in dead letters", lambda flow: flow.dead),
        ("+ under way", lambda flow: flow.waiting),
        ("tokens", lambda flow: flow.tokens),
        ("= in rows", lambda flow: flow.tokens_catalogued),
        ("+ dropped or dead", lambda flow: flow.tokens_dropped),
        ("+ under way", lambda flow: flow.tokens_waiting),
        ("rows", lambda flow: flow.rows),
    ]
    for name, number in lines:
        table.add_row(name, *(f"{number(report.flows[domain]):,}" for domain in domains))
    console.print(table)
    for run, counts in sorted(report.runs.items()):
        console.print(
            f"run {run}: {counts['windows']} windows, {counts['shards']} shards, {counts['passes']} passes over them",
            highlight=False,
        )
    if report.dead_letters:
        console.print(
            f"{count(report.dead_letters, 'dead letter')} (mindstream dead list); a file that could not be read is one, and "
            "is in no number above",
            style="yellow",
        )
    if report.files_seen_before:
        console.print(f"{count(report.files_seen_before, 'file')} had content that was taken before, and were skipped")
    if report.files_waiting:
        console.print(f"{report.files_waiting} file bundles wait for ingest")
    for problem in report.problems:
        console.print(problem, style="red", markup=False)
    if balanced(report):
        console.print("The numbers balance: nothing lost, nothing twice.", style="green")
    else:
        console.print("The numbers do NOT balance.", style="bold red")


def _dropped(reason: str, flow: Flow) -> int:
    return flow.dropped.get(reason, 0)


def _reasons(report: Report) -> list[str]:
    return sorted({reason for flow in report.flows.values() for reason in flow.dropped})
