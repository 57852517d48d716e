"""The table gives the ids of Hugging Face's tokenizer, and positions that cover the text."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mindstream_tokenizer import encoder, vocabulary
from mindstream_tokenizer.encoder import Encoder
from tokenizers import BertWordPieceTokenizer

DATA = Path(__file__).parents[4] / "shared" / "data"
CHARACTERS = st.one_of(
    st.characters(min_codepoint=0x4E00, max_codepoint=0x4F60),
    st.sampled_from("。，“”abcXYZ019 \n\t\u3000\u00a0éÀ\u0301\u200b\u2028😀ガΣς龘㐀\u20000￥．]"),
    st.characters(exclude_categories=["Cs"]),
)


def same(mine: Encoder, theirs: BertWordPieceTokenizer, texts: list[str]) -> None:
    for text, found in zip(texts, mine.encode(texts), strict=True):
        expected = theirs.encode(text, add_special_tokens=False)
        assert found.ids.tolist() == expected.ids, text
        assert len(found.ends) == len(found.ids)
        # ends: after the word; the tokenizer's own offsets are of the pieces
        assert all(end >= piece[1] for end, piece in zip(found.ends.tolist(), expected.offsets, strict=True)), text
        assert np.all(np.diff(found.ends) >= 0)
        assert found.ends.max(initial=0) <= len(text)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(CHARACTERS, max_size=40), max_size=5), lowercase=st.booleans())
@example(texts=["", "", "一"], lowercase=True)
@example(texts=[], lowercase=True)
@example(texts=["一ab，c\u0301丁"], lowercase=False)
def test_ids_are_hugging_faces(vocab: Path, texts: list[str], lowercase: bool) -> None:
    loaded = vocabulary.load(vocab)
    mine = _cached(vocab, lowercase)
    texts = [text.replace("[", "") for text in texts]  # [MASK] is text here
    theirs = BertWordPieceTokenizer(loaded.ids, lowercase=lowercase)
    same(mine, theirs, texts)


@cache
def _cached(vocab: Path, lowercase: bool) -> Encoder:
    return Encoder(vocabulary.load(vocab), lowercase)


def test_every_character_of_the_table_is_hugging_faces_in_any_neighbourhood(vocab: Path) -> None:
    mine = _cached(vocab, True)
    theirs = BertWordPieceTokenizer(vocabulary.load(vocab).ids, lowercase=True)
    points = [p for p in range(1, 0x3400) if mine._table[p] != encoder.OTHER]
    assert len(points) > 100
    same(
        mine,
        theirs,
        [f"a{chr(p)}1" for p in points] + [f"一{chr(p)}丁" for p in points] + [f"{chr(p)}\u0301b" for p in points],
    )


def test_positions_are_of_words(vocab: Path) -> None:
    [found] = _cached(vocab, True).encode(["一 abc，丁!"])
    assert found.ends.tolist() == [1, 5, 5, 5, 6, 7, 8]


def test_a_special_token_in_a_text_stays_text(vocab: Path, entries: list[str]) -> None:
    [found] = _cached(vocab, True).encode(["一[MASK]丁[SEP]"])
    assert not set(found.ids.tolist()) & {entries.index("[MASK]"), entries.index("[SEP]")}


def test_forgetting_runs_changes_nothing(vocab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "REMEMBERED", 3)
    mine = Encoder(vocabulary.load(vocab), True)
    theirs = BertWordPieceTokenizer(vocabulary.load(vocab).ids, lowercase=True)
    for _ in range(3):
        same(mine, theirs, [f"一a{n}丁b{n}" for n in range(20)])


def test_real_documents() -> None:
    if not DATA.is_dir():
        pytest.skip(f"{DATA} is not there: real documents are only compared where they are")
    path = DATA / "bert_vocab_zh.txt"
    texts = []
    for name, field in (("bench_text_5k", "text"), ("general_pages", "html")):
        with (DATA / f"{name}.jsonl").open(encoding="utf-8") as file:
            texts += [json.loads(line)[field] for _, line in zip(range(150), file, strict=False)]
    texts = [text.replace("[", "") for text in texts]  # special tokens are text here
    loaded = vocabulary.load(path)
    same(Encoder(loaded, True), BertWordPieceTokenizer(loaded.ids, lowercase=True), texts)
