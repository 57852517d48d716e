"""The local stack: three servers and five services as child processes, watched and started again when they die."""

from __future__ import annotations

import fcntl
import os
import random
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec
import yaml
from mindstream_common import config
from mindstream_common.errors import ConfigError

from mindstream_cli import servers
from mindstream_cli.servers import Server, ServerFailed

SERVICES = ("ingest", "cleaning", "tokenizer", "writer", "trainer")
CONFIG_EXIT = 2  # the service said what is wrong with its configuration: starting it again cannot help
NON_FINITE_EXIT = 3  # the trainer stopped before a bad number reached the weights: a person must look first
LOCK = ".stack.lock"
LONG_LIFE = 30.0  # seconds; after that a death is a new story, and the first restart comes at once


@dataclass
class Child:
    """A watched process: when it may start again, and how often it has."""

    server: Server
    kind: str  # "server" or the service's name
    port: int = 0
    restarts: int = 0
    started: float = 0.0
    due: float = 0.0
    backoff: float = 0.5
    ended: int | None = None  # exit code of a service that is not started again
    notes: list[str] = field(default_factory=list)


class StackFile(msgspec.Struct, kw_only=True):
    """``<state>/stack.json``: what runs, for ``status`` and ``down``."""

    pid: int
    services: dict[str, int]  # name -> port of /metrics
    started: float
    ended: dict[str, str] = {}  # services that stopped for good -> what they said


class Stack:
    """Start, watch and stop everything under one state folder."""

    def __init__(
        self,
        state: Path,
        run: Mapping[str, Any],
        *,
        scale: Mapping[str, int] | None = None,
        without: tuple[str, ...] = (),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.state = state
        self._run = run
        self._scale = {name: 1 for name in SERVICES if name not in without} | dict(scale or {})
        self._say = say
        self.children: dict[str, Child] = {}
        self._lock: IO[str] | None = None

    def start(self) -> None:
        """Start the servers, then the services. Returns when the servers are ready and the services are started.

        Raises:
            ConfigError, ServerFailed: what does not start, and why.
        """
        self.state.mkdir(parents=True, exist_ok=True)
        self._own()
        path = self.state / "run.yaml"
        aside = self.state / ".run.yaml"
        aside.write_text(yaml.safe_dump(dict(self._run), allow_unicode=True, sort_keys=False), encoding="utf-8")
        aside.replace(path)
        started = servers.local_servers(self.state)
        for server in started:
            self.children[server.name] = Child(server, "server", started=time.monotonic())
        servers.start_all(started)
        environment = servers.settings(self.state)
        for kind, count in self._scale.items():
            for number in range(1, count + 1):
                self._add_service(kind, f"{kind}-{number}" if count > 1 else kind, path, environment)
        for child in self.children.values():
            if child.kind != "server":
                child.server.start()
                child.started = time.monotonic()
        self._write_file()

    def _add_service(self, kind: str, name: str, path: Path, environment: Mapping[str, str]) -> None:
        folder = self.state / "services" / name
        argv = [sys.executable, "-m", f"mindstream_{kind}", "--config", str(path.absolute())]
        if kind == "trainer":
            argv += ["--runs", str((self.state / "runs").absolute())]
        else:
            argv += ["--scratch", str((folder / "scratch").absolute())]
        server = Server(
            name=name,
            argv=argv,
            ready=lambda: ready(child.port),
            log=self.state / "logs" / f"{name}.log",
            folder=folder,
            env={**environment, "GLOG_v": "3"},
        )
        child = self.children[name] = Child(server, kind)
        self._give_port(child)

    def _give_port(self, child: Child) -> None:
        """A port for /metrics that nobody else has taken meanwhile."""
        if child.port and servers.free(child.port):
            return
        child.port = free_port(taken={other.port for other in self.children.values()})
        child.server.env = {**child.server.env, "MINDSTREAM_METRICS_PORT": str(child.port)}

    def watch(self) -> None:
        """Look after everything once: start again what has died. Call it some times a second."""
        now = time.monotonic()
        for name, child in self.children.items():
            if child.server.alive() or child.ended is not None:
                continue
            if child.due == 0.0:
                self._died(name, child, now)
            if child.ended is None and now >= child.due:
                child.due = 0.0
                child.started = now
                child.restarts += 1
                if child.kind != "server":
                    before = child.port
                    self._give_port(child)
                    if child.port != before:
                        self._write_file()
                child.server.start()

    def _died(self, name: str, child: Child, now: float) -> None:
        code = child.server.process.returncode if child.server.process else None
        if child.kind == "trainer" and code == 0:
            child.ended = 0
            return
        if (child.kind != "server" and code == CONFIG_EXIT) or (child.kind == "trainer" and code == NON_FINITE_EXIT):
            child.ended = code
            child.notes.append(said(child.server))
            self._say(f"{name} has stopped and is not started again: {said(child.server)}")
            self._write_file()
            return
        child.backoff = 0.2 if now - child.started > LONG_LIFE else min(15.0, max(0.4, child.backoff * 2))
        child.due = now + child.backoff
        self._say(f"{name} ended ({_ending(code)}); it is started again")

    def starting(self) -> list[str]:
        """Services that cannot work yet."""
        return [
            name
            for name, child in self.children.items()
            if child.port and child.ended is None and not child.server.ready()
        ]

    def failed(self) -> list[str]:
        """Services that stopped for good and should not have, with what they said."""
        return [
            f"{name}: {child.notes[-1] if child.notes else child.ended}"
            for name, child in self.children.items()
            if child.ended
        ]

    def stop(self, timeout: float = 30.0) -> None:
        """Drain the services, then stop the servers. Safe to call twice; does nothing when the start was refused."""
        if self._lock is None:
            return
        services = [child.server for child in self.children.values() if child.kind != "server"]
        with ThreadPoolExecutor(max(1, len(services))) as pool:
            list(pool.map(lambda server: server.stop(timeout), services))
        servers.stop_all([child.server for child in self.children.values() if child.kind == "server"])
        (self.state / "stack.json").unlink(missing_ok=True)
        self._lock.close()
        self._lock = None

    def _own(self) -> None:
        """Take the state folder, for as long as this process lives, before anything in it is changed."""
        lock = (self.state / LOCK).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise ConfigError(
                f"another stack runs, or is just starting, under {self.state}. Stop it with `mindstream down`, or use "
                "another --state."
            ) from None
        self._lock = lock
        (self.state / "stack.json").unlink(missing_ok=True)  # what a killed stack left behind

    def _write_file(self) -> None:
        ports = {name: child.port for name, child in self.children.items() if child.kind != "server"}
        ended = {name: child.notes[-1] for name, child in self.children.items() if child.notes}
        data = StackFile(pid=os.getpid(), services=ports, started=time.time(), ended=ended)
        temporary = self.state / ".stack.json"
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(data)))
        temporary.replace(self.state / "stack.json")


def running(state: Path) -> StackFile | None:
    """The stack that runs under ``state``, or None.

    Its process holds a lock. A process number alone says nothing: after a restart of the machine another process has it.
    """
    try:
        found = msgspec.json.decode((state / "stack.json").read_bytes(), type=StackFile)
        with (state / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return found
    except (OSError, msgspec.MsgspecError):
        return None
    return None


def need_running(state: Path) -> StackFile:
    """Like :func:`running`. Raises ConfigError when nothing runs there."""
    found = running(state)
    if found is None:
        raise ConfigError(
            f"no stack runs under {state}. Start one with `mindstream up`, or name its state folder with --state."
        )
    return found


def assemble(path: Path, settings: list[str]) -> dict[str, Any]:
    """A run's file with ``section.key=value`` settings on top; values are YAML.

    Raises:
        ConfigError: a setting is not of that form.
    """
    data = config.load(path)
    for text in settings:
        name, equals, value = text.partition("=")
        keys = name.split(".")
        if not equals or len(keys) < 2 or not all(keys):
            raise ConfigError(f"--set {text!r} is not section.key=value, such as --set trainer.steps=200")
        place = data
        for key in keys[:-1]:
            inner = place[key] = {} if place.get(key) is None else place[key]
            if not isinstance(inner, dict):
                raise ConfigError(f"--set {text!r}: {key!r} holds {inner!r}, it has no keys")
            place = inner
        try:
            place[keys[-1]] = config.parse(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {text!r}: {value!r} is not a YAML value; put quotes around text") from error
    config.check_sections(data, "--set")
    return config.absolute_paths(data, Path.cwd()) if settings else data


def said(server: Server) -> str:
    """The last error in a service's log, in its own words; else the log's last lines."""
    return last_error(server.tail(10)) or server.tail(6)


def last_error(log: str) -> str:
    """The last ``error`` of a structured log; nothing when there is none."""
    for line in reversed(log.splitlines()):
        try:
            return str(msgspec.json.decode(line.strip())["error"])
        except (msgspec.DecodeError, KeyError, TypeError):
            continue
    return ""


def parse_scale(texts: list[str]) -> dict[str, int]:
    """``cleaning=2`` and the like.

    Raises:
        ConfigError: not a service, not a number, or more than one trainer.
    """
    scale = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in SERVICES or not number.isascii() or not number.isdigit() or not 0 <= int(number) <= 64:
            raise ConfigError(f"--scale {text!r} is not SERVICE=NUMBER; services are {', '.join(SERVICES)}")
        if name == "trainer" and int(number) > 1:
            raise ConfigError(
                "--scale trainer: a run has one trainer; start a second run with `mindstream train --set trainer.run=NAME`"
            )
        scale[name] = int(number)
    return scale


def free_port(taken: set[int]) -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    for port in _ports():
        if port not in taken and servers.free(port):
            return port
    raise ServerFailed("no free port was found on 127.0.0.1")


def _ports() -> Iterator[int]:
    yield from random.sample(range(22000, 32000), 500)  # two stacks that start together seldom try the same one


def ready(port: int) -> bool:
    """Whether the service on this metrics port can work."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _ending(code: int | None) -> str:
    return f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
