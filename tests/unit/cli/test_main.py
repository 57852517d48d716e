"""The command line: every command explains itself, and every mistake is one message and exit code 2."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from mindstream_cli import up
from mindstream_cli.main import app
from mindstream_cli.servers import Server
from mindstream_cli.stack import Child, Stack
from mindstream_common.errors import ConfigError
from mindstream_trainer import progress
from mindstream_trainer.progress import Progress, ProgressFile
from rich.console import Console
from typer.testing import CliRunner, Result

ROOT = Path(__file__).parents[3]
VOCABULARY = "".join(f"{entry}\n" for entry in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"高血压患者"])
GROUP: Any = typer.main.get_command(app)


def commands(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*before, name))
        else:
            yield (*before, name), command


COMMANDS = dict(commands(GROUP))
NAMES = [pytest.param(names, id=" ".join(names)) for names in COMMANDS]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No stack, no addresses in the environment, a wide terminal without colours."""
    for name in list(os.environ):
        if name.startswith("MINDSTREAM_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.chdir(tmp_path)


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="mindstream")


def refused(*arguments: str | Path) -> str:
    """Call with a mistake; what was said: one message, without a traceback."""
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    return result.stderr


def run_file(folder: Path, text: str = "") -> Path:
    (folder / "vocab.txt").write_text(VOCABULARY, encoding="utf-8")
    path = folder / "run.yaml"
    path.write_text(f"base: {{vocab: vocab.txt, config: {{hidden_size: 8, num_attention_heads: 2}}}}\n{text}")
    return path


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """A state folder in which this process seems to run a stack with a trainer."""
    state = tmp_path / "state"
    state.mkdir()
    made = Stack(state, {})
    made.children["trainer"] = Child(Server(name="trainer", argv=[], ready=bool, log=state, folder=state), "trainer")
    made._own()
    made._write_file()
    yield state
    made.stop()


# help ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", NAMES)
def test_every_command_explains_itself(names: tuple[str, ...]) -> None:
    result = call(*names, "--help")
    assert result.exit_code == 0
    assert "Usage: mindstream " + " ".join(names) in result.stdout
    command = COMMANDS[names]
    assert len((command.help or "").split()) >= 4
    for parameter in command.params:
        assert getattr(parameter, "help", "x"), f"{names} {parameter.name}"


@pytest.mark.parametrize("names", NAMES)
def test_every_command_has_examples_that_parse(names: tuple[str, ...]) -> None:
    command = COMMANDS[names]
    examples = [text for text in re.findall(r"`([^`]+)`", command.epilog or "") if text.startswith("mindstream ")]
    own = [text for text in examples if text.split()[1 : 1 + len(names)] == list(names)]
    assert own, f"{names} has no example"
    for text in own:
        arguments = shlex.split(text)[1 + len(names) :]
        context = command.make_context(" ".join(names), arguments)  # raises when the example is wrong
        context.close()


def test_without_arguments_there_is_help() -> None:
    text = call().output
    for name in ("demo", "up", "submit", "status", "audit", "train", "eval", "dead"):
        assert name in text


def test_there_is_completion_for_shells() -> None:
    # What `mindstream --install-completion` puts into the shell's start-up file calls this.
    environment = {**os.environ, "_MINDSTREAM_COMPLETE": "source_bash"}
    program = Path(sys.executable).parent / "mindstream"
    done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert "complete -o default -F _mindstream_completion mindstream" in done.stdout


# mistakes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["status", "--json"],
        ["audit"],
        ["train"],
        ["eval"],
        ["dead", "list"],
        ["dead", "show", "1"],
        ["dead", "retry"],
    ],
    ids=" ".join,
)
def test_without_a_stack(arguments: list[str], tmp_path: Path) -> None:
    said = refused(*arguments, "--state", tmp_path / "none")
    assert f"no stack runs under {tmp_path / 'none'}. Start one with `mindstream up`" in said
    assert not (tmp_path / "none").exists()


def test_submitting_without_a_stack(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    assert "no stack runs under .mindstream" in refused("submit", tmp_path / "a.txt", "--domain", "finance")


def test_stopping_without_a_stack(tmp_path: Path) -> None:
    assert f"no stack runs under {tmp_path / 'none'}." in refused("down", "--state", tmp_path / "none")


def test_submitting_what_is_not_there() -> None:
    assert "nowhere.txt does not exist. Give a file or a folder of .txt" in refused(
        "submit", "nowhere.txt", "--domain", "x"
    )


def test_watching_what_is_not_there() -> None:
    assert "nowhere does not exist" in refused("submit", "nowhere", "--domain", "x", "--watch")


def test_submitting_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = refused("submit", tmp_path / "empty", "--domain", "x")
    assert "nothing to read in" in said
    assert ".jsonl" in said


def test_a_bad_domain(tmp_path: Path) -> None:
    said = refused("submit", tmp_path, "--domain", "[Bad] 领域")
    assert "--domain '[Bad] 领域': a domain is a short name of a-z" in said  # brackets are no markup


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set", "foo"], "--set 'foo' is not section.key=value"),
        (["--set", "trainr.steps=3"], "--set: unknown section 'trainr' (did you mean 'trainer'?)"),
        (
            ["--set", "trainer.stepz=3"],
            "section 'trainer': Object contains unknown field `stepz` (did you mean 'steps'?)",
        ),
        (["--set", "trainer.steps=many"], "section 'trainer': Expected `int | null`, got `str` - at `$.steps`"),
        (["--set", "trainer.steps=0"], "section 'trainer': Expected `int` >= 1 - at `$.steps`"),
        (["--set", "trainer.run=["], "is not a YAML value"),
        (["--set", "base.vocab=absent.txt"], "base.vocab is"),
        (["--scale", "cleaning=many"], "--scale 'cleaning=many' is not SERVICE=NUMBER; services are ingest"),
        (["--scale", "trainer=2"], "a run has one trainer"),
        (["--config", "absent.yaml"], "cannot read the run's file absent.yaml"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
@pytest.mark.parametrize("detach", [[], ["--detach"]], ids=["foreground", "detached"])
def test_starting_with_a_mistake(tmp_path: Path, options: list[str], words: str, detach: list[str]) -> None:
    said = refused("up", "--config", run_file(tmp_path), *options, *detach, "--state", tmp_path / "state")
    assert words in said
    assert not (tmp_path / "state").exists()  # nothing was started


def test_starting_twice(tmp_path: Path, running: Path) -> None:
    said = refused("up", "--config", run_file(tmp_path), "--state", running)
    assert f"a stack runs under {running} already (process {os.getpid()})" in said


def test_an_unknown_command() -> None:
    result = call("submitt")
    assert result.exit_code == 2
    assert "No such command 'submitt'" in result.stderr


def test_a_traceback_is_never_shown_by_the_program(tmp_path: Path) -> None:
    """The whole program, as it is called."""
    done = subprocess.run(
        [sys.executable, "-m", "mindstream_cli.main", "status", "--state", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: no stack runs under")


def test_interrupting_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(up, "down", interrupt)
    result = call("down")
    assert (result.exit_code, result.stderr) == (130, "stopped\n")


# up, down, train: what they check before they begin -----------------------------------------------------------------


def test_rows_must_fit_the_model(tmp_path: Path) -> None:
    said = refused(
        "up", "--config", run_file(tmp_path, "tokenizer: {max_length: 600}\n"), "--state", tmp_path / "state"
    )
    assert "rows of 600 tokens do not fit" in said
    assert "512" in said


def test_the_runs_in_configs_are_good(tmp_path: Path) -> None:
    from mindstream_cli import stack

    (tmp_path / "vocab.txt").write_text(VOCABULARY, encoding="utf-8")
    files = sorted((ROOT / "configs").glob("*.yaml"))
    assert files
    for file in files:
        data = stack.assemble(file, [f"base.vocab={tmp_path / 'vocab.txt'}"])
        sections = {name: value for name, value in data.items() if name not in ("base", "demo")}
        for name, value in sections.items():
            up.config.section({name: value}, name, up.SECTIONS[name], file)


def test_erasing_deletes_only_a_state_folder(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("x")
    said = refused("down", "--erase", "--state", precious)
    assert "is no state folder (it has no servers.json); nothing was deleted" in said
    assert (precious / "thesis.txt").exists()
    (precious / "servers.json").write_text("{}")
    assert call("down", "--erase", "--state", precious).exit_code == 0
    assert not precious.exists()


def test_a_run_that_the_stack_trains_is_not_trained_twice(tmp_path: Path, running: Path) -> None:
    run_dir = running / "runs" / "default"
    run_dir.mkdir(parents=True)
    file = ProgressFile(run_dir, Progress(run="default", state="training"))
    file.close()
    with (run_dir / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = refused("train", "--config", run_file(tmp_path), "--state", running)
    assert "run 'default' is being trained here already" in said
    assert "--set trainer.run=NAME" in said
    assert not (running / "runs" / "default.yaml").exists()
    assert progress.read(run_dir) is not None


def test_training_with_a_mistake(tmp_path: Path, running: Path) -> None:
    said = refused("train", "--config", run_file(tmp_path), "--set", "trainer.run=Bad Name", "--state", running)
    assert "$.run" in said


def test_check_takes_a_good_run(tmp_path: Path) -> None:
    from mindstream_cli import stack

    path = run_file(tmp_path)
    up.check(stack.assemble(path, []), path)
    with pytest.raises(ConfigError, match=r"unknown field `stepz`"):
        up.check(stack.assemble(path, ["trainer.stepz=1"]), path)
    up.refuse_second(tmp_path)
    with pytest.raises(ConfigError, match="no stack runs under"):
        up.down(tmp_path, False, Console())
