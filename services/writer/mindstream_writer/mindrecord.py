"""A MindRecord file with its ``.db``: written, and read back before anyone believes it.

MindSpore is imported inside the functions: it takes seconds and writes to the log. The name of a file is stored inside
it, so it must be written under its final name (moving the pair is fine); names must be ASCII and must not exist.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from mindstream_writer.rows import Row

SCHEMA = {"document": {"type": "string"}, "tokens": {"type": "bytes"}}
CHUNK = 1000  # rows in one call; one by one is six times slower


def write(path: Path, rows: Sequence[Row], header_size: int, page_size: int) -> Path:
    """Write rows in order into ``path`` and ``path.db``, and return the latter.

    The same rows under the same name give the same bytes.

    Raises:
        FileExistsError: one of the two exists.
    """
    index = path.with_name(path.name + ".db")
    for file in (path, index):
        if file.exists():
            raise FileExistsError(f"{file} exists; a MindRecord file is written once, under a name that is free")
    os.environ.setdefault("GLOG_v", "3")
    from mindspore.mindrecord import FileWriter

    writer = FileWriter(str(path))
    writer.set_header_size(header_size)
    writer.set_page_size(page_size)
    writer.add_schema(SCHEMA, "token rows")
    for start in range(0, len(rows), CHUNK):
        writer.write_raw_data([{"document": row.document, "tokens": row.tokens} for row in rows[start : start + CHUNK]])
    writer.commit()
    return index


def read(path: Path) -> Iterator[tuple[str, bytes]]:
    """(document, tokens) of every row, in order."""
    os.environ.setdefault("GLOG_v", "3")
    from mindspore.mindrecord import FileReader

    reader = FileReader(str(path))
    try:
        for row in reader.get_next():
            yield row["document"], bytes(row["tokens"])
    finally:
        reader.close()


def verify(path: Path, rows: Sequence[Row]) -> None:
    """Read the file back.

    Raises:
        OSError: it does not hold exactly ``rows``, in their order.
    """
    number = 0
    for number, (document, tokens) in enumerate(read(path), 1):
        if number > len(rows) or (document, tokens) != (rows[number - 1].document, rows[number - 1].tokens):
            raise OSError(
                f"{path.name}: row {number - 1} reads back different from what was written; is the disk sound?"
            )
    if number != len(rows):
        raise OSError(f"{path.name}: {number} rows read back of {len(rows)} written; is the disk full?")
