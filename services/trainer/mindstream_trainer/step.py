"""One optimizer update: sum the gradients of the micro-batches, check, clip, update.

Losses and gradients are sums over masked tokens; they are divided once, by the number of masked tokens of the whole
global batch, so unequal counts in micro-batches or ranks cannot skew the result. A number that is not finite raises
before a weight has changed; after the update the weights themselves are looked at, so that none is ever stored unseen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, ops

from mindstream_trainer.errors import NonFinite
from mindstream_trainer.model import MaskedLM
from mindstream_trainer.optimizer import AdamW


class Result(NamedTuple):
    """Mean loss over the masked tokens of the global batch, norm of its gradient before clipping, number of them."""

    loss: float
    norm: float
    masked: int


class TrainStep:
    """The update, compiled once per row length. Weights must be loaded before the first call: a compiled graph does not
    see ``set_data``."""

    def __init__(self, model: MaskedLM, optimizer: AdamW, clip_norm: float) -> None:
        self.optimizer, self.clip_norm = optimizer, clip_norm
        weights = optimizer.weights
        self.sums = sums = ParameterTuple(
            [
                Parameter(Tensor(np.zeros(w.shape, np.float32)), name="sum." + w.name, requires_grad=False)
                for w in weights
            ]
        )
        count, l2 = len(weights), ops.L2Loss()
        loss_and_gradients = ms.value_and_grad(model.loss, None, weights)

        def accumulate(*batch):  # type: ignore[no-untyped-def]
            loss, gradients = loss_and_gradients(*batch)
            for i in range(count):
                ops.assign_add(sums[i], gradients[i])
            return loss

        def norm(arrays):  # type: ignore[no-untyped-def]
            squares = l2(arrays[0])
            for i in range(1, count):
                squares = squares + l2(arrays[i])
            return ops.sqrt(2.0 * squares)

        def measure():  # type: ignore[no-untyped-def]
            return norm(sums)  # type: ignore[no-untyped-call]

        def weigh():  # type: ignore[no-untyped-def]
            return norm(weights)  # type: ignore[no-untyped-call]

        def update(factor, learning_rate, eps, decay):  # type: ignore[no-untyped-def]
            optimizer(sums, factor, learning_rate, eps, decay)
            for i in range(count):
                ops.assign(sums[i], ops.zeros_like(sums[i]))
            return factor

        self._accumulate = ms.jit(accumulate, jit_level="O0")
        self._measure = ms.jit(measure, jit_level="O0")
        self._update = ms.jit(update, jit_level="O0")
        self._weigh = ms.jit(weigh, jit_level="O0")

    def __call__(self, batches: Iterable[Sequence[np.ndarray]], step: int, learning_rate: float) -> Result:
        """Do update ``step`` (1, 2, ...) on the inputs of :meth:`MaskedLM.loss`, one sequence per micro-batch.

        Raises:
            NonFinite: before any weight has changed; or after it, with ``spoilt``.
        """
        loss, masked = 0.0, 0
        for batch in batches:
            loss += float(self._accumulate(*(Tensor(array) for array in batch)).asnumpy())
            masked += int(np.count_nonzero(batch[4]))
        total = max(masked, 1)  # a batch without any label changes nothing through its gradient, and never is 0 / 0
        # Several ranks: loss, masked and the sums of gradients are added up over the ranks here, before the check.
        loss, norm = loss / total, float(self._measure().asnumpy()) / total
        scalars = self.optimizer.scalars(learning_rate, step)
        if not (math.isfinite(loss) and math.isfinite(norm)) or scalars.wrong():
            raise NonFinite(loss, norm, scalars=scalars.wrong())
        factor = min(1.0, self.clip_norm / (norm + 1e-6)) / total  # as torch.nn.utils.clip_grad_norm_
        self._update(Tensor(factor, ms.float32), *scalars.tensors()).asnumpy()
        if not math.isfinite(float(self._weigh().asnumpy())):
            raise NonFinite(loss, norm, spoilt=True)
        return Result(loss, norm, masked)
