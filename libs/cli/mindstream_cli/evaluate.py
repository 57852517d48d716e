"""``mindstream eval``: a run's base and its newest checkpoint on the same held-out rows."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from mindstream_common.errors import InputError, MindStreamError
from mindstream_common.events import CatalogShard
from mindstream_trainer import checkpoint
from mindstream_trainer.rundir import RunDir
from mindstream_trainer.shards import Shards
from rich.console import Console
from rich.table import Table

from mindstream_cli.connection import Connection, connect
from mindstream_cli.ledger import Ledger


class Score(msgspec.Struct, kw_only=True):
    """``loss``: mean cross-entropy over masked tokens; ``accuracy``: share of them that the model gets right."""

    checkpoint: str
    domain: str
    loss: float | None
    accuracy: float | None
    rows: int
    masked: int


class Comparison(msgspec.Struct, kw_only=True):
    """Before and after, by domain."""

    run: str
    step: int
    before: dict[str, Score]
    after: dict[str, Score]


def run(name: str, domains: list[str] | None, rows: int, state: Path, as_json: bool, console: Console) -> None:
    """Measure and show."""

    async def call() -> Comparison:
        async with connect(state) as connection:
            return await compare(connection, state, name, domains, rows)

    with console.status("measuring on held-out rows (MindSpore takes some seconds to load) ..."):
        found = asyncio.run(call())
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    else:
        console.print(table(found))


async def compare(
    connection: Connection, state: Path, name: str, domains: Sequence[str] | None, rows: int
) -> Comparison:
    """Bring the shards here and measure in a process of its own.

    Raises:
        InputError: no such run here, no checkpoint yet, or no held-out rows of these domains.
    """
    folder = RunDir(state / "runs" / name)
    if not (folder.path / "run.json").exists():
        there = sorted(path.name for path in (state / "runs").glob("*") if (path / "run.json").exists())
        raise InputError(f"there is no run {name!r} under {state}; there are: {', '.join(there) or 'none'}.")
    newest = await asyncio.to_thread(checkpoint.latest_valid, folder.checkpoints)
    if newest is None:
        raise InputError(
            f"run {name!r} has no checkpoint yet; it writes its first one after trainer.checkpoint_every steps."
        )
    ledger = Ledger(connection.store, connection.bus)
    await ledger.refresh_catalog()
    shards = [shard for shard in _once(ledger) if (domains is None or shard.domain in domains) and _held_out(shard)]
    if not shards:
        raise InputError(
            f"the catalog holds no held-out rows of {', '.join(domains or ['any domain'])} (tokenizer.held_out sets their share)."
        )
    local = Shards(connection.store, folder.path / "shards")
    files = await asyncio.to_thread(local.fetch_all, shards)
    spec = {
        "vocab": folder.read_run().vocab,
        "checkpoints": [str(folder.path.absolute()), str(newest.path.absolute())],
        "shards": [
            msgspec.to_builtins(file) | {"domain": shard.domain} for file, shard in zip(files, shards, strict=True)
        ],
        "rows_per_domain": rows,
    }
    scores = await asyncio.to_thread(_measure, spec)
    half = len(scores) // 2
    return Comparison(
        run=name,
        step=newest.state.step,
        before={score.domain: score for score in scores[:half]},
        after={score.domain: score for score in scores[half:]},
    )


def _once(ledger: Ledger) -> list[CatalogShard]:
    return list({shard.root: shard for shard in ledger.catalog.values()}.values())


def _held_out(shard: CatalogShard) -> int:
    return sum(group.rows for group in shard.groups if group.split == "held_out")


def _measure(spec: dict[str, object]) -> list[Score]:
    with tempfile.TemporaryDirectory(prefix="mindstream-eval-") as folder:
        path = Path(folder) / "spec.json"
        path.write_bytes(msgspec.json.encode(spec))
        done = subprocess.run(
            [sys.executable, "-m", "mindstream_trainer.evaluate", str(path)],
            cwd=folder,
            env={**os.environ, "GLOG_v": "3"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    if done.returncode:
        raise MindStreamError(f"the evaluation failed: {done.stderr.decode('utf-8', 'replace').strip()[-2000:]}")
    found = msgspec.json.decode(done.stdout)
    return msgspec.convert(found["scores"], list[Score])


def table(found: Comparison) -> Table:
    """A row per domain."""
    made = Table(
        "domain",
        "held-out rows",
        "loss before",
        "after",
        "accuracy before",
        "after",
        title=f"run {found.run}, step {found.step}",
        title_justify="left",
    )
    for domain, before in found.before.items():
        after = found.after[domain]
        made.add_row(
            domain,
            str(before.rows),
            _number(before.loss),
            _number(after.loss),
            _share(before.accuracy),
            _share(after.accuracy),
        )
    return made


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
