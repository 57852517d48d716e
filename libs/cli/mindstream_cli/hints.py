"""Commands in messages, in the form in which this person can type them here."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

DEFAULT_STATE = Path(".mindstream")


def command(text: str, state: Path = DEFAULT_STATE) -> str:
    """``mindstream <text>``: by its path when it is not on PATH, and with ``--state`` when that is not the default one."""
    program = "mindstream"
    if shutil.which(program) is None:
        program = os.path.relpath(Path(sys.executable).parent / program)
    place = "" if state == DEFAULT_STATE else f" --state {shlex.quote(str(state))}"
    return f"{program} {text}{place}"


def commands(state: Path, *texts: str) -> str:
    """Several, in one line."""
    return " · ".join(command(text, state) for text in texts)


def count(number: int, noun: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
