"""The update itself: whatever way a global batch is cut, the numbers are the same; a bad number changes nothing."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import trainer_support as support
from mindstream_trainer import dropout, weights
from mindstream_trainer.config import TrainerConfig
from mindstream_trainer.errors import NonFinite

pytestmark = pytest.mark.mindspore
ROWS, LENGTH, PLACES = 8, 12, 2


def batch(first: int, rows: int, step: int, rate: float, bad: bool = False) -> list[np.ndarray]:
    """Rows ``first`` to ``first + rows`` of the global batch of ``step``; rows have 0, 1 or 2 labels."""
    generator = np.random.default_rng(step)
    ids = generator.integers(5, support.SIZE, (ROWS, LENGTH)).astype(np.int32)
    attention = (np.arange(LENGTH)[None] < generator.integers(4, LENGTH + 1, (ROWS, 1))).astype(np.int32)
    labels = generator.integers(5, support.SIZE, (ROWS, PLACES)).astype(np.int32)
    weight = (np.arange(PLACES)[None] < (np.arange(ROWS) % 3)[:, None]).astype(np.float32)
    places = generator.integers(0, 4, (ROWS, PLACES))
    cut = slice(first, first + rows)
    flat = (places[cut] + np.arange(rows)[:, None] * LENGTH).astype(np.int32)
    kept = dropout.masks(support.TINY, rate, rate, seed=1, step=step, first=first, rows=rows, length=LENGTH)
    if bad:
        weight = weight * np.float32(np.nan)
    return [ids[cut], attention[cut], flat.reshape(-1), labels[cut].reshape(-1), weight[cut].reshape(-1), *kept]


@functools.cache
def trained(micro: int, rate: float, steps: int = 3) -> tuple[list[Any], weights.Arrays]:
    from mindstream_trainer.net import Net

    net = Net(TrainerConfig(dropout=rate), support.TINY, weights.initial(support.TINY, 1))
    results = [
        net.step([batch(first, micro, step, rate) for first in range(0, ROWS, micro)], step, 1e-4)
        for step in range(1, steps + 1)
    ]
    return results, {name: array.copy() for name, array in net.arrays()[0].items()}


@pytest.mark.parametrize(("rate", "micros"), [(0.0, (4,)), (0.25, (1, 2, 4))])
def test_micro_batches_of_any_size_give_the_same(rate: float, micros: tuple[int, ...]) -> None:
    """Also with unequal numbers of masked tokens per micro-batch, which a mean of means would get wrong."""
    whole, after = trained(ROWS, rate)
    assert whole[0].masked == 7
    for micro in micros:
        parts, weights_after = trained(micro, rate)
        for a, b in zip(whole, parts, strict=True):
            assert b == pytest.approx(a, rel=1e-5)
        assert max(np.abs(weights_after[name] - after[name]).max() for name in after) < 1e-5


def test_dropout_is_in_the_numbers() -> None:
    assert abs(trained(ROWS, 0.25)[0][0].loss - trained(ROWS, 0.0)[0][0].loss) > 1e-4


def test_the_first_loss_of_a_random_model_is_near_the_logarithm_of_the_vocabulary() -> None:
    assert trained(ROWS, 0.0)[0][0].loss == pytest.approx(np.log(support.SIZE), abs=0.2)


def test_clipping_is_torch_s_and_the_norm_is_that_before_it() -> None:
    """With a tiny clip the update is the same as with the gradient scaled by hand: Adam's first step hides scale, so
    the second moments are compared."""
    from mindstream_trainer.net import Net

    start = weights.initial(support.TINY, 1)
    squares, norms = [], []
    for clip in (1e9, 0.01):
        net = Net(TrainerConfig(dropout=0.0, clip_norm=clip), support.TINY, start)
        norms.append(net.step([batch(0, ROWS, 1, 0.0)], 1, 1e-3).norm)
        squares.append(sum(float(a.sum()) for name, a in net.arrays()[1].items() if name.startswith("v.")) / 0.001)
    assert norms[0] == norms[1]
    assert squares[0] == pytest.approx(norms[0] ** 2, rel=1e-3)
    assert squares[1] == pytest.approx(0.01**2, rel=1e-2)


def test_a_bad_number_changes_nothing() -> None:
    from mindstream_trainer.net import Net

    net = Net(TrainerConfig(dropout=0.0), support.TINY, weights.initial(support.TINY, 1))
    net.step([batch(0, ROWS, 1, 0.0)], 1, 1e-3)
    before = [{name: array.copy() for name, array in part.items()} for part in net.arrays()]
    with pytest.raises(NonFinite, match="the loss is nan and the gradient's norm is nan"):
        net.step([batch(0, 4, 2, 0.0), batch(4, 4, 2, 0.0, bad=True)], 2, 1e-3)
    for part, old in zip(net.arrays(), before, strict=True):
        assert all((part[name] == old[name]).all() for name in old)


@pytest.mark.parametrize(
    ("setting", "rate", "said"),
    [({}, 1e40, "learning_rate"), ({}, float("nan"), "learning_rate"), ({"eps": 1e-60}, 1e-3, "eps 3")],
)
def test_what_adamw_cannot_work_with_changes_nothing(setting: dict[str, float], rate: float, said: str) -> None:
    """The configuration refuses such numbers; the update does not rely on it."""
    from mindstream_trainer.net import Net

    net = Net(TrainerConfig(dropout=0.0), support.TINY, weights.initial(support.TINY, 1))
    for name, value in setting.items():
        setattr(net.optimizer, name, value)
    before = {name: array.copy() for name, array in net.arrays()[0].items()}
    with pytest.raises(NonFinite, match=said) as caught:
        net.step([batch(0, ROWS, 1, 0.0)], 1, rate)
    assert not caught.value.spoilt
    assert all((array == before[name]).all() for name, array in net.arrays()[0].items())


@pytest.mark.parametrize("rate", [1e30, 1e38])
def test_weights_that_an_update_spoilt_are_seen(rate: float) -> None:
    from mindstream_trainer.net import Net

    net = Net(TrainerConfig(dropout=0.0), support.TINY, weights.initial(support.TINY, 1))
    net.step([batch(0, ROWS, 1, 0.0)], 1, 1e-3)
    with pytest.raises(NonFinite, match="the weights after the update are not finite") as caught:
        net.step([batch(0, ROWS, 2, 0.0)], 2, rate)
    assert caught.value.spoilt


def test_a_batch_without_any_label_is_not_zero_by_zero() -> None:
    from mindstream_trainer.net import Net

    net = Net(TrainerConfig(dropout=0.0), support.TINY, weights.initial(support.TINY, 1))
    empty = batch(0, ROWS, 1, 0.0)
    empty[4] = np.zeros_like(empty[4])
    assert net.step([empty], 1, 1e-3) == (0.0, 0.0, 0)
    assert all(np.isfinite(array).all() for array in net.arrays()[0].values())


def test_softmax_and_loss_stay_finite_with_huge_hidden_states() -> None:
    from mindstream_trainer.net import Net

    start = weights.initial(support.TINY, 1)
    start["layers.0.qkv.weight"] *= 1000.0
    start["word"] *= 1000.0
    result = Net(TrainerConfig(dropout=0.0), support.TINY, start).step([batch(0, ROWS, 1, 0.0)], 1, 1e-3)
    assert np.isfinite(result.loss)
