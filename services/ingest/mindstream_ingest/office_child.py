"""``python -m mindstream_ingest.office_child``: reads pdf and docx files, one task a line, one answer a line.

It imports little, so that its memory is there for the files.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
from mindstream_common.process import die_with_parent

MEMORY = 900_000_000  # bytes of address space
UNPACKED = 300_000_000  # bytes of all parts of a docx
INSTALL = "pip install 'mindstream-ingest[office]'"


class Task(msgspec.Struct, frozen=True):
    """What the child is asked for: the text of ``path`` as UTF-8 in ``out``, at most ``most`` bytes of it."""

    kind: str
    path: str
    out: str
    seconds: float  # of processor time
    most: int


class Answer(msgspec.Struct, frozen=True):
    """``error`` says why there is no text."""

    error: str = ""


class _TooSlow(BaseException):
    """Not an Exception: the readers catch those."""


def pdf(path: str) -> Iterator[str]:
    """The text layer, page by page."""
    from pypdf import PdfReader

    reader = PdfReader(path)
    if reader.is_encrypted and not reader.decrypt(""):
        raise ValueError("it needs a password. Save it without one")
    for page in reader.pages:
        yield page.extract_text()


def docx(path: str) -> Iterator[str]:
    """Paragraphs and tables in the order of the document; a table's row is a line."""
    from docx import Document
    from docx.table import Table

    with zipfile.ZipFile(path) as parts:
        size = sum(info.file_size for info in parts.infolist())
    if size > UNPACKED:
        raise ValueError(f"it unpacks to {size} bytes; {UNPACKED} are allowed")
    for block in Document(path).iter_inner_content():
        if isinstance(block, Table):
            yield from _table(block)
        else:
            yield block.text


def _table(table: Any) -> Iterator[str]:
    for row in table.rows:
        cells = {
            id(cell._tc): cell.text.strip() for cell in row.cells
        }  # a merged cell comes once for each of its columns
        yield "\t".join(cells.values())


READERS: dict[str, Callable[[str], Iterator[str]]] = {"pdf": pdf, "docx": docx}


def convert(task: Task) -> str:
    """Write the text; returns what is wrong, or ``""``."""
    signal.setitimer(signal.ITIMER_PROF, task.seconds)
    try:
        written = 0
        with Path(task.out).open("wb") as out:
            for text in READERS[task.kind](task.path):
                data = (text.strip() + "\n").encode("utf-8", "ignore").replace(b"\0", b"") if text.strip() else b""
                written += len(data)
                if written > task.most:
                    return f"holds more than {task.most} bytes of text. Split it, or raise ingest.record_bytes."
                out.write(data)
        return "" if written else "no text layer: its pages are pictures, or it is empty. Run OCR on it first."
    except _TooSlow:
        return f"not read within {task.seconds:g} s of processor time. Split it, or raise ingest.office_seconds."
    except ImportError as error:
        return f"reading {task.kind} needs the package {error.name}: {INSTALL}"
    except MemoryError:
        return "wants too much memory. Split it, or save it as text."
    except Exception as error:
        return f"broken, cut off or protected {task.kind} ({type(error).__name__}: {str(error)[:300]}). Save it again."
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _too_slow(number: int, frame: Any) -> None:
    raise _TooSlow


def main(tasks: IO[bytes], answers: IO[bytes]) -> None:
    """Serve until the other side closes."""
    for line in tasks:
        error = convert(msgspec.json.decode(line, type=Task))
        answers.write(msgspec.json.encode(Answer(error.encode("utf-8", "replace").decode())) + b"\n")
        answers.flush()


if __name__ == "__main__":
    die_with_parent()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _too_slow)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a reader prints is no answer
    main(sys.stdin.buffer, channel)
