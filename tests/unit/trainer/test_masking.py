from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mindstream_trainer.masking import Key, Masked, mask, places
from mindstream_trainer.vocabulary import Vocabulary

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]"]
CLS, SEP, MASK, UNKNOWN = 2, 3, 4, 1


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    path: Path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join([*SPECIAL, *(chr(0x4E00 + i) for i in range(194))]) + "\n", encoding="utf-8")
    return Vocabulary.read(path)


def row(tokens: int, seed: int = 0) -> np.ndarray:
    return np.array([CLS, *np.random.default_rng(seed).integers(6, 200, tokens), SEP])


def masked(
    vocabulary: Vocabulary, rows: list[np.ndarray], length: int = 32, seed: int = 1, epoch: int = 0, p: float = 0.15
) -> Masked:
    return mask(
        rows,
        [Key("s", i, epoch) for i in range(len(rows))],
        length=length,
        seed=seed,
        probability=p,
        vocabulary=vocabulary,
    )


def test_shapes_and_types(vocabulary: Vocabulary) -> None:
    got = masked(vocabulary, [row(10), row(30), row(1)])
    assert places(32, 0.15) == 5
    assert [(a.shape, a.dtype) for a in got] == [
        ((3, 32), np.int32), ((3, 32), np.int32), ((15,), np.int32), ((15,), np.int32), ((15,), np.float32),
    ]  # fmt: skip
    assert got.attention.sum(1).tolist() == [12, 32, 3]
    assert (got.input_ids[0, 12:] == 0).all()


@pytest.mark.parametrize(("tokens", "labels"), [(1, 1), (2, 1), (10, 2), (20, 3), (30, 4)])
def test_exactly_the_rounded_share_and_at_least_one(vocabulary: Vocabulary, tokens: int, labels: int) -> None:
    got = masked(vocabulary, [row(tokens)])
    assert got.weights.sum() == labels == max(1, round(0.15 * tokens))


def test_labels_are_what_stood_there_and_nothing_else_changed(vocabulary: Vocabulary) -> None:
    rows = [row(28, seed) for seed in range(50)]
    got = masked(vocabulary, rows)
    plain = np.zeros((50, 32), np.int32)
    for i, r in enumerate(rows):
        plain[i, : len(r)] = r
    real = got.weights == 1
    at = got.positions[real]
    assert len(set(at.tolist())) == len(at)
    assert (plain.reshape(-1)[at] == got.labels[real]).all()
    untouched = np.ones(50 * 32, bool)
    untouched[at] = False
    assert (plain.reshape(-1)[untouched] == got.input_ids.reshape(-1)[untouched]).all()


def test_special_unknown_and_padding_are_never_chosen(vocabulary: Vocabulary) -> None:
    rows = [np.array([CLS, 50, UNKNOWN, UNKNOWN, SEP, CLS, 51, SEP])] * 200
    got = masked(vocabulary, rows, length=16, p=0.9)
    real = got.weights == 1
    assert set((got.positions[real] % 16).tolist()) == {1, 6}


def test_a_row_without_candidates_has_no_weight(vocabulary: Vocabulary) -> None:
    got = masked(vocabulary, [np.array([CLS, UNKNOWN, SEP]), row(5)])
    assert got.weights.reshape(2, -1).sum(1).tolist() == [0, 1]


def test_eighty_ten_ten(vocabulary: Vocabulary) -> None:
    rows = [row(28, seed) for seed in range(4000)]
    got = masked(vocabulary, rows)
    real = got.weights == 1
    shown, label = got.input_ids.reshape(-1)[got.positions[real]], got.labels[real]
    replaced = shown[(shown != MASK) & (shown != label)]
    n = real.sum()
    assert (shown == MASK).sum() / n == pytest.approx(0.8, abs=0.012)
    assert len(replaced) / n == pytest.approx(0.1 * 193 / 194, abs=0.01)
    assert (shown == label).sum() / n == pytest.approx(0.1, abs=0.01)
    assert replaced.min() >= len(SPECIAL)  # never a special or an unused entry
    assert len(set(replaced.tolist())) > 150


def test_every_position_is_chosen_about_equally_often(vocabulary: Vocabulary) -> None:
    got = masked(vocabulary, [row(20)] * 8000, length=22)
    counts = np.bincount(got.positions[got.weights == 1] % 22, minlength=22)[1:21]
    assert counts.sum() == 8000 * 3
    assert np.abs(counts / counts.mean() - 1).max() < 0.12


def test_a_row_is_masked_alike_in_any_batch(vocabulary: Vocabulary) -> None:
    rows = [row(20, seed) for seed in range(8)]
    together = masked(vocabulary, rows)
    for i in (0, 3, 7):
        alone = mask([rows[i]], [Key("s", i, 0)], length=32, seed=1, probability=0.15, vocabulary=vocabulary)
        assert (alone.input_ids[0] == together.input_ids[i]).all()
        assert (alone.labels == together.labels.reshape(8, -1)[i]).all()


def test_the_key_is_seed_shard_row_and_epoch(vocabulary: Vocabulary) -> None:
    def positions(seed: int = 1, shard: str = "s", number: int = 0, epoch: int = 0) -> tuple:
        key = Key(shard, number, epoch)
        return tuple(mask([row(100)], [key], length=128, seed=seed, probability=0.15, vocabulary=vocabulary).positions)

    variants = [
        positions(),
        positions(seed=2),
        positions(shard="t"),
        positions(number=1),
        positions(epoch=1),
        positions(epoch=-1),
    ]
    assert positions() == variants[0]
    assert len(set(variants)) == len(variants)


def test_masks_are_frozen(vocabulary: Vocabulary) -> None:
    """A change of these numbers would break every run that resumes."""
    got = masked(vocabulary, [row(10), row(30)])
    assert got.positions.tolist() == [1, 9, 4, 6, 8, 33, 42, 57, 61, 48]
    assert got.input_ids.reshape(-1)[got.positions].tolist() == [4, 4, 58, 13, 9, 4, 163, 192, 4, 147]


def whole(vocabulary: Vocabulary, rows: list[np.ndarray], words: list[list[int]], **options: float) -> Masked:
    """``words`` are sizes; together they are a row's tokens between [CLS] and [SEP]."""
    marks = []
    for sizes in words:
        inner = np.concatenate([[False, *[True] * (size - 1)] for size in sizes])
        marks.append(np.array([False, *inner, False], bool))
    keys = [Key("s", i, 0) for i in range(len(rows))]
    length = int(options.pop("length", 32))
    return mask(
        rows, keys, length=length, seed=1, probability=options.get("p", 0.15), vocabulary=vocabulary, words=marks
    )


def test_k3_words_are_masked_whole(vocabulary: Vocabulary) -> None:
    """使用 语言 模型: one of them, as a whole."""
    got = whole(vocabulary, [row(6, n) for n in range(300)], [[2, 2, 2]] * 300)
    at = np.where(got.weights == 1, got.positions % 32, -1).reshape(300, -1)
    chosen = {tuple(p for p in of if p >= 0) for of in at.tolist()}
    assert chosen == {(1, 2), (3, 4), (5, 6)}


def test_a_word_is_never_split_and_the_number_stays_below_the_places(vocabulary: Vocabulary) -> None:
    random = np.random.default_rng(3)
    words = [random.integers(1, 6, random.integers(1, 6)).tolist() for _ in range(500)]
    for p in (0.05, 0.15, 0.5):
        got = whole(vocabulary, [row(sum(sizes), n) for n, sizes in enumerate(words)], words, p=p)
        most = places(32, p)
        at = got.positions.reshape(500, most) % 32
        real = got.weights.reshape(500, most) == 1
        for sizes, positions, used in zip(words, at, real, strict=True):
            hidden = set(positions[used].tolist())
            assert len(hidden) == used.sum()
            assert 1 <= len(hidden) <= most
            assert list(positions[used]) == sorted(hidden)
            first = 1
            wanted = max(1, round(p * sum(sizes)))
            for size in sizes:
                if size <= most:
                    assert len(hidden & set(range(first, first + size))) in (0, size)
                first += size
            assert len(hidden) <= max(wanted, max((size for size in sizes if size <= most), default=1))


def test_a_word_that_is_longer_than_all_places_is_taken_by_its_tokens(vocabulary: Vocabulary) -> None:
    got = whole(vocabulary, [row(14, n) for n in range(40)], [[14]] * 40, length=16)
    assert got.weights.reshape(40, -1).sum(1).tolist() == [2] * 40
    assert len(set((got.positions % 16).tolist())) > 8


def test_rows_without_marked_words_are_masked_in_number_as_by_tokens(vocabulary: Vocabulary) -> None:
    rows = [row(20, n) for n in range(2000)]
    got = whole(vocabulary, rows, [[1] * 20] * 2000)
    assert got.weights.reshape(2000, -1).sum(1).tolist() == [3] * 2000
    counts = np.bincount(got.positions[got.weights == 1] % 32, minlength=32)[1:21]
    assert np.abs(counts / counts.mean() - 1).max() < 0.25


def test_whole_words_know_unknown_and_special_tokens(vocabulary: Vocabulary) -> None:
    rows = [np.array([CLS, 50, UNKNOWN, 52, SEP, 60, 61, SEP])] * 100
    marks = [np.array([0, 0, 1, 1, 0, 0, 1, 0], bool)] * 100
    keys = [Key("s", i, 0) for i in range(100)]
    got = mask(rows, keys, length=32, seed=1, probability=0.3, vocabulary=vocabulary, words=marks)
    real = got.weights == 1
    assert set((got.positions[real] % 32).tolist()) == {1, 3, 5, 6}
    empty = mask(
        [np.array([CLS, UNKNOWN, SEP])],
        keys[:1],
        length=32,
        seed=1,
        probability=0.3,
        vocabulary=vocabulary,
        words=[marks[0][:3]],
    )
    assert empty.weights.sum() == 0


def test_masks_of_whole_words_are_frozen(vocabulary: Vocabulary) -> None:
    """A change of these numbers would break every run that resumes."""
    got = whole(vocabulary, [row(10), row(30)], [[2, 3, 1, 2, 2], [2] * 10 + [3, 3, 1, 1, 1, 1]])
    assert got.positions.tolist() == [1, 2, 0, 3, 4, 33, 34, 60, 61, 32]
    assert got.weights.tolist() == [1, 1, 0, 0, 0, 1, 1, 1, 1, 0]
    assert got.input_ids.reshape(-1)[got.positions].tolist() == [4, 4, 2, 105, 58, 4, 4, 4, 4, 2]
