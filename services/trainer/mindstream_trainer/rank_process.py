"""The rank's process as the service sees it: started, listened to, told to stop, explained when it dies."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from mindstream_common import logs

from mindstream_trainer import report
from mindstream_trainer.report import Report

USER, NON_FINITE = 2, 3  # exit codes of the rank


class RankProcess:
    """One rank. Its reports come through a pipe of their own; what it prints goes to ``rank-0.log``."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._log = run_dir / "rank-0.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._begin = 0

    async def start(self) -> None:
        """Start it; call from the main thread (it dies with the thread that started it)."""
        reading, writing = os.pipe()
        with self._log.open("ab") as log:
            self._begin = log.tell()
            self._process = subprocess.Popen(  # noqa: ASYNC220 - it takes a millisecond, and must come from this thread
                [sys.executable, "-m", "mindstream_trainer.rank", str(self._run_dir)],
                cwd=self._run_dir,
                env={**os.environ, "MINDSTREAM_REPORT_FD": str(writing), "GLOG_v": os.environ.get("GLOG_v", "3")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                start_new_session=True,  # Ctrl-C goes to the service, which asks the rank to stop
            )
        os.close(writing)
        self._reader = asyncio.StreamReader(limit=1 << 20)
        protocol = asyncio.StreamReaderProtocol(self._reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(reading, "rb"))

    async def reports(self) -> AsyncIterator[Report]:
        """What it says, until it ends."""
        assert self._reader is not None
        while line := await self._reader.readline():
            try:
                yield report.decode(line)
            except msgspec.MsgspecError:
                logs.get().warning("the rank wrote a line that is no report", line=line[:200])

    async def wait(self) -> int:
        """Its exit code; negative: the signal that ended it."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait)

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def last_words(self, lines: int = 12) -> str:
        """The end of what it printed since it was started."""
        with self._log.open("rb") as log:
            log.seek(self._begin)
            text = log.read().decode("utf-8", "replace").rstrip().splitlines()
        return "\n".join(text[-lines:])
