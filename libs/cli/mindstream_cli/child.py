"""A server as a child process: its log, its folder, when it is ready, and that it never outlives its parent."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from mindstream_common.errors import ConfigError, MindStreamError

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
# The signal of PR_SET_PDEATHSIG comes when the *thread* that started the child ends. Servers may be started from
# short-lived threads, so one thread, which lives as long as the process, starts them all.
_starter = ThreadPoolExecutor(1, thread_name_prefix="starts-servers")


class ServerFailed(MindStreamError):
    """A server did not start, or stopped by itself; the message holds the last lines of its log."""


@dataclass(kw_only=True)
class Server:
    """A child process with a log, a folder of its own and a way to see that it is ready.

    ``ready`` raises, or returns False, until the server answers. ``folder`` is its working directory; a lock on
    ``<folder>/.lock`` is held by the child itself for as long as it lives, so that two never share one folder.
    """

    name: str
    argv: Sequence[str]
    ready: Callable[[], bool]
    log: Path
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # added to this process's environment
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _log_start: int = field(default=0, init=False)

    def start(self) -> None:
        """Start the process; returns at once (see :meth:`wait_ready`).

        Raises:
            ConfigError: another process runs this server in this folder.
            ServerFailed: the program cannot be executed.
        """
        if self.alive():
            return
        for folder in (self.folder, self.log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with lock(self.folder) as fd, self.log.open("ab") as log:
            self._log_start = log.tell()
            try:
                self.process = _starter.submit(self._spawn, log.fileno(), fd).result()
            except OSError as error:
                raise ServerFailed(f"{self.name} cannot be started: {error}") from error

    def _spawn(self, log: int, fd: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.argv,
            cwd=self.folder,
            env={**os.environ, **self.env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(fd,),
            start_new_session=True,  # Ctrl-C stops the services first, then we stop the servers
            preexec_fn=_die_with(os.getpid()),
        )

    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def wait_ready(self, timeout: float = 30.0) -> None:
        """Wait until the server answers. ``timeout`` is in seconds.

        Raises:
            ServerFailed: it ended, or did not answer in time; with the last lines of its log.
        """
        deadline = time.monotonic() + timeout
        reason: object = "it gave no answer"
        pause = 0.02
        while True:
            if not self.alive():
                code = None if self.process is None else self.process.returncode
                raise ServerFailed(f"{self.name} ended with exit code {code} before it was ready.\n{self.tail()}")
            try:
                if self.ready():
                    return
            except Exception as error:
                reason = error
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.name} was not ready after {timeout:g} s: {reason}\n{self.tail()}")
            time.sleep(pause)
            pause = min(1.2 * pause, 0.3)

    def stop(self, timeout: float = 10.0) -> None:
        """Ask the process to end (SIGTERM), after ``timeout`` seconds kill it. Does nothing when it does not run."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """``kill -9``; returns when the process is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def tail(self, lines: int = 15) -> str:
        """The last lines that were logged since the last start."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(self._log_start)
            text = log.read().decode("utf-8", "replace").splitlines()[-lines:]
            return f"Last lines of {self.log}:\n  " + "\n  ".join(text or ["(empty)"])
        return f"{self.log} cannot be read."


def _die_with(parent: int) -> Callable[[], None] | None:
    """What the child does before exec: ask the kernel to kill it when its parent dies."""
    if _libc is None:
        return None
    prctl, kill = _libc.prctl, int(signal.SIGKILL)

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, kill, 0, 0, 0)
        if os.getppid() != parent:  # it died in between
            os._exit(1)

    return before_exec


@contextlib.contextmanager
def lock(folder: Path, timeout: float = 3.0) -> Iterator[int]:
    """Lock ``folder`` and give the descriptor, for a child to inherit: the lock lives until the last copy is closed.

    Waits a little: the children of a parent that was just killed are gone some milliseconds later.

    Raises:
        ConfigError: someone holds the lock.
    """
    with (folder / ".lock").open("a+b") as file:
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"{folder} is in use: its server still runs, started by another process. "
                        "Stop that stack first (mindstream down), or use another state folder."
                    ) from None
                time.sleep(0.03)
        yield file.fileno()


def start_all(servers: Sequence[Server], timeout: float = 30.0) -> None:
    """Start all at once and wait until each is ready; when one fails, stop the others and raise its error."""
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait_ready(timeout)
    except BaseException:
        stop_all(servers)
        raise


def stop_all(servers: Sequence[Server], timeout: float = 10.0) -> None:
    """Stop all at once; one that does not end within ``timeout`` seconds is killed."""
    for server in servers:
        if server.process is not None and server.alive():
            server.process.terminate()
    for server in servers:
        server.stop(timeout)
