"""A WordPiece vocabulary file: one entry a line, the line's number is the id."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mindstream_common import ids
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

    Lines end at newlines only: the vocabulary of bert-base-chinese has U+2028 as an entry, at which ``splitlines()``
    would also split, shifting every later id by one.

    Raises:
        ConfigError: the file cannot be read, lacks a special token, or has an entry twice.
    """
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the vocabulary {path}: {error}. It is the vocab.txt beside the base model."
        ) from error
    lines = text.removesuffix("\n").split("\n")
    if all(line.endswith("\r") for line in lines[:-1]) and len(lines) > 1:
        lines = [line.removesuffix("\r") for line in lines]
    _check(path, lines)
    return Vocabulary(path, tuple(lines), ids.sha256_bytes(data))


def _check(path: Path, lines: list[str]) -> None:
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


def compare(expected: Vocabulary, found: Vocabulary) -> None:
    """Refuse a vocabulary that is not the base model's.

    Raises:
        ConfigError: with both hashes, both sizes and the first entry that differs.
    """
    if expected.entries == found.entries:
        return
    shared = min(len(expected), len(found))
    at = next((id for id in range(shared) if expected.entries[id] != found.entries[id]), shared)
    first, second = (repr(v.entries[at]) if at < len(v) else "nothing" for v in (expected, found))
    raise ConfigError(
        f"the vocabularies differ from id {at} on: {expected.path} ({len(expected)} entries, sha256 {expected.sha256}) has "
        f"{first}, {found.path} ({len(found)} entries, sha256 {found.sha256}) has {second}. "
        "A pipeline and its base model must share one vocabulary."
    )
