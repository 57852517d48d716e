"""A stack without a trainer, and texts that are all different."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from local import HANZI, run_config, write_vocabulary


def config(folder: Path, **ingest: Any) -> dict[str, Any]:
    """A run's file whose ingest does this."""
    found = run_config(write_vocabulary(folder / "vocab.txt"))
    found["ingest"] = {"shard_documents": 40, **ingest}
    return found


def text(number: int) -> str:
    """A text that no other number has."""
    digits = [HANZI[int(digit)] for digit in f"{number:06}"]
    return "".join(digits) + "，" + HANZI[:30] + "。" + "".join(digits) + "。"
