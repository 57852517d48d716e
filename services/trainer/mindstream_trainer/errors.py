"""What only a trainer raises."""

from __future__ import annotations

from mindstream_common.errors import MindStreamError


class NonFinite(MindStreamError):
    """The loss or the gradient's norm of an update is NaN or infinite, or what the update is made with: no weight has
    changed. Or, with ``spoilt``, the weights after it are: they must not be stored."""

    def __init__(self, loss: float, norm: float, *, scalars: str = "", spoilt: bool = False) -> None:
        said = f"the loss is {loss} and the gradient's norm is {norm}"
        if scalars:
            said += f", and AdamW cannot work with {scalars}"
        if spoilt:
            said += ", and the weights after the update are not finite or larger than any that can be trained"
        super().__init__(said)
        self.loss, self.norm, self.spoilt = loss, norm, spoilt
