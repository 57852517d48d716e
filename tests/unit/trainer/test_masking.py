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
