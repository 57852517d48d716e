"""Model, optimizer and step as one thing that is loaded once, stepped, and read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from mindspore import Tensor

from mindstream_trainer import dropout
from mindstream_trainer.config import ModelConfig, TrainerConfig
from mindstream_trainer.model import MaskedLM
from mindstream_trainer.optimizer import AdamW
from mindstream_trainer.step import Result, TrainStep
from mindstream_trainer.weights import Arrays


def dropouts(trainer: TrainerConfig, model: ModelConfig) -> tuple[float, float]:
    """(hidden, attention) dropout of a run, as masks can express them."""
    own = trainer.dropout
    pair = (model.hidden_dropout_prob, model.attention_probs_dropout_prob) if own is None else (own, own)
    return dropout.quantised(pair[0]), dropout.quantised(pair[1])


class Net:
    """``weights`` has our names (see :mod:`mindstream_trainer.weights`); ``optimizer`` is what :meth:`arrays` gave, or
    None for a fresh start. Both go in before the first step, because a compiled graph would not see them later."""

    def __init__(
        self, trainer: TrainerConfig, config: ModelConfig, weights: Arrays, optimizer: Arrays | None = None
    ) -> None:
        self.config = config
        self.model = MaskedLM(config, *dropouts(trainer, config))
        parameters = list(self.model.trainable_params())
        self.optimizer = AdamW(parameters, trainer.betas, trainer.eps, trainer.weight_decay)
        for parameter in parameters:
            parameter.set_data(Tensor(weights[parameter.name]))
        if optimizer is not None:
            for parameter in (*self.optimizer.m, *self.optimizer.v):
                parameter.set_data(Tensor(optimizer[parameter.name]))
        self.step_once = TrainStep(self.model, self.optimizer, trainer.clip_norm)

    def step(self, batches: Iterable[Sequence[np.ndarray]], step: int, learning_rate: float) -> Result:
        """See :class:`TrainStep`."""
        return self.step_once(batches, step, learning_rate)

    def arrays(self) -> tuple[Arrays, Arrays]:
        """(weights under our names, optimizer state), fp32."""
        weights = {parameter.name: parameter.asnumpy() for parameter in self.optimizer.weights}
        return weights, {parameter.name: parameter.asnumpy() for parameter in (*self.optimizer.m, *self.optimizer.v)}
