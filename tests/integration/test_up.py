"""The command line as a person uses it: up, submit, status, audit, train, eval, down, and up again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import yaml
from local import run_config, write_documents, write_vocabulary

pytestmark = [pytest.mark.servers, pytest.mark.mindspore]


def mindstream(state: Path, *arguments: str, code: int = 0) -> str:
    """Run a command; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "mindstream_cli.main", *arguments, "--state", str(state)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    return done.stdout + done.stderr


@pytest.mark.timeout(400)
def test_a_stack_is_used_stopped_and_used_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(run_config(write_vocabulary(tmp_path / "vocab.txt"), steps=20)), encoding="utf-8")
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    accepted = write_documents(inbox / "a.jsonl", 120, seed=1) + write_documents(inbox / "b.jsonl", 80, seed=2)
    (inbox / "picture.png").write_bytes(b"\x89PNG")

    assert "up in the background" in mindstream(state, "up", "-d", "-c", str(config), "--scale", "cleaning=2")
    try:
        assert "already" in mindstream(state, "up", "-c", str(config), code=2)
        said = mindstream(state, "submit", str(inbox), "--domain", "medical")
        assert "picture.png" in said
        mindstream(state, "submit", str(inbox), "--domain", "medical")  # the same again: taken once
        assert "The numbers balance" in mindstream(state, "audit", "--wait", "60")
        status = json.loads(mindstream(state, "status", "--json"))
        assert status["stages"]["ingest"]["documents_in"] == accepted
        assert {"cleaning-1", "cleaning-2"} <= set(status["services"])
        finished(state, "test", 20)
        scores = json.loads(mindstream(state, "eval", "--run", "test", "--json"))
        assert scores["after"]["medical"]["loss"] < scores["before"]["medical"]["loss"]
    finally:
        assert "Stopped" in mindstream(state, "down")

    mindstream(state, "up", "-d", "-c", str(config), "--set", "trainer.run=second", "--set", "trainer.steps=5")
    try:
        finished(state, "second", 5)  # the catalog of before is there
        mindstream(state, "train", "--set", "trainer.run=third", "--set", "trainer.steps=3", "--replay-of", "test")
        report = json.loads(mindstream(state, "audit", "--json"))
        assert sum(flow["accepted"] for flow in report["flows"].values()) == accepted
        assert set(report["runs"]) == {"test", "second", "third"}
    finally:
        mindstream(state, "down", "--erase")
    assert not state.exists()


def finished(state: Path, run: str, steps: int) -> None:
    """Wait until a run has done its steps."""
    path = state / "runs" / run / "progress.json"
    deadline = time.monotonic() + 90
    while True:
        found = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
        if found.get("state") == "finished":
            assert found["step"] == steps
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.3)
