"""``mindstream train``: one run in the foreground, with progress."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml
from mindstream_common import config
from mindstream_common.errors import ConfigError, MindStreamError
from mindstream_common.process import die_with_parent
from mindstream_trainer import progress
from mindstream_trainer.config import TrainerConfig
from mindstream_trainer.rundir import locked
from rich.console import Console

from mindstream_cli import servers, stack, up
from mindstream_cli.hints import command
from mindstream_cli.stack import last_error
from mindstream_cli.status import run_line


def run(path: Path | None, settings: list[str], replay_of: str | None, state: Path, console: Console) -> int:
    """Train until the run ends or Ctrl-C; returns the trainer's exit code.

    Raises:
        ConfigError: no stack runs, or the stack's own trainer trains this run.
    """
    stack.need_running(state)
    data = stack.assemble(path or state / "run.yaml", settings)
    up.check(data, path or state / "run.yaml")
    trainer = config.section(data, "trainer", TrainerConfig)
    if locked(state / "runs" / trainer.run):
        raise ConfigError(
            f"run {trainer.run!r} is being trained here already (see `{command('status', state)}`). Choose another name: "
            "--set trainer.run=NAME"
        )
    place = state / "runs" / f"{trainer.run}.yaml"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(yaml.safe_dump(data, allow_unicode=True, sort_keys=False), encoding="utf-8")
    code = attend(start(place, state, replay_of), state / "runs" / trainer.run, console)
    if code:
        raise MindStreamError(f"{why(state, trainer.run)} (exit code {code})")
    return code


def start(file: Path, state: Path, replay_of: str | None = None) -> subprocess.Popen[bytes]:
    """Start the trainer's service as a child; its log is ``logs/train-<run>.log``."""
    argv = [sys.executable, "-m", "mindstream_trainer", "--config", str(file.absolute())]
    argv += ["--runs", str((state / "runs").absolute())]
    if replay_of:
        argv += ["--replay-of", replay_of]
    with (state / "logs" / f"train-{file.stem}.log").open("ab") as log:
        return subprocess.Popen(
            argv,
            env={**os.environ, **servers.settings(state), "GLOG_v": "3"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def why(state: Path, run: str) -> str:
    """What a trainer that failed said last, from its log."""
    log = state / "logs" / f"train-{run}.log"
    return f"{last_error(log.read_text(encoding='utf-8', errors='replace')) or 'the trainer failed'}. Its log: {log}"


def attend(process: subprocess.Popen[bytes], run_dir: Path, console: Console) -> int:
    """Show a run's progress until its trainer ends; Ctrl-C asks it to stop after the update in hand."""
    asked = False
    told = time.monotonic()
    with console.status("starting the trainer (MindSpore takes some seconds to load) ...") as line:
        while process.poll() is None:
            try:
                time.sleep(0.5)
                found = progress.read(run_dir)
                if found is not None and not asked:
                    line.update(run_line(found))
                    if not console.is_terminal and time.monotonic() - told > 10:
                        told = time.monotonic()
                        console.print(run_line(found), highlight=False, soft_wrap=True)
            except KeyboardInterrupt:
                if asked:
                    process.kill()
                    raise
                asked = True
                line.update(
                    "stopping after the update in hand; its checkpoint is saved (Ctrl-C again ends at once) ..."
                )
                process.send_signal(signal.SIGTERM)
    found = progress.read(run_dir)
    if found is not None:
        console.print(run_line(found), highlight=False, soft_wrap=True)
        if found.checkpoint:
            console.print(f"checkpoint: {found.local_checkpoint}", highlight=False, soft_wrap=True)
            console.print(f"            (in the object store: {found.checkpoint})", highlight=False, soft_wrap=True)
        if asked:
            console.print("The same command goes on from here.")
    return process.returncode
