from __future__ import annotations

import hashlib
import random
import time
import tracemalloc
import unicodedata
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindstream_cleaning import sketch
from mindstream_cleaning.sketch import BANDS, LEAST, sketches
from mindstream_common.signatures import MOST, SIZES, similarity

HANZI = [chr(code) for code in range(0x4E00, 0x4E00 + 3000)]


def made(choose: random.Random, length: int) -> str:
    return "".join(choose.choices(HANZI, k=length))


def signature(text: str) -> bytes:
    [found] = sketches([text])
    return found[8 * BANDS :]


def shingles(text: str) -> set[str]:
    text = "".join(c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c)[0] not in "PZC")
    return {text[at : at + 5] for at in range(len(text) - 4)}


def jaccard(one: str, other: str) -> float:
    a, b = shingles(one), shingles(other)
    return len(a & b) / len(a | b)


def shares_a_band(one: str, other: str) -> bool:
    a, b = (np.frombuffer(each[: 8 * BANDS], dtype=np.uint64) for each in sketches([one, other]))
    return bool((a == b).any())


GOLDEN = {
    "hanzi": (
        "高血压患者应当少吃盐，每天不超过五克；按时服药，定期测量血压并做好记录，" * 2 + "如有不适及时就医。",
        "60d265960a7a1736",
    ),
    "latin": (
        "The quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs. " * 2,
        "3e72da38e0dede75",
    ),
    "wide": ("ＡＢＣ①②③℃㎡…患者体温３８.５℃，面积１２㎡，" * 4, "3da5c03967699d35"),
    "planes": ("𠀀𠀁𠀂😀é̂か゚丽" * 12, "11162bff23946aa1"),
    "long": ("".join(chr(0x4E00 + n * 7919 % 20000) for n in range(5000)), "a2b0f95a0309f36e"),
    "same": ("哈" * 200, "44801bd474445ebb"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_vectors(name: str) -> None:
    """When one of these changes, so must ``sketch.VERSION``: what was stored before matches nothing any more."""
    text, expected = GOLDEN[name]
    assert hashlib.sha256(sketches([text])[0]).hexdigest()[:16] == expected


def test_the_version_is_the_one_of_the_golden_vectors() -> None:
    assert sketch.VERSION == "nfkc-n5-oph12x5-odd1024-1"


def test_a_batch_gives_what_each_text_gives_alone() -> None:
    choose = random.Random(1)
    texts = [made(choose, choose.choice([0, 3, 49, 50, 60, 700, 1500])) for _ in range(300)]
    texts[7] = "℃" * 40 + texts[7]
    texts[8] = "，。" * 40
    assert sketches(texts) == [sketches([text])[0] for text in texts]
    assert sketches([]) == []


def test_short_and_very_long_texts_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(2)
    text = made(choose, LEAST)
    assert sketches([text[:-1], text[:-1] + "。 ！\n\t\u200b", text]) == [b"", b"", sketches([text])[0]]
    assert len(sketches([text])[0]) == 8 * BANDS + SIZES[0]
    monkeypatch.setattr(sketch, "LONGEST", 100)
    assert sketches([made(choose, 101), text]) == [b"", sketches([text])[0]]


def test_only_letters_and_digits_in_one_form_count() -> None:
    plain = "患者体温38度5mg面积12m2第1项" + made(random.Random(3), 60)
    dressed = plain.replace("38", "３８").replace("mg", "㎎").replace("m2", "㎡").replace("第1", "第①")
    dressed = "，".join(dressed) + "……！\u3000\u200b"
    assert jaccard(plain, dressed) == 1
    assert sketches([plain]) == sketches([dressed])


def test_every_character_counts_as_nfkc_says() -> None:
    """All of Unicode, each between Hanzi: as if NFKC had been done to the text."""
    kinds = [chr(c) for c in range(0x30000) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) != "Cn"]
    wrong = []
    for c in random.Random(4).sample(kinds, 6000) + kinds[:0x500] + [chr(c) for c in range(0xFE00, 0x10000)]:
        if unicodedata.category(c)[0] == "M" or 0x1100 <= ord(c) < 0x1200 or ord(c) == 0xFF9E or ord(c) == 0xFF9F:
            continue  # joins the character before it: cleaning has composed those already
        form = "".join(f for f in unicodedata.normalize("NFKC", c) if unicodedata.category(f)[0] not in "PZC")
        letters, lengths = sketch._letters(["中" + c + "文", c])
        if "".join(map(chr, letters)) != "中" + form + "文" + form or list(lengths) != [2 + len(form), len(form)]:
            wrong.append(f"U+{ord(c):04X}")
    assert wrong == []


@pytest.mark.parametrize("length", [60, 150, 600, 950, 1030, 2000, 2100, 9000])
def test_the_estimate_is_near_the_jaccard_index(length: int) -> None:
    """Standard error about 0.01, and 0.02 where the 5-grams are sampled (over 1024 of them)."""
    choose, errors = random.Random(length), []
    for _ in range(40):
        text = made(choose, length)
        letters = list(text)
        for place in choose.sample(range(length), max(1, round(length * choose.choice([0.01, 0.02, 0.025, 0.04])))):
            letters[place] = choose.choice(HANZI)
        other = "".join(letters) + made(choose, choose.choice([0, length // 20]))
        one, two = sketches([text, other])
        errors.append(similarity(one[8 * BANDS :], two[8 * BANDS :]) - jaccard(text, other))
        assert similarity(two[8 * BANDS :], one[8 * BANDS :]) == similarity(one[8 * BANDS :], two[8 * BANDS :])
    assert np.sqrt(np.mean(np.square(errors))) < (0.014 if length <= MOST else 0.025)
    assert abs(np.mean(errors)) < 0.01


def test_bands_find_nearly_all_that_are_similar_and_few_others() -> None:
    """1 - (1 - J^5)^12: 99 % at 0.8, 3 % at 0.3."""
    choose = random.Random(5)
    similar, others, found, missed = 0, 0, 0, 0
    for _ in range(400):
        length = choose.choice([60, 120, 400, 1500])
        text = made(choose, length)
        for share in (0.02, 0.15):
            letters = list(text)
            for place in choose.sample(range(length), round(length * share)):
                letters[place] = choose.choice(HANZI)
            other = "".join(letters)
            index, shared = jaccard(text, other), shares_a_band(text, other)
            if index >= 0.8:
                similar, missed = similar + 1, missed + (not shared)
            if index < 0.4:
                others, found = others + 1, found + shared
    assert similar > 200
    assert others > 200
    assert missed / similar < 0.02
    assert found / others < 0.12


def test_unequal_texts_are_not_similar() -> None:
    choose = random.Random(6)
    a, b = made(choose, 300), made(choose, 300)
    assert similarity(signature(a), signature(b)) < 0.5
    assert similarity(signature(a), signature(a)) == 1
    assert similarity(signature(made(choose, 100)), signature(made(choose, 20_000))) == 0
    assert similarity(signature("哈" * 200), signature("哈" * 300)) == 1
    assert similarity(signature("哈" * 200), signature("呵" * 200)) == 0


def seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def test_a_long_text_needs_memory_and_time_in_proportion() -> None:
    choose = random.Random(7)
    long = made(choose, 1 << 20)
    tracemalloc.start()
    sketches([long] * 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150 * (1 << 20)
    assert seconds(lambda: sketches([long])) < 2


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=200) | st.text(st.characters(codec=None), min_size=45, max_size=80), max_size=8))
def test_any_text_has_a_sketch_or_none(texts: list[str]) -> None:
    """Also NUL bytes and lone surrogates."""
    found = sketches(texts)
    assert {len(each) for each in found} <= {0, 8 * BANDS + SIZES[0], 8 * BANDS + SIZES[1]}
    assert sketches(texts) == found
