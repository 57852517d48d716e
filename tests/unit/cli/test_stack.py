"""The local stack's parts that need no servers: settings, scale, who runs, and what is started again."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mindstream_cli import stack
from mindstream_cli.connection import where
from mindstream_cli.stack import Child, Stack
from mindstream_common.errors import ConfigError


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "configs" / "run.yaml"
    path.parent.mkdir()
    path.write_text("trainer:\n  steps: 3\n  window: {rows: 7}\nwriter:\n", encoding="utf-8")
    return path


def test_settings_go_on_top_of_the_file(run_file: Path) -> None:
    data = stack.assemble(
        run_file,
        [
            "trainer.steps=5",
            "trainer.window.seconds=0.5",
            "trainer.learning_rate=1e-4",
            "trainer.repeat=true",
            "trainer.domains=[a, b]",
            "trainer.run=on-call=1",
            "trainer.dropout=null",
            "writer.rows=9",
            "cleaning.rules.length.min=4",
            "pipeline.name='7'",
        ],
    )
    assert data == {
        "trainer": {
            "steps": 5,
            "window": {"rows": 7, "seconds": 0.5},
            "learning_rate": 0.0001,
            "repeat": True,
            "domains": ["a", "b"],
            "run": "on-call=1",
            "dropout": None,
        },
        "writer": {"rows": 9},
        "cleaning": {"rules": {"length": {"min": 4}}},
        "pipeline": {"name": "7"},
    }


def test_the_file_alone_is_itself(run_file: Path) -> None:
    assert stack.assemble(run_file, []) == {"trainer": {"steps": 3, "window": {"rows": 7}}, "writer": None}


@pytest.mark.parametrize(
    "text", ["", "trainer", "trainer.steps", "steps=3", ".steps=3", "trainer.=3", "trainer..x=3", "=3"]
)
def test_a_setting_of_another_form(run_file: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"--set {text!r} is not section.key=value, such as --set")):
        stack.assemble(run_file, [text])


def test_a_setting_whose_value_is_no_yaml(run_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"--set 'trainer\.run=\[': '\[' is not a YAML value"):
        stack.assemble(run_file, ["trainer.run=["])


def test_a_setting_below_a_value(run_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"--set 'trainer\.steps\.x=1': 'steps' holds 3, it has no keys"):
        stack.assemble(run_file, ["trainer.steps.x=1"])


def test_a_setting_of_an_unknown_section(run_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"--set: unknown section 'trainr' \(did you mean 'trainer'\?\)"):
        stack.assemble(run_file, ["trainr.steps=1"])


def test_paths_are_relative_to_the_file_or_to_where_one_stands(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_file.write_text("base: {vocab: own.txt}\n")
    monkeypatch.chdir(tmp_path)
    assert stack.assemble(run_file, [])["base"]["vocab"] == str(run_file.parent / "own.txt")
    found = stack.assemble(Path("configs/run.yaml"), ["base.weights=w.safetensors"])["base"]
    assert found == {"vocab": str(run_file.parent / "own.txt"), "weights": str(tmp_path / "w.safetensors")}
    assert stack.assemble(run_file, ["base.vocab=here.txt"])["base"]["vocab"] == str(tmp_path / "here.txt")


def test_scale() -> None:
    assert stack.parse_scale([]) == {}
    assert stack.parse_scale(["cleaning=2", "trainer=0", "cleaning=3"]) == {"cleaning": 3, "trainer": 0}


@pytest.mark.parametrize(
    "text", ["", "cleaning", "cleaning=", "cleaning=two", "cleaning=-1", "cleaning=65", "nats=2", "cleaning=²"]
)
def test_bad_scale(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"--scale {text!r} is not SERVICE=NUMBER; services are ingest")):
        stack.parse_scale([text])


def test_a_run_has_one_trainer() -> None:
    with pytest.raises(ConfigError, match="a run has one trainer"):
        stack.parse_scale(["trainer=2"])


RUNS = """
import sys, time
from pathlib import Path
from mindstream_cli.stack import Stack
running = Stack(Path(sys.argv[1]), {})
running._own()
running._write_file()
print("up", flush=True)
time.sleep(60)
"""


def test_who_runs(tmp_path: Path) -> None:
    assert stack.running(tmp_path) is None
    with pytest.raises(ConfigError, match=r"no stack runs under .*mindstream up.*--state"):
        stack.need_running(tmp_path)
    mine = Stack(tmp_path, {})
    mine._own()
    mine._write_file()
    assert stack.running(tmp_path) == stack.need_running(tmp_path)
    assert stack.need_running(tmp_path).pid == os.getpid()
    mine.stop()
    assert stack.running(tmp_path) is None
    (tmp_path / "stack.json").write_bytes(b"{")
    assert stack.running(tmp_path) is None


def test_a_stack_that_was_killed_does_not_run(tmp_path: Path) -> None:
    """Also when its process number belongs to another process by now: nobody must send that one a signal."""
    with subprocess.Popen([sys.executable, "-c", RUNS, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "up\n"
        found = stack.need_running(tmp_path)
        assert found.pid == other.pid
        other.kill()
    assert stack.running(tmp_path) is None
    reused = msgspec.structs.replace(found, pid=os.getpid())
    (tmp_path / "stack.json").write_bytes(msgspec.json.encode(reused))
    assert stack.running(tmp_path) is None


def test_without_a_stack_the_environment_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINDSTREAM_NATS_URL", raising=False)
    with pytest.raises(ConfigError, match="no stack runs under"):
        where(tmp_path)
    monkeypatch.setenv("MINDSTREAM_NATS_URL", "nats://cluster")
    with pytest.raises(ConfigError, match="MINDSTREAM_S3_ENDPOINT, MINDSTREAM_S3_ACCESS_KEY"):
        where(tmp_path)
    for name in ("S3_ENDPOINT", "S3_ACCESS_KEY", "S3_SECRET_KEY", "VALKEY_URL"):
        monkeypatch.setenv(f"MINDSTREAM_{name}", "http://x")
    assert where(tmp_path).nats_url == "nats://cluster"


def test_free_ports_are_free_and_not_taken() -> None:
    first = stack.free_port(taken=set())
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", first))
        listening.listen()
        second = stack.free_port(taken=set())
        assert second != first
        assert stack.free_port(taken={second}) not in (first, second)


class FakeServer:
    """A process that has ended with a code; ``start`` makes it live."""

    def __init__(self, code: int | None) -> None:
        self.process: Any = type("Process", (), {"returncode": code})()
        self.starts = 0
        self.env: dict[str, str] = {}

    def alive(self) -> bool:
        return self.process.returncode is None

    def start(self) -> None:
        self.starts += 1
        self.process.returncode = None

    def tail(self, lines: int) -> str:
        return "its last words"


class Watched:
    """A stack of one child, with a clock of its own."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, code: int) -> None:
        self.said: list[str] = []
        self.now = 1000.0
        monkeypatch.setattr(stack.time, "monotonic", lambda: self.now)
        self.stack = Stack(tmp_path, {}, say=self.said.append)
        self.server: Any = FakeServer(code)
        self.child = Child(self.server, kind, started=self.now - 1.0)
        self.stack.children["x"] = self.child

    def seconds_until_start(self) -> float | None:
        """How long until the child is started again; None when that is not within a minute."""
        begun, starts = self.now, self.server.starts
        while self.now < begun + 60.0:
            self.stack.watch()
            if self.server.starts > starts:
                return self.now - begun
            self.now += 0.1
        return None


@pytest.mark.parametrize("kind", ["server", "cleaning", "trainer"])
def test_what_was_killed_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    watched = Watched(tmp_path, monkeypatch, kind, code=-9)
    waited = watched.seconds_until_start()
    assert waited is not None
    assert waited <= 1.5
    assert watched.child.restarts == 1
    assert watched.said == ["x ended (killed by signal 9); it is started again"]
    assert watched.stack.failed() == []


def test_it_waits_longer_each_time_and_begins_anew_after_a_long_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, monkeypatch, "cleaning", code=1)
    waits = []
    for _ in range(7):
        wait = watched.seconds_until_start()
        assert wait is not None
        waits.append(round(wait, 1))
        watched.server.process.returncode = 1
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(15.0, abs=0.2)
    watched.server.process.returncode = None
    watched.now += stack.LONG_LIFE + 1
    watched.server.process.returncode = 1
    wait = watched.seconds_until_start()
    assert wait is not None
    assert wait <= 0.4


@pytest.mark.parametrize(("kind", "code"), [("cleaning", 2), ("trainer", 2), ("trainer", 3)])
def test_what_a_person_must_mend_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, code: int
) -> None:
    watched = Watched(tmp_path, monkeypatch, kind, code)
    assert watched.seconds_until_start() is None
    assert watched.said == ["x has stopped and is not started again: its last words"]  # once
    assert watched.stack.failed() == ["x: its last words"]


def test_a_run_that_has_finished_stays_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, monkeypatch, "trainer", code=0)
    assert watched.seconds_until_start() is None
    assert (watched.said, watched.stack.failed()) == ([], [])


def test_a_server_is_always_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Watched(tmp_path, monkeypatch, "server", code=2).seconds_until_start() is not None


def test_a_stage_is_kept_running_when_it_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Watched(tmp_path, monkeypatch, "cleaning", code=0).seconds_until_start() is not None
