"""A BERT / RoBERTa masked language model as one small MindSpore cell, numerically equal to Hugging Face's.

Stock operators only. The hidden states stay two-dimensional, ``[batch * length, hidden]``. The head runs on the masked
positions alone (a fixed number per row), which halves memory and doubles the speed. Sums of losses come out, never
means: the division by the number of masked tokens happens once, over all micro-batches and ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindstream_trainer.config import ModelConfig

Keeps = Sequence[Tensor]  # dropout masks by site


def parameter(name: str, *shape: int) -> Parameter:
    """An fp32 parameter of zeros; :mod:`mindstream_trainer.weights` fills it before the first step."""
    return Parameter(Tensor(np.zeros(shape, np.float32)), name=name)


class Linear(nn.Cell):
    """``x @ weight.T + bias`` for x ``[n, inputs]``; the weight lies as torch keeps it, ``[outputs, inputs]``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = parameter("weight", outputs, inputs)
        self.bias = parameter("bias", outputs)

    def construct(self, x: Tensor) -> Tensor:
        return ops.dense(x, self.weight, self.bias)


class Normalise(nn.Cell):
    """Layer normalisation (Ba et al. 2016, eq. 4) with its gradient written out: the stock one is four times slower."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.normalise = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=epsilon)

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return self.normalise(x, weight, bias)

    def bprop(
        self, x: Tensor, weight: Tensor, bias: Tensor, out: tuple[Tensor, ...], dout: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        scale = ops.rsqrt(out[2] + self.epsilon)
        hat = (x - out[1]) * scale
        d = dout[0] * weight
        dx = (d - d.mean(axis=1, keep_dims=True) - hat * (d * hat).mean(axis=1, keep_dims=True)) * scale
        return dx, (dout[0] * hat).sum(axis=0), dout[0].sum(axis=0)


class LayerNorm(nn.Cell):
    """Layer normalisation over the last axis of x ``[n, size]``, in fp32 whatever comes in."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = parameter("weight", size)
        self.bias = parameter("bias", size)
        self.normalise = Normalise(epsilon)

    def construct(self, x: Tensor) -> Tensor:
        return self.normalise(x.astype(ms.float32), self.weight, self.bias)[0]


class GeluAndCdf(nn.Cell):
    """(x * Phi(x), Phi(x)), Phi being the normal distribution function. It is kept for the gradient, because erf is the
    slowest operator of the whole step. (tanh is three times as fast, but its CPU kernel is off by 1e-4.)"""

    def construct(self, x: Tensor) -> tuple[Tensor, ...]:
        cdf = 0.5 * ops.erf(x * 0.7071067811865476) + 0.5
        return x * cdf, cdf

    def bprop(self, x: Tensor, out: tuple[Tensor, ...], dout: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (dout[0] * (out[1] + x * (ops.exp(ops.square(x) * -0.5) * 0.3989422804014327)),)


class Gelu(nn.Cell):
    """x * Phi(x), exact and not the tanh variant (Hendrycks & Gimpel 2016, eq. 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.both = GeluAndCdf()

    def construct(self, x: Tensor) -> Tensor:
        return self.both(x)[0]


class Softmax(nn.Cell):
    """Softmax over the last axis, with its gradient written out: the stock one is slower."""

    def __init__(self) -> None:
        super().__init__()
        self.softmax = ops.Softmax(-1)

    def construct(self, x: Tensor) -> Tensor:
        return self.softmax(x)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
        d = dout * out
        return (d - out * d.sum(axis=-1, keepdims=True),)


class SumCrossEntropy(nn.Cell):
    """Sum over n of ``weights[n] * -log softmax(logits[n])[labels[n]]``, in fp32.

    Shapes: logits ``[n, vocabulary]``, labels int32 ``[n]``, weights float32 ``[n]`` (0 = no label here). The gradient
    is written out so that the softmax is computed once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.one_hot = ops.OneHot()
        self.on, self.off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)

    def construct(self, logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        shifted = logits - logits.max(axis=1, keepdims=True)
        total = ops.log(ops.exp(shifted).sum(axis=1))
        own = ops.gather_d(shifted, 1, labels.reshape(-1, 1)).reshape(-1)
        return ((total - own) * weights).sum()

    def bprop(self, logits: Tensor, labels: Tensor, weights: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
        hot = self.one_hot(labels, logits.shape[1], self.on, self.off)
        d = (ops.softmax(logits, -1) - hot) * (weights * dout).reshape(-1, 1)
        return d, ops.zeros_like(labels), ops.zeros_like(weights)


def activation(name: str) -> nn.Cell:
    """The cell of a Hugging Face ``hidden_act``."""
    if name == "gelu":
        return Gelu()
    return {"gelu_new": ops.GeLU(), "gelu_pytorch_tanh": ops.GeLU(), "relu": ops.ReLU()}[name]


class Dropout(nn.Cell):
    """Dropout by a mask that is given (uint8, 1 = keep; see :mod:`mindstream_trainer.dropout`)."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.scale = 1.0 / (1.0 - probability)

    def construct(self, x: Tensor, keep: Tensor) -> Tensor:
        return x * (keep.astype(ms.float32).reshape(x.shape) * self.scale)


class Layer(nn.Cell):
    """One post-norm transformer layer. x: ``[batch * length, hidden]``, bias: ``[batch, 1, 1, length]``."""

    def __init__(self, config: ModelConfig, hidden_dropout: float, attention_dropout: float) -> None:
        super().__init__()
        size, self.heads = config.hidden_size, config.num_attention_heads
        self.width = size // self.heads
        self.scale = 1.0 / math.sqrt(self.width)
        self.hidden_dropout, self.attention_dropout = hidden_dropout, attention_dropout
        self.qkv = Linear(size, 3 * size)
        self.out = Linear(size, size)
        self.norm = LayerNorm(size, config.layer_norm_eps)
        self.up = Linear(size, config.intermediate_size)
        self.down = Linear(config.intermediate_size, size)
        self.final_norm = LayerNorm(size, config.layer_norm_eps)
        self.activation = activation(config.hidden_act)
        self.drop_hidden, self.drop_attention = Dropout(hidden_dropout), Dropout(attention_dropout)
        self.scores, self.mix = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()
        self.softmax, self.split = Softmax(), ops.Split(1, 3)

    def by_head(self, x: Tensor, batch: int) -> Tensor:
        """[batch * length, hidden] to [batch, heads, length, width]."""
        return x.reshape(batch, -1, self.heads, self.width).transpose(0, 2, 1, 3)

    def attend(self, x: Tensor, bias: Tensor, keeps: Keeps) -> Tensor:
        batch = bias.shape[0]
        query, key, value = self.split(self.qkv(x))
        query, key, value = self.by_head(query, batch), self.by_head(key, batch), self.by_head(value, batch)
        weights = self.softmax((self.scores(query, key) * self.scale + bias).astype(ms.float32))
        if self.attention_dropout > 0:
            weights = self.drop_attention(weights, keeps[0])
        return self.mix(weights, value).transpose(0, 2, 1, 3).reshape(x.shape)

    def construct(self, x: Tensor, bias: Tensor, keeps: Keeps) -> Tensor:
        y = self.out(self.attend(x, bias, keeps))
        if self.hidden_dropout > 0:
            y = self.drop_hidden(y, keeps[1])
        x = self.norm(x + y)
        y = self.down(self.activation(self.up(x)))
        if self.hidden_dropout > 0:
            y = self.drop_hidden(y, keeps[2])
        return self.final_norm(x + y)


class MaskedLM(nn.Cell):
    """The whole model. ``dropout`` and ``attention_dropout`` are probabilities; 0 takes the masks away altogether."""

    def __init__(self, config: ModelConfig, dropout: float = 0.0, attention_dropout: float = 0.0) -> None:
        super().__init__()
        size = config.hidden_size
        self.pad, self.shifted = config.pad_token_id, config.shifts_positions
        self.count, self.dropout, self.attention_dropout = config.num_hidden_layers, dropout, attention_dropout
        self.word = parameter("word", config.vocab_size, size)
        self.position = parameter("position", config.max_position_embeddings, size)
        self.type = parameter("type", config.type_vocab_size, size)
        self.norm = LayerNorm(size, config.layer_norm_eps)
        self.drop = Dropout(dropout)
        self.layers = nn.CellList([Layer(config, dropout, attention_dropout) for _ in range(self.count)])
        self.transform = Linear(size, size)
        self.transform_activation = activation(config.hidden_act)
        self.transform_norm = LayerNorm(size, config.layer_norm_eps)
        self.decoder_bias = parameter("decoder_bias", config.vocab_size)
        self.gather = ops.Gather()
        self.cross_entropy = SumCrossEntropy()

    def positions(self, ids: Tensor) -> Tensor:
        """[batch, length] for the shifted kind (RoBERTa counts from pad + 1 and leaves padding at pad), else [length]."""
        if self.shifted:
            real = (ids != self.pad).astype(ms.float32)
            return (ops.cumsum(real, 1) * real).astype(ms.int32) + self.pad
        return ops.arange(ids.shape[1])

    def encode(self, ids: Tensor, attention: Tensor, keeps: Keeps) -> Tensor:
        """Hidden states [batch * length, hidden] of ids and attention, both int32 [batch, length]."""
        batch, length = ids.shape
        x = self.gather(self.word, ids, 0) + (self.gather(self.position, self.positions(ids), 0) + self.type[0])
        x = self.norm(x.reshape(batch * length, -1))
        if self.dropout > 0:
            x = self.drop(x, keeps[0])
        bias = ((1.0 - attention.astype(ms.float32)) * -10000.0).reshape(batch, 1, 1, length)
        for i in range(self.count):
            x = self.layers[i](x, bias, keeps[3 * i + 1 : 3 * i + 4])
        return x

    def head(self, x: Tensor) -> Tensor:
        """Logits [n, vocabulary] of hidden states [n, hidden]; the decoder is the word embedding."""
        x = self.transform_norm(self.transform_activation(self.transform(x)))
        return ops.dense(x, self.word, self.decoder_bias)

    def construct(self, ids: Tensor, attention: Tensor) -> Tensor:
        """Logits [batch * length, vocabulary], without dropout."""
        return self.head(self.encode(ids, attention, ()))

    def masked(self, ids: Tensor, attention: Tensor, positions: Tensor, keeps: Keeps) -> Tensor:
        """fp32 logits [n, vocabulary] at ``positions``, int32 [n], flat into batch * length."""
        return self.head(self.gather(self.encode(ids, attention, keeps), positions, 0)).astype(ms.float32)

    def loss(
        self, ids: Tensor, attention: Tensor, positions: Tensor, labels: Tensor, weights: Tensor, *keeps: Tensor
    ) -> Tensor:
        """The SUM of the masked tokens' cross-entropy (a scalar). ``keeps``: see :func:`mindstream_trainer.dropout.masks`;
        a site without dropout is not read."""
        return self.cross_entropy(self.masked(ids, attention, positions, keeps), labels, weights)
