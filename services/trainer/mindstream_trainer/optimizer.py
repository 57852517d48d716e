"""AdamW (Loshchilov & Hutter 2019, algorithm 2), equal to torch's, on MindSpore's one kernel per parameter.

That kernel has no bias correction. It is folded into the scalars: with c1 = 1 - b1^t and c2 = sqrt(1 - b2^t),
lr * (m / c1) / (sqrt(v) / c2 + eps) = (lr * c2 / c1) * m / (sqrt(v) + eps * c2), and the decay is multiplied by c1 / c2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops


class Scalars(NamedTuple):
    """What changes from update to update; given to the compiled graph as inputs."""

    learning_rate: float
    eps: float
    decay: float

    def wrong(self) -> str:
        """What single precision cannot hold of them, in words; empty when all is well. ``eps`` keeps a division from
        being by 0, so it may not be 0 itself."""
        largest, tiniest = np.finfo(np.float32).max, np.finfo(np.float32).tiny
        return ", ".join(
            f"{name} {value}"
            for name, value in self._asdict().items()
            if not abs(value) <= largest or (name == "eps" and value < tiniest)
        )

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(Tensor(value, ms.float32) for value in self)


class AdamW(nn.Cell):
    """``m`` and ``v`` are parameters, fp32, named ``m.<weight>`` and ``v.<weight>``. Arrays of one dimension (biases,
    LayerNorm) do not decay."""

    def __init__(self, weights: list[Parameter], betas: tuple[float, float], eps: float, weight_decay: float) -> None:
        super().__init__()
        self.weights = ParameterTuple(weights)
        self.m = ParameterTuple([_zeros("m.", weight) for weight in weights])
        self.v = ParameterTuple([_zeros("v.", weight) for weight in weights])
        self.decays = [len(weight.shape) > 1 for weight in weights]
        self.betas, self.eps, self.weight_decay, self.count = betas, eps, weight_decay, len(weights)
        self.beta1, self.beta2 = Tensor(betas[0], ms.float32), Tensor(betas[1], ms.float32)
        self.none = Tensor(0.0, ms.float32)
        self.kernel = ops.AdamWeightDecay()

    def scalars(self, learning_rate: float, step: int) -> Scalars:
        """The inputs of update ``step`` (the first is 1), computed in double precision."""
        c1, c2 = 1.0 - self.betas[0] ** step, math.sqrt(1.0 - self.betas[1] ** step)
        return Scalars(learning_rate * c2 / c1, self.eps * c2, self.weight_decay * c1 / c2)

    def construct(self, gradients, factor, learning_rate, eps, decay):  # type: ignore[no-untyped-def]
        """Update every weight in place by its gradient times ``factor`` (clipping and division by tokens in one)."""
        for i in range(self.count):
            wd = decay if self.decays[i] else self.none
            self.kernel(
                self.weights[i],
                self.m[i],
                self.v[i],
                learning_rate,
                self.beta1,
                self.beta2,
                eps,
                wd,
                gradients[i] * factor,
            )
        return factor


def _zeros(prefix: str, like: Parameter) -> Parameter:
    return Parameter(Tensor(np.zeros(like.shape, np.float32)), name=prefix + like.name, requires_grad=False)
