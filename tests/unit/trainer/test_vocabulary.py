from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mindstream_common.errors import ConfigError
from mindstream_trainer.vocabulary import Vocabulary, check_same

ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "哦", "\u2028", "我", "##们", "[unused1]"]


def written(path: Path, entries: list[str]) -> Vocabulary:
    path.write_bytes("".join(f"{entry}\n" for entry in entries).encode())
    return Vocabulary.read(path)


def test_line_separators_are_entries(tmp_path: Path) -> None:
    vocabulary = written(tmp_path / "v.txt", ENTRIES)
    assert (len(vocabulary), vocabulary.entries[7]) == (10, "我")


def test_special_and_ordinary(tmp_path: Path) -> None:
    vocabulary = written(tmp_path / "v.txt", ENTRIES)
    assert vocabulary.special == {"pad": 0, "unknown": 1, "cls": 2, "sep": 3, "mask": 4}
    assert vocabulary.ordinary.tolist() == [5, 6, 7, 8]


def test_roberta_s_names(tmp_path: Path) -> None:
    assert written(tmp_path / "v.txt", ["<s>", "<pad>", "</s>", "<unk>", "我", "<mask>"]).special["pad"] == 1


def test_text_for_people(tmp_path: Path) -> None:
    assert written(tmp_path / "v.txt", ENTRIES).text(np.array([2, 7, 8, 3, 0, 99])) == "我们<99?>"


def test_a_missing_entry_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no \[MASK\] or <mask>"):
        written(tmp_path / "v.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]"])


def test_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_bytes("词".encode("gb18030"))
    with pytest.raises(ConfigError, match="cannot read the vocabulary"):
        Vocabulary.read(tmp_path / "v.txt")


SWAPPED = [*ENTRIES[:5], ENTRIES[7], ENTRIES[6], ENTRIES[5], *ENTRIES[8:]]


@pytest.mark.parametrize(
    ("entries", "first"),
    [
        (ENTRIES[:-1], "entry 9: nothing (the file ends) here, '[unused1]' there"),
        (SWAPPED, "entry 5: '我' here, '哦' there"),
        (["[PAD]", "[unused0]", *ENTRIES[1:]], "entry 1: '[unused0]' here, '[UNK]' there"),
    ],
)
def test_another_vocabulary_is_refused_with_hashes_and_the_first_difference(
    tmp_path: Path, entries: list[str], first: str
) -> None:
    theirs = written(tmp_path / "theirs.txt", ENTRIES)
    ours = written(tmp_path / "ours.txt", entries)
    with pytest.raises(ConfigError) as caught:
        check_same(ours, theirs)
    assert first in str(caught.value)
    assert ours.sha256 in str(caught.value)
    assert theirs.sha256 in str(caught.value)
    check_same(theirs, Vocabulary.read(tmp_path / "theirs.txt"))


REAL = Path(__file__).parents[4] / "shared" / "data" / "bert_vocab_zh.txt"


@pytest.mark.skipif(not REAL.exists(), reason="the real vocabulary (../shared/data) is not on this machine")
def test_the_real_chinese_vocabulary() -> None:
    vocabulary = Vocabulary.read(REAL)
    assert len(vocabulary) == 21128
    assert vocabulary.special == {"pad": 0, "unknown": 100, "cls": 101, "sep": 102, "mask": 103}
    assert [vocabulary.entries[i] for i in (511, 1521, 2769)] == ["。", "哦", "我"]  # after U+2028, near 344
    assert vocabulary.ordinary.min() > 103
