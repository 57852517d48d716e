from __future__ import annotations

from pathlib import Path

import pytest
from mindstream_common.errors import ConfigError
from mindstream_common.pin import pin_tokenizer
from mindstream_common.store import MemoryStore


def vocabulary(folder: Path, name: str, *entries: str) -> Path:
    path = folder / name
    path.write_text("\n".join(entries) + "\n", encoding="utf-8")
    return path


def test_the_first_tokenizer_is_the_pipelines(tmp_path: Path) -> None:
    store = MemoryStore()
    first = vocabulary(tmp_path, "a.txt", "[PAD]", "党", "参")
    pin_tokenizer(store, "default", first)
    pin_tokenizer(store, "default", first)
    same = vocabulary(tmp_path, "copy.txt", "[PAD]", "党", "参")
    pin_tokenizer(store, "default", same)


@pytest.mark.parametrize(
    ("entries", "difference"),
    [
        (("[PAD]", "参", "党"), r"line 2 is '参' here and '党' there"),
        (("[PAD]", "党"), r"line 3 is '' here and '参' there"),
        (("[PAD]", "党", "参", "茶"), r"line 4 is '茶' here and '' there"),
    ],
)
def test_another_one_is_refused(tmp_path: Path, entries: tuple[str, ...], difference: str) -> None:
    """Two entries swapped, one fewer, one more (K5): both hashes and the first entry that differs."""
    store = MemoryStore()
    pin_tokenizer(store, "default", vocabulary(tmp_path, "a.txt", "[PAD]", "党", "参"))
    with pytest.raises(ConfigError, match=difference) as caught:
        pin_tokenizer(store, "default", vocabulary(tmp_path, "b.txt", *entries))
    assert str(caught.value).count("sha256") == 2
    pin_tokenizer(store, "another", vocabulary(tmp_path, "b.txt", *entries))  # another pipeline may
