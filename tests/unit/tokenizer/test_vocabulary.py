from __future__ import annotations

from pathlib import Path

import pytest
from mindstream_common.errors import ConfigError
from mindstream_tokenizer import vocabulary
from mindstream_tokenizer.encoder import Encoder

REAL = Path(__file__).parents[4] / "shared" / "data" / "bert_vocab_zh.txt"


def write(path: Path, entries: list[str], end: str = "\n") -> Path:
    path.write_bytes("".join(entry + end for entry in entries).encode())
    return path


def test_t1_a_line_separator_is_an_entry_and_shifts_nothing(vocab: Path, entries: list[str]) -> None:
    found = vocabulary.load(vocab)
    assert found.entries == tuple(entries)
    assert len(vocab.read_text(encoding="utf-8").splitlines()) > len(entries)  # the trap is in the file
    assert found.ids["丁"] == entries.index("丁")
    ids = Encoder(found, True).encode(["一丁".encode()]).ids.tolist()
    assert ids == [entries.index("一"), entries.index("丁")]


def test_t1_the_real_vocabulary() -> None:
    if not REAL.is_file():
        pytest.skip(f"{REAL} is not there: the real vocabulary is only checked where it is")
    found = vocabulary.load(REAL)
    assert len(found) == 21128
    assert found.sha256 == "45bbac6b341c319adc98a532532882e91a9cefc0329aa57bac9ae761c27b291c"
    assert Encoder(found, True).encode(["哦我".encode()]).ids.tolist() == [1521, 2769]


def test_line_ends_of_windows_and_a_missing_last_one(tmp_path: Path, entries: list[str]) -> None:
    assert vocabulary.load(write(tmp_path / "a", entries, "\r\n")).entries == tuple(entries)
    path = tmp_path / "b"
    path.write_bytes("\n".join(entries).encode())
    assert vocabulary.load(path).entries == tuple(entries)


@pytest.mark.parametrize("special", vocabulary.SPECIAL)
def test_a_missing_special_token_is_refused(tmp_path: Path, entries: list[str], special: str) -> None:
    entries.remove(special)
    with pytest.raises(ConfigError, match=special[1:-1]):
        vocabulary.load(write(tmp_path / "a", entries))


def test_an_entry_twice_is_refused_with_both_ids(tmp_path: Path, entries: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"'丁' stands twice, as ids {entries.index('丁')} and {len(entries)}"):
        vocabulary.load(write(tmp_path / "a", [*entries, "丁"]))


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the vocabulary"):
        vocabulary.load(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot read the vocabulary"):
        vocabulary.load(tmp_path / "binary")


def test_a_vocabulary_without_hanzi_fails_the_probe(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [*vocabulary.SPECIAL, "a", "b"])
    with pytest.raises(ConfigError, match="0 Hanzi among 7 entries"):
        Encoder(vocabulary.load(path), True)
