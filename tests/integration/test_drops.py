"""Dropped documents on the real stack: shown, sent in again through all services, once each, and the audit balances."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from local import Local, local, run_config, write_documents, write_vocabulary
from mindstream_cli import drops, restore
from mindstream_cli.connection import connect
from mindstream_cli.drops import Selection
from mindstream_cli.ledger import Ledger
from mindstream_cli.main import app
from typer.testing import CliRunner

pytestmark = [pytest.mark.servers, pytest.mark.mindspore]  # the writer imports it


async def counts(running: Local) -> dict[tuple[str, str, str], int]:
    async with connect(running.state) as connection:
        ledger = Ledger(connection.store, connection.bus)
        await asyncio.to_thread(ledger.refresh_manifests)
        return drops.counts(ledger)


async def send_again(running: Local, **selection: str) -> restore.Result:
    async with connect(running.state) as connection:
        ledger = Ledger(connection.store, connection.bus)
        await asyncio.to_thread(ledger.refresh_manifests)
        return await restore.restore(ledger, connection.bus, Selection(**selection))


@pytest.mark.timeout(200)
def test_dropped_documents_are_shown_and_sent_in_again(tmp_path: Path) -> None:
    config = run_config(write_vocabulary(tmp_path / "vocab.txt"))
    with local(tmp_path / "state", config, without=("trainer",)) as running:
        accepted = write_documents(tmp_path / "a.jsonl", 120, seed=1)
        running.submit(tmp_path / "a.jsonl", "medical")
        before = running.settled(accepted)
        dropped = asyncio.run(counts(running))
        short = dropped["medical", "cleaning", "too_short"]
        repeated = dropped["medical", "cleaning", "exact_duplicate"]
        assert short > 1
        assert repeated > 1

        state = ["--state", str(running.state)]
        shown = CliRunner().invoke(app, ["drops", "--reason", "exact_duplicate", "--show", "1", "--json", *state])
        [document] = json.loads(shown.stdout)["documents"]
        assert document["kept_text"] == document["text"]

        said = CliRunner().invoke(app, ["drops", "restore", "--document", document["document"], *state])
        assert "1 documents are on their way again" in said.stdout
        results = [asyncio.run(send_again(running, reason=reason)) for reason in ("exact_duplicate", "too_short")]
        assert [(result.restored, result.before) for result in results] == [(repeated - 1, 1), (short, 0)]
        assert asyncio.run(send_again(running, reason="too_short")).restored == 0

        after = running.settled(accepted + short + repeated)
        assert not after.problems
        assert after.flows["medical"].balanced
        # The short ones all say the same: one of them is kept now, and the others repeat it.
        assert after.flows["medical"].catalogued == before.flows["medical"].catalogued + 1 + repeated
        again = asyncio.run(counts(running))
        assert again["medical", "cleaning", "too_short"] == short
        assert again["medical", "cleaning", "exact_duplicate"] == repeated + short - 1
