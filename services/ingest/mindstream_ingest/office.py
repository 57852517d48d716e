"""The text of pdf and docx files, read by a child process with bounded memory and processor time.

These formats are programs to their readers: a file of some kilobytes may want gigabytes or hours. The child
(:mod:`mindstream_ingest.office_child`) is started at the first such file and serves all that follow.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from pathlib import Path

import msgspec
from mindstream_common.errors import InputError

from mindstream_ingest.config import IngestConfig
from mindstream_ingest.office_child import Answer, Task
from mindstream_ingest.source import Source

PATIENCE = 10.0  # real seconds per second of processor time, on a busy machine


class Office:
    """Starts the child when it is needed, and a new one when it has died."""

    def __init__(self, config: IngestConfig) -> None:
        self._config = config
        self._child: subprocess.Popen[bytes] | None = None

    def convert(self, source: Source, out: Path) -> None:
        """Write the text of a plain pdf or docx file to ``out``.

        Raises:
            InputError: there is no text in it, it cannot be read, or not within the limits.
        """
        size = source.path.stat().st_size
        if size > self._config.office_bytes:
            raise InputError(
                f"{source.name}: {size} bytes; ingest.office_bytes allows {self._config.office_bytes}. Split it."
            )
        task = Task(source.kind, str(source.path), str(out), self._config.office_seconds, self._config.record_bytes)
        error = self._ask(task)
        if error:
            out.unlink(missing_ok=True)
            raise InputError(f"{source.name}: {error}")

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            self._child = None

    def _ask(self, task: Task) -> str:
        child = self._running()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(msgspec.json.encode(task) + b"\n")
            child.stdin.flush()
            ready, _, _ = select.select([child.stdout], [], [], task.seconds * PATIENCE)
            line = child.stdout.readline() if ready else b""
        except OSError:
            line = b""
            ready = [child.stdout]
        if line:
            return msgspec.json.decode(line, type=Answer).error
        self.close()
        if ready:
            return "reading it ended its process: it is broken, or wants too much memory. Save it anew, or as text."
        return f"not read within {task.seconds * PATIENCE:.0f} s. Split it, or raise ingest.office_seconds."

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self.close()
            self._child = subprocess.Popen(
                [sys.executable, "-m", "mindstream_ingest.office_child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self._child
