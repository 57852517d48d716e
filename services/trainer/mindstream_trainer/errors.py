"""What only a trainer raises."""

from __future__ import annotations

from mindstream_common.errors import MindStreamError


class NonFinite(MindStreamError):
    """The loss or the gradient's norm of an update is NaN or infinite. No weight has changed."""

    def __init__(self, loss: float, norm: float) -> None:
        super().__init__(f"the loss is {loss} and the gradient's norm is {norm}")
        self.loss, self.norm = loss, norm
