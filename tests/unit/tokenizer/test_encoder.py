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


def hugging_face(entries: dict[str, int], lowercase: bool = True) -> BertWordPieceTokenizer:
    """Theirs, told that ``[MASK]`` in a text is text."""
    theirs = BertWordPieceTokenizer(entries, lowercase=lowercase)
    theirs._tokenizer.encode_special_tokens = True
    return theirs


def same(mine: Encoder, theirs: BertWordPieceTokenizer, texts: list[str]) -> None:
    batch = mine.encode([text.encode() for text in texts], positions=True)
    assert batch.begins is not None
    assert batch.ends is not None
    assert len(batch.tokens) == len(texts) + 1
    for n, text in enumerate(texts):
        expected = theirs.encode(text, add_special_tokens=False)
        of = slice(batch.tokens[n], batch.tokens[n + 1])
        assert batch.ids[of].tolist() == expected.ids, text
        begins, ends = batch.begins[of] - batch.chars[n], batch.ends[of] - batch.chars[n]
        # positions are of the word; the tokenizer's own offsets are of the pieces
        for begin, end, piece in zip(begins.tolist(), ends.tolist(), expected.offsets, strict=True):
            assert begin <= piece[0] < piece[1] <= end, text
        assert np.all(np.diff(ends) >= 0)
        assert 0 <= begins.min(initial=0) <= ends.max(initial=0) <= len(text)
        done = batch.done[batch.chars[n] : batch.chars[n + 1]] - batch.tokens[n]
        assert done.tolist() == [int(np.sum(ends <= end)) for end in range(1, len(text) + 2)]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(CHARACTERS, max_size=40), max_size=5), lowercase=st.booleans())
@example(texts=["", "", "一"], lowercase=True)
@example(texts=[], lowercase=True)
@example(texts=["一ab，c\u0301丁"], lowercase=False)
@example(texts=["一[MASK]丁", "[SEP][CLS] [PAD]", "[mask]", "[MASK", "[UNK]一"], lowercase=True)
@example(texts=["一[MASK]丁", "[SEP][CLS] [PAD]"], lowercase=False)
@example(
    texts=["👍🏽👨\u200d👩\u200d👧", "a\u0301\u0302\u0303一\u0301", "\x00\x01\x7f\ufffd一\x85\u2029"], lowercase=True
)
@example(texts=["𠀀𪜀𫝀𬺰一㐀豈", "ｆｕｌｌ１２３", "Приветabcミツ한국어一العربية"], lowercase=True)
def test_ids_are_hugging_faces(vocab: Path, texts: list[str], lowercase: bool) -> None:
    loaded = vocabulary.load(vocab)
    mine = _cached(vocab, lowercase)
    same(mine, hugging_face(loaded.ids, lowercase), texts)


@cache
def _cached(vocab: Path, lowercase: bool) -> Encoder:
    return Encoder(vocabulary.load(vocab), lowercase)


def test_every_character_of_the_table_is_hugging_faces_in_any_neighbourhood(vocab: Path) -> None:
    mine = _cached(vocab, True)
    theirs = hugging_face(vocabulary.load(vocab).ids)
    points = [p for p in range(1, 0x3400) if mine._table[p] != encoder.OTHER]
    assert len(points) > 100
    same(
        mine,
        theirs,
        [f"a{chr(p)}1" for p in points] + [f"一{chr(p)}丁" for p in points] + [f"{chr(p)}\u0301b" for p in points],
    )


def test_positions_are_of_words(vocab: Path) -> None:
    found = _cached(vocab, True).encode(["一 abc，丁!".encode()], positions=True)
    assert found.begins is not None
    assert found.ends is not None
    assert found.begins.tolist() == [0, 2, 2, 2, 5, 6, 7]
    assert found.ends.tolist() == [1, 5, 5, 5, 6, 7, 8]


def test_a_special_token_in_a_text_stays_text(vocab: Path, entries: list[str]) -> None:
    found = _cached(vocab, True).encode(["一[MASK]丁[SEP]".encode()])
    assert len(found.ids) > 2
    assert not set(found.ids.tolist()) & {entries.index("[MASK]"), entries.index("[SEP]")}


def test_forgetting_runs_changes_nothing(vocab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "REMEMBERED", 3)
    mine = Encoder(vocabulary.load(vocab), True)
    theirs = hugging_face(vocabulary.load(vocab).ids)
    for _ in range(3):
        same(mine, theirs, [f"一a{n}丁b{n}" for n in range(20)])


def test_real_documents() -> None:
    if not DATA.is_dir():
        pytest.skip(f"{DATA} is not there: real documents are only compared where they are")
    path = DATA / "bert_vocab_zh.txt"
    texts = []
    for name, field in (("bench_text_5k", "text"), ("general_pages", "html"), ("medical_qa", "answer")):
        with (DATA / f"{name}.jsonl").open(encoding="utf-8") as file:
            texts += [json.loads(line)[field] for _, line in zip(range(150), file, strict=False)]
    loaded = vocabulary.load(path)
    mine, theirs = Encoder(loaded, True), hugging_face(loaded.ids)
    batch = mine.encode([text.encode() for text in texts])
    for n, expected in enumerate(theirs.encode_batch(texts, add_special_tokens=False)):
        assert batch.ids[batch.tokens[n] : batch.tokens[n + 1]].tolist() == expected.ids, texts[n]
