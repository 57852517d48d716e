from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindstream_tokenizer import rows, sentences
from mindstream_tokenizer.batch import Batch, join
from mindstream_tokenizer.rows import Spans


def encoded(*texts: str) -> Batch:
    """One token for each character that is no blank; its id is the character."""
    text, points, chars = join([text.encode() for text in texts])
    solid = np.array([not c.isspace() for c in text], bool)
    return Batch(text, points, chars, points[solid].astype(np.int32), np.cumsum(solid, dtype=np.int32))


def pieces(text: str, capacity: int) -> list[str]:
    batch = encoded(text)
    spans = rows.single(batch.tokens.tolist(), sentences.ends(batch).tolist(), capacity)
    return [text_of(batch, a, b) for a, b in zip(spans.starts, spans.stops, strict=True)]


def text_of(batch: Batch, start: int, stop: int) -> str:
    return "".join(map(chr, batch.ids[start:stop].tolist()))


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
    batch = encoded(text)
    found = rows.single(batch.tokens.tolist(), sentences.ends(batch).tolist(), capacity)
    spans = list(zip(found.starts, found.stops, strict=True))
    assert [a for a, _ in spans] == [0, *(b for _, b in spans)][: len(spans)]
    assert sum(b - a for a, b in spans) == len(batch.ids)
    assert all(0 < b - a <= capacity for a, b in spans)
    ends = {sum(not c.isspace() for c in text[:p]) for p in _sentence_ends(text)}
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


TEXTS = st.lists(st.text(st.sampled_from("一二三四五六七八。！\n "), max_size=80), max_size=12)


@given(texts=TEXTS, length=st.integers(8, 64), begin=st.integers(0, 2), end=st.integers(1, 2), data=st.data())
def test_full_rows_hold_every_token_once_and_waste_little(
    texts: list[str], length: int, begin: int, end: int, data: st.DataObject
) -> None:
    batch = encoded(*texts)
    group = data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts)))
    groups = [[n for n, of in enumerate(group) if of is which] for which in (False, True)]
    spans = rows.full(batch.tokens.tolist(), sentences.ends(batch).tolist(), length, (begin, end), groups)
    for document in range(len(texts)):  # in order, without a gap
        own = [(a, b) for d, a, b in _spans(spans) if d == document]
        edges = [batch.tokens[document], *(b for _, b in own)]
        assert [a for a, _ in own] == edges[: len(own)]
        assert edges[-1] == batch.tokens[document + 1]
        assert all(a < b for a, b in own)
    used = [begin] * (spans.rows[-1] + 1 if spans.rows else 0)
    sides: dict[int, set[bool]] = {}
    for row, (document, a, b) in zip(spans.rows, _spans(spans), strict=True):
        used[row] += b - a + end
        sides.setdefault(row, set()).add(group[document])
    assert sorted(sides) == list(range(len(used)))
    assert all(len(of) == 1 for of in sides.values())
    assert max(used, default=0) <= length
    last = {max(row for row, of in sides.items() if side in of) for side in (False, True) if {side} in sides.values()}
    wasted = [length - n for row, n in enumerate(used) if row not in last]
    assert max(wasted, default=0) <= length // rows.SLACK + end


def _spans(spans: Spans) -> list[tuple[int, int, int]]:
    return list(zip(spans.documents, spans.starts, spans.stops, strict=True))


def test_full_rows_end_with_sentences_where_that_wastes_little() -> None:
    batch = encoded("一二三四五六七八九十。甲乙丙丁戊己庚辛壬癸子丑寅卯。", "天地玄黄，宇宙洪荒。")
    spans = rows.full(batch.tokens.tolist(), sentences.ends(batch).tolist(), 16, (1, 1), [[0, 1]])
    assert [(row, text_of(batch, a, b)) for row, (_, a, b) in zip(spans.rows, _spans(spans), strict=True)] == [
        (0, "一二三四五六七八九十。甲乙丙"),
        (1, "丁戊己庚辛壬癸子丑寅卯。"),
        (2, "天地玄黄，宇宙洪荒。"),
    ]


def test_special_tokens_stand_around_the_spans() -> None:
    ids = np.arange(10, 20, dtype=np.int32)
    spans = Spans(rows=[0, 0, 1], documents=[0, 1, 1], starts=[0, 4, 7], stops=[4, 7, 10])
    layout = rows.lay_out(ids, spans, (1, 2), (3,))
    assert layout.ids.tolist() == [1, 2, 10, 11, 12, 13, 3, 14, 15, 16, 3, 1, 2, 17, 18, 19, 3]
    assert layout.starts.tolist() == [0, 11, 17]
    assert layout.places.tolist() == [2, 7, 13]
    assert layout.order.tolist() == list(range(10))
    assert np.flatnonzero(layout.special).tolist() == [0, 1, 6, 10, 11, 12, 16]
    marks = layout.spread(np.array([1, 0, 1, 1, 1, 1, 0, 1, 1, 0], bool))
    assert np.flatnonzero(marks).tolist() == [4, 5, 8, 14]  # 2, 7 and 13 begin a span
