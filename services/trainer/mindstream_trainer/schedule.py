"""The learning rate as a pure function of the update's number. No state, so a resumed run cannot differ."""

from __future__ import annotations

import math

from mindstream_trainer.config import TrainerConfig


def learning_rate(config: TrainerConfig, step: int) -> float:
    """The learning rate of update ``step`` (1 = the first one, which already moves the weights).

    Warm-up rises in equal parts to ``learning_rate`` at update ``warmup``; then it stays, or falls to 0 after the last
    update, linearly or as half a cosine (Loshchilov & Hutter 2017, eq. 5).
    """
    assert step >= 1, step
    peak, warmup = config.learning_rate, config.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    if config.schedule == "constant":
        return peak
    assert config.steps is not None
    done = min(1.0, (step - warmup - 1) / (config.steps - warmup))  # 0 at the first update after the warm-up
    if config.schedule == "linear":
        return peak * (1.0 - done)
    return peak * 0.5 * (1.0 + math.cos(math.pi * done))
