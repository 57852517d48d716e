from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindstream_tokenizer.encoder import Encoded
from mindstream_tokenizer.rows import cut


def encoded(text: str) -> Encoded:
    """One token for each character that is no blank."""
    ends = np.array([n + 1 for n, c in enumerate(text) if not c.isspace()], np.int32)
    return Encoded(np.arange(len(ends), dtype=np.int32), ends)


def pieces(text: str, capacity: int) -> list[str]:
    solid = "".join(text.split())
    return [solid[a:b] for a, b in cut(text, encoded(text), capacity)]


@pytest.mark.parametrize(
    ("text", "capacity", "rows"),
    [
        ("", 5, []),
        ("一二三四五", 5, ["一二三四五"]),
        ("一二三。四五。六七。", 7, ["一二三。四五。", "六七。"]),
        ("一二三。四五。六七。", 6, ["一二三。", "四五。六七。"]),
        ("他说：“好。”又来了。", 8, ["他说：“好。”", "又来了。"]),
        ("（好！）』」他来", 6, ["（好！）』」", "他来"]),
        ("标题\n正文很长。", 6, ["标题", "正文很长。"]),
        ("真的？！不。", 5, ["真的？！", "不。"]),
        ("pi is 3.14 ok. Yes", 12, ["piis3.14ok.", "Yes"]),
        ("一二三四五六七八九。十。", 4, ["一二三四", "五六七八", "九。十。"]),
        ("甲。一二三四五六七", 4, ["甲。", "一二三四", "五六七"]),
        ("。。。。。", 2, ["。。", "。。", "。"]),
    ],
)
def test_rows_end_with_sentences(text: str, capacity: int, rows: list[str]) -> None:
    assert pieces(text, capacity) == rows


@given(text=st.text(st.sampled_from("一二三。！？”\n ,.a"), max_size=200), capacity=st.integers(1, 30))
def test_rows_are_all_of_the_text_and_cut_inside_a_sentence_only_when_they_must(text: str, capacity: int) -> None:
    spans = cut(text, encoded(text), capacity)
    assert [a for a, _ in spans] == [0, *(b for _, b in spans)][: len(spans)]
    assert sum(b - a for a, b in spans) == len(encoded(text).ids)
    assert all(0 < b - a <= capacity for a, b in spans)
    ends = {int(np.searchsorted(encoded(text).ends, p, side="right")) for p in _sentence_ends(text)}
    for a, b in spans[:-1]:
        if b not in ends:
            assert b - a == capacity
            assert not any(a < end <= b for end in ends)  # no whole sentence would have fitted


def _sentence_ends(text: str) -> list[int]:
    """The rule once more, a character at a time."""
    found = []
    for n, c in enumerate(text):
        if c == "\n":
            found.append(n + 1)
        elif c in "。！？" or (c == "." and text[n + 1 : n + 2].isspace()):
            end = n + 1
            while text[end : end + 1] == "”":
                end += 1
            found.append(end)
    return found
