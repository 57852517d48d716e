"""A vocabulary file: one entry per line, the line's number is the id."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from mindstream_common import vocabulary
from mindstream_common.errors import ConfigError
from mindstream_common.ids import sha256_bytes

# What each special entry is called: BERT's name, then RoBERTa's.
SPECIAL = {
    "pad": ("[PAD]", "<pad>"),
    "unknown": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
UNUSED = re.compile(r"^(\[unused\d+\]|<unused\d+>)$")


@dataclass(frozen=True)
class Vocabulary:
    """``special`` maps pad, unknown, cls, sep and mask to ids; ``ordinary`` (int32) are the ids that may replace a token."""

    path: str
    entries: tuple[str, ...]
    sha256: str
    special: dict[str, int]
    ordinary: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        return len(self.entries)

    @classmethod
    def read(cls, path: str | Path) -> Vocabulary:
        """Read a ``vocab.txt``.

        Raises:
            ConfigError: the file cannot be read as UTF-8, or an entry that training needs is missing.
        """
        data, entries = vocabulary.read(path)
        ids = {entry: i for i, entry in reversed(list(enumerate(entries)))}
        special = {}
        for name, spellings in SPECIAL.items():
            found = [ids[s] for s in spellings if s in ids]
            if not found:
                raise ConfigError(
                    f"the vocabulary {path} ({len(entries)} entries) has no {' or '.join(spellings)}; training needs one."
                )
            special[name] = found[0]
        never = {*special.values(), *(i for i, entry in enumerate(entries) if UNUSED.match(entry))}
        ordinary = np.array([i for i in range(len(entries)) if i not in never], np.int32)
        if not len(ordinary):
            raise ConfigError(f"the vocabulary {path} has special entries only.")
        return cls(str(path), entries, sha256_bytes(data), special, ordinary)

    def text(self, ids: np.ndarray) -> str:
        """Ids as text for people: entries joined, without special tokens and ``##``."""
        hidden = {self.special[name] for name in ("pad", "cls", "sep")}
        return "".join(
            self.entries[i].removeprefix("##") if 0 <= i < len(self) else f"<{i}?>"
            for i in ids.tolist()
            if i not in hidden
        )


def check_same(ours: Vocabulary, theirs: Vocabulary) -> None:
    """Raises ConfigError when a vocabulary is not that of the checkpoint, with both hashes and the first difference."""
    if ours.entries == theirs.entries:
        return
    shared = min(len(ours), len(theirs))
    first = next((i for i in range(shared) if ours.entries[i] != theirs.entries[i]), shared)
    entry = [repr(v.entries[first]) if first < len(v) else "nothing (the file ends)" for v in (ours, theirs)]
    raise ConfigError(
        f"the vocabulary {ours.path} (sha256 {ours.sha256}, {len(ours)} entries) is not the one the weights were trained "
        f"with, {theirs.path} (sha256 {theirs.sha256}, {len(theirs)} entries). The first difference is entry {first}: "
        f"{entry[0]} here, {entry[1]} there. Use the vocab.txt that belongs to the weights."
    )
