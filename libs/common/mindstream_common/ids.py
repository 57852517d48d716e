"""Names derived from content: the same work always carries the same name, on every machine and after every crash."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec


def shard_id(stage: str, parents: tuple[str, ...], configuration: str, part: int = 0) -> str:
    """32 hex digits that name part ``part`` of what ``stage`` makes from ``parents`` under ``configuration``."""
    return hashlib.sha256("\0".join((stage, *parents, configuration, str(part))).encode()).hexdigest()[:32]


def configuration_hash(config: Any, **versions: str) -> str:
    """sha256 (hex) of a configuration Struct and of the versions whose change would change the output's bytes."""
    data = msgspec.json.encode([msgspec.to_builtins(config), versions], order="deterministic")
    return hashlib.sha256(data).hexdigest()


def sha256_bytes(data: bytes) -> str:
    """sha256 of ``data`` as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str | os.PathLike[str]) -> str:
    """sha256 of a file's bytes as 64 hex digits, read in pieces."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
