"""A WordPiece vocabulary file: one entry a line, the line's number is the id."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mindstream_common import ids, vocabulary
from mindstream_common.errors import ConfigError

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """``entries[i]`` is the entry of id *i*; ``sha256`` is that of the file's bytes."""

    path: Path
    entries: tuple[str, ...]
    sha256: str

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def ids(self) -> dict[str, int]:
        """Entry → id."""
        return {entry: id for id, entry in enumerate(self.entries)}


def load(path: Path) -> Vocabulary:
    """Read a vocabulary.

    Raises:
        ConfigError: the file cannot be read, lacks a special token, or has an entry twice.
    """
    data, lines = vocabulary.read(path)
    _check(path, lines)
    return Vocabulary(path, lines, ids.sha256_bytes(data))


def _check(path: Path, lines: tuple[str, ...]) -> None:
    seen: dict[str, int] = {}
    for id, entry in enumerate(lines):
        if (first := seen.setdefault(entry, id)) != id:
            raise ConfigError(
                f"{path}: entry {entry!r} stands twice, as ids {first} and {id}. Use the file of the base model."
            )
    missing = [token for token in SPECIAL if token not in seen]
    if missing:
        raise ConfigError(
            f"{path}: {len(lines)} entries, but no {', '.join(missing)}: not a BERT vocabulary. Use the vocab.txt of the base model."
        )
