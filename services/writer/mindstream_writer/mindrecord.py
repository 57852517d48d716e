"""A MindRecord file with its ``.db``: written, and read back before anyone believes it.

A record is a block of some hundred rows: MindRecord costs some ten microseconds a record, whatever is in it. Fields:
``sizes`` (little-endian int32: tokens of each row), ``tokens`` (the ids of all rows, in the shard's dtype),
``documents`` (the names of the rows' documents, a line each) and, where the tokenizer marked words, ``words`` (a bit
for each token, in the order of numpy's packbits).

MindSpore is imported inside the functions: it takes seconds and writes to the log. The name of a file is stored inside
it, so it must be written under its final name (moving the pair is fine); names must be ASCII and must not exist.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mindstream_writer.rows import Rows

SCHEMA = {"sizes": {"type": "bytes"}, "tokens": {"type": "bytes"}, "documents": {"type": "string"}}
WORDS = {"words": {"type": "bytes"}}
BLOCK_ROWS = 512
Block = dict[str, Any]


def blocks(rows: Rows, limit: int) -> Iterator[Block]:
    """Records of ``rows`` in order, each of at most ``limit`` bytes (a single row may be longer) and BLOCK_ROWS rows."""
    sizes = np.diff(rows.starts)
    names = np.fromiter(map(len, rows.documents), np.int64, len(rows))
    weight = np.concatenate(([0], np.cumsum(sizes * (rows.ids.itemsize + 1) + names * 4 + 8)))
    start = 0
    while start < len(rows):
        stop = int(np.searchsorted(weight, weight[start] + limit, side="right")) - 1
        stop = max(start + 1, min(stop, start + BLOCK_ROWS))
        yield _block(rows, start, stop)
        start = stop


def _block(rows: Rows, start: int, stop: int) -> Block:
    begin, end = rows.starts[start], rows.starts[stop]
    block = {
        "sizes": np.diff(rows.starts[start : stop + 1]).astype("<i4").tobytes(),
        "tokens": rows.ids[begin:end].tobytes(),
        "documents": "\n".join(rows.documents[start:stop]),
    }
    if rows.words is not None:
        block["words"] = np.packbits(rows.words[begin:end]).tobytes()
    return block


def write(path: Path, rows: Rows, header_size: int, page_size: int) -> Path:
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
    writer.add_schema(SCHEMA if rows.words is None else SCHEMA | WORDS, "blocks of token rows")
    writer.write_raw_data(list(blocks(rows, page_size // 4)))
    writer.commit()
    return index


def read(path: Path) -> Iterator[Block]:
    """The blocks, in order."""
    os.environ.setdefault("GLOG_v", "3")
    from mindspore.mindrecord import FileReader

    reader = FileReader(str(path))
    try:
        for record in reader.get_next():
            yield {name: value if isinstance(value, str) else bytes(value) for name, value in record.items()}
    finally:
        reader.close()


def digest(block: Block) -> bytes:
    """A hash of what a block holds."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(block):
        value = block[name].encode() if isinstance(block[name], str) else block[name]
        found.update(f"{name}\0{len(value)}\0".encode())
        found.update(value)
    return found.digest()


def verify(path: Path, rows: Rows, page_size: int) -> None:
    """Read the file back.

    Raises:
        OSError: it does not hold exactly ``rows``, in their order.
    """
    expected = [(digest(block), len(block["sizes"]) // 4) for block in blocks(rows, page_size // 4)]
    row = number = 0
    for number, block in enumerate(read(path), 1):
        if number > len(expected) or digest(block) != expected[number - 1][0]:
            raise OSError(
                f"{path.name}: the block of rows from {row} on reads back different from what was written; is the disk "
                "sound?"
            )
        row += expected[number - 1][1]
    if number != len(expected):
        raise OSError(f"{path.name}: {row} rows read back of {len(rows)} written; is the disk full?")
