"""A small vocabulary that has what the real one has: U+2028 as an entry, Hanzi, word pieces, marks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from mindstream_tokenizer.config import TokenizerConfig
from mindstream_tokenizer.stage import TokenizerStage

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
HANZI = [chr(point) for point in range(0x4E00, 0x4E00 + 300)]
OTHERS = [
    "\u2028",
    *"abcdefghijklmnopqrstuvwxyz0123456789",
    *"。，？！；：“”‘’（）《》!?.,-()",
    *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz0123456789"),
]


ENTRIES = [*SPECIAL, *OTHERS, *HANZI]


@pytest.fixture
def entries() -> list[str]:
    """Entries in the order of their ids; a test may change its list."""
    return list(ENTRIES)


@pytest.fixture(scope="session")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the entries."""
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("".join(f"{entry}\n" for entry in ENTRIES), encoding="utf-8", newline="\n")
    return path


@pytest.fixture(scope="session")
def stages(vocab: Path) -> Callable[[TokenizerConfig], TokenizerStage]:
    """Stages by configuration; each builds its table once."""
    return cache(lambda config: TokenizerStage(config, vocab))
