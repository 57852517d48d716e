from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore


def adamw(
    weight: np.ndarray, m: np.ndarray, v: np.ndarray, g: np.ndarray, rate: float, step: int, decay: float
) -> None:
    """Loshchilov & Hutter 2019, algorithm 2, in float64, in place."""
    b1, b2, eps = 0.9, 0.98, 1e-6
    m += (1 - b1) * (g - m)
    v += (1 - b2) * (g * g - v)
    weight -= rate * decay * weight + rate * (m / (1 - b1**step)) / (np.sqrt(v / (1 - b2**step)) + eps)


def test_fifty_updates_equal_the_formula() -> None:
    from mindspore import Parameter, Tensor
    from mindstream_trainer.optimizer import AdamW

    generator = np.random.default_rng(0)
    start = {"matrix": generator.standard_normal((5, 7)), "vector": generator.standard_normal(6)}
    parameters = [Parameter(Tensor(a.astype(np.float32)), name=name) for name, a in start.items()]
    optimizer = AdamW(parameters, (0.9, 0.98), 1e-6, 0.1)
    state = {name: (a.copy(), np.zeros_like(a), np.zeros_like(a)) for name, a in start.items()}
    for step in range(1, 51):
        rate, factor = 1e-2 * step / 50, 0.25
        gradients = {
            name: (generator.standard_normal(a.shape) * 10 ** generator.uniform(-5, 1)).astype(np.float32)
            for name, a in start.items()
        }
        for name, g in gradients.items():
            adamw(*state[name], g.astype(np.float64) * factor, rate, step, 0.1 if name == "matrix" else 0.0)
        scalars = optimizer.scalars(rate, step).tensors()
        optimizer(tuple(Tensor(g) for g in gradients.values()), Tensor(factor), *scalars)
        for parameter in parameters:
            assert np.abs(parameter.asnumpy() - state[parameter.name][0]).max() < 1e-5, (step, parameter.name)


def test_the_first_update_moves_by_the_learning_rate() -> None:
    """MindSpore's own AdamWeightDecay moves 3.16 times as far (no bias correction)."""
    from mindspore import Parameter, Tensor
    from mindstream_trainer.optimizer import AdamW

    weight = Parameter(Tensor(np.zeros(3, np.float32)), name="w")
    optimizer = AdamW([weight], (0.9, 0.999), 1e-8, 0.0)
    optimizer((Tensor(np.array([5.0, -0.1, 1.0], np.float32)),), Tensor(1.0), *optimizer.scalars(0.01, 1).tensors())
    assert weight.asnumpy() == pytest.approx([-0.01, 0.01, -0.01], rel=1e-4)
