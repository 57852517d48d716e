"""A child dies with its parent, however the parent dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MIDDLE = """
import subprocess, sys, time
from mindstream_common.process import die_with_parent
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], preexec_fn={how})
print(child.pid, flush=True)
time.sleep(60)
"""


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def grandchild_after_kill(how: str) -> tuple[bool, int]:
    """Kill the middle process; (whether the grandchild still runs after up to a second, its id)."""
    with subprocess.Popen([sys.executable, "-c", MIDDLE.format(how=how)], stdout=subprocess.PIPE, text=True) as middle:
        assert middle.stdout is not None
        pid = int(middle.stdout.readline())
        assert alive(pid)
        os.kill(middle.pid, signal.SIGKILL)
        assert middle.wait(5) == -signal.SIGKILL
    deadline = time.monotonic() + 1.0
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return alive(pid), pid


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel offers this on Linux only")
def test_a_grandchild_dies_when_the_middle_is_killed() -> None:
    still, _ = grandchild_after_kill("die_with_parent")
    assert not still


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel offers this on Linux only")
def test_without_it_the_grandchild_goes_on() -> None:
    """What the other test measures is real."""
    still, pid = grandchild_after_kill("None")
    if still:
        os.kill(pid, signal.SIGKILL)
    assert still
