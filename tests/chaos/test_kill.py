"""``kill -9`` of everything, one after the other, while text flows and training runs: nothing is lost, nothing twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml
from local import Local, local, run_config, write_documents, write_vocabulary
from mindstream_cli.audit_report import balanced

pytestmark = [pytest.mark.servers, pytest.mark.mindspore, pytest.mark.chaos]
VICTIMS = ["ingest", "cleaning", "tokenizer", "writer", "trainer", "nats", "weed", "valkey"]


@pytest.mark.timeout(400)
def test_every_process_is_killed_while_text_flows(tmp_path: Path) -> None:
    vocab = write_vocabulary(tmp_path / "vocab.txt")
    accepted = 0
    with local(tmp_path / "state", run_config(vocab, steps=1500, global_batch=16, checkpoint_every=50)) as stack:
        random_ = random.Random(1)
        accepted += submit(stack, tmp_path, 0)
        stack.until(lambda: stack.progress().step >= 1)
        for number, victim in enumerate([*VICTIMS, "rank", "workers"], 1):
            accepted += submit(stack, tmp_path, number)
            time.sleep(random_.uniform(0.1, 1.2))  # in the middle of whatever it is doing
            kill(stack, victim)
            wait_until_back(stack, victim)
        report = stack.settled(accepted)
        assert balanced(report), report
        assert sum(flow.accepted for flow in report.flows.values()) == accepted
        assert report.dead_letters == 0, report
        assert all(
            flow.dropped["cleaning.exact_duplicate"] and flow.dropped["cleaning.too_short"]
            for flow in report.flows.values()
        )
        stack.until(lambda: stack.progress().state == "finished", 150)
        assert stack.progress().step == 1500
        for victim in VICTIMS:
            assert stack.child(victim).restarts >= 1, victim
        report = stack.audit()
        assert balanced(report), report
        assert report.runs["test"]["windows"] >= 2


def submit(stack: Local, folder: Path, number: int) -> int:
    """New documents of this number."""
    path = folder / f"part-{number}.jsonl"
    count = write_documents(path, 150, seed=number)
    for attempt in range(20):
        try:
            stack.submit(path, "medical" if number % 2 else "finance")
            return count
        except Exception:  # the bus or the store is just being killed: submitting again is safe
            if attempt == 19:
                raise
            time.sleep(0.5)
    raise AssertionError


def kill(stack: Local, victim: str) -> None:
    """A service, a server, the trainer's rank, or the work processes of all stages."""
    if victim == "rank":
        stack.until(stack.kill_rank, 60)
    elif victim == "workers":
        for name in ("ingest", "cleaning", "tokenizer", "writer"):
            process = stack.child(name).server.process
            assert process is not None
            for child in psutil.Process(process.pid).children():
                if "spawn_main" in " ".join(child.cmdline()):
                    os.kill(child.pid, signal.SIGKILL)
    else:
        stack.kill(victim)


def wait_until_back(stack: Local, victim: str) -> None:
    """The stack starts it again by itself."""
    if victim in VICTIMS:
        child = stack.child(victim)
        stack.until(lambda: child.restarts >= 1 and child.server.alive(), 30)


def test_no_process_outlives_a_killed_stack(tmp_path: Path) -> None:
    """``kill -9`` of ``mindstream up`` itself leaves nothing behind, and the next start goes on from there."""
    vocab = write_vocabulary(tmp_path / "vocab.txt")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run_config(vocab)), encoding="utf-8")
    argv = [
        sys.executable,
        "-m",
        "mindstream_cli.main",
        "up",
        "--config",
        str(tmp_path / "run.yaml"),
        "--state",
        str(tmp_path / "state"),
    ]
    for _ in range(2):
        up = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        family: list[psutil.Process] = []
        while len(family) < 3 + 5 + 4 + 1:  # servers, services, work processes, rank
            family = [
                p
                for p in psutil.Process(up.pid).children(recursive=True)
                if "resource_tracker" not in " ".join(p.cmdline())
            ]
            assert time.monotonic() < deadline, family
            time.sleep(0.2)
        up.kill()
        up.wait()
        _, alive = psutil.wait_procs(family, timeout=10)
        assert not alive, alive
