from __future__ import annotations

import math

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore


def test_gelu_is_the_exact_one_everywhere() -> None:
    from mindspore import Tensor
    from mindstream_trainer.model import GeluAndCdf

    x = np.concatenate([np.linspace(-12, 12, 200_001), [0.0, -0.0, 1e4, -1e4, 1e20, -1e20, 1e-30]]).astype(np.float32)
    value, cdf = (out.asnumpy() for out in GeluAndCdf()(Tensor(x)))
    exact = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x.astype(np.float64)])
    assert np.abs(cdf - exact).max() < 2e-7
    assert np.isfinite(value).all()
    assert value[-4] == pytest.approx(-0.0, abs=1e-3)
    assert value[-3] == pytest.approx(1e20)


def test_gelu_does_not_hide_a_nan() -> None:
    from mindspore import Tensor
    from mindstream_trainer.model import Gelu

    assert np.isnan(Gelu()(Tensor(np.array([np.nan], np.float32))).asnumpy()).all()


def numeric(function, x: np.ndarray, h: float = 1e-2) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Central differences of sum(function(x) * c) for a fixed c."""
    grad = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        grad[i] = (function(up) - function(down)) / (2 * h)
    return grad


@pytest.mark.parametrize("name", ["Gelu", "Softmax", "LayerNorm"])
def test_written_out_gradients(name: str) -> None:
    import mindspore as ms
    from mindspore import Tensor
    from mindstream_trainer import model

    cell = model.LayerNorm(5, 1e-5) if name == "LayerNorm" else getattr(model, name)()
    generator = np.random.default_rng(0)
    for parameter in cell.trainable_params():
        parameter.set_data(Tensor(generator.standard_normal(parameter.shape).astype(np.float32)))
    c = generator.standard_normal((3, 5)).astype(np.float32)
    x = generator.standard_normal((3, 5)).astype(np.float32)

    def value(array: np.ndarray) -> float:
        return float((cell(Tensor(array)).asnumpy().astype(np.float64) * c).sum())

    def loss(tensor):  # type: ignore[no-untyped-def]
        return (cell(tensor) * Tensor(c)).sum()

    assert ms.grad(loss)(Tensor(x)).asnumpy() == pytest.approx(numeric(value, x), abs=3e-3)


def test_cross_entropy_is_a_weighted_sum_and_so_is_its_gradient() -> None:
    import mindspore as ms
    from mindspore import Tensor
    from mindstream_trainer.model import SumCrossEntropy

    generator = np.random.default_rng(0)
    logits = (generator.standard_normal((4, 9)) * 30).astype(np.float32)
    labels, weights = np.array([1, 8, 0, 3], np.int32), np.array([1, 0, 1, 1], np.float32)
    exact = logits.astype(np.float64) - logits.max(1, keepdims=True)
    logp = exact - np.log(np.exp(exact).sum(1, keepdims=True))
    cell = SumCrossEntropy()
    assert float(cell(Tensor(logits), Tensor(labels), Tensor(weights)).asnumpy()) == pytest.approx(
        -(logp[range(4), labels] * weights).sum(), rel=1e-6
    )
    gradient = ms.grad(lambda x: cell(x, Tensor(labels), Tensor(weights)))(Tensor(logits)).asnumpy()
    assert gradient == pytest.approx((np.exp(logp) - np.eye(9)[labels]) * weights[:, None], abs=1e-6)
