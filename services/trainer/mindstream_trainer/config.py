"""The sections ``trainer`` and ``base`` of a run's file, and the architecture of a model as Hugging Face writes it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from mindstream_common.config import Section
from mindstream_common.errors import ConfigError
from msgspec import Meta, Struct

Positive = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0.0, lt=1.0)]
RunName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,47}\Z")]

TINIEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


class WindowConfig(Section, frozen=True, kw_only=True):
    """When the planner closes a window: this many train rows, or this many seconds after its first shard."""

    rows: Positive = 4096
    seconds: Annotated[float, Meta(gt=0)] = 10.0


class TrainerConfig(Section, frozen=True, kw_only=True):
    """Section ``trainer``. Steps, warm-up and checkpoints are counted in optimizer updates, batches in rows."""

    run: RunName = "default"
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 1
    steps: Positive | None = None  # None: until the data ends (constant schedule only)
    global_batch: Positive = 32
    micro_batch: Positive | None = None  # None: the whole global batch at once
    learning_rate: Annotated[float, Meta(gt=0, le=10)] = 1e-4
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: Annotated[int, Meta(ge=0)] | Share = 0  # 100 = updates; 0.05 = a share of steps
    weight_decay: Annotated[float, Meta(ge=0)] = 0.01
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Annotated[float, Meta(ge=1e-20, le=1)] = 1e-8  # below 1e-20 it is no help where squares vanish in fp32
    clip_norm: Annotated[float, Meta(gt=0, le=1e15)] = 1.0  # the square of a larger one is infinite in fp32
    dropout: Share | None = None  # None: what the model's configuration says
    mask_probability: Annotated[float, Meta(gt=0, lt=1)] = 0.15
    whole_word: bool = False  # needs shards of a tokenizer that marks words (tokenizer.whole_word)
    checkpoint_every: Positive = 100
    keep_checkpoints: Positive = 2
    log_every: Positive = 10
    window: WindowConfig = WindowConfig()
    repeat: bool = False  # when no new rows arrive, pass over the earlier ones again
    domains: tuple[str, ...] | None = None  # train on these only; None: on all
    max_restarts: Annotated[int, Meta(ge=0)] = 5
    stall_seconds: Annotated[float, Meta(ge=1)] = 600.0  # a rank that says nothing for so long is started again
    cache_bytes: Annotated[int, Meta(ge=0)] = 20_000_000_000  # shards that are kept here beyond what is needed

    def __post_init__(self) -> None:
        check_numbers(self, "trainer")
        check_numbers(self.window, "trainer.window")
        for beta in self.betas:
            if np.float32(beta) == 1.0:
                raise ConfigError(f"trainer.betas: {beta} is 1 in single precision. Use at most 0.9999999.")
        if self.learning_rate * self.weight_decay >= 1.0:
            raise ConfigError(
                f"trainer.learning_rate {self.learning_rate} times trainer.weight_decay {self.weight_decay} is 1 or more: "
                "each update would take all of a weight away. Lower one of them."
            )
        if self.micro_batch is not None and self.global_batch % self.micro_batch:
            raise ConfigError(
                f"micro_batch {self.micro_batch} does not divide global_batch {self.global_batch}: every micro-batch "
                f"must have the same number of rows. Choose a divisor of {self.global_batch}."
            )
        if self.steps is None and (self.schedule != "constant" or self.warmup_is_share):
            what = f"schedule {self.schedule!r}" if self.schedule != "constant" else f"warmup {self.warmup} (a share)"
            raise ConfigError(
                f"{what} needs to know where the run ends: set trainer.steps, or use schedule 'constant'."
            )
        if self.steps is not None and self.warmup_steps > self.steps:
            raise ConfigError(f"warmup of {self.warmup} updates is longer than the run: trainer.steps is {self.steps}.")

    @property
    def warmup_is_share(self) -> bool:
        return isinstance(self.warmup, float) and self.warmup > 0

    @property
    def warmup_steps(self) -> int:
        """Warm-up in updates."""
        return round(self.warmup * (self.steps or 0)) if self.warmup_is_share else int(self.warmup)


class ModelConfig(Struct, frozen=True, kw_only=True):
    """What of a Hugging Face ``config.json`` shapes the model; keys that do not are ignored, as Hugging Face does."""

    model_type: Literal["bert", "roberta", "xlm-roberta"] = "bert"
    vocab_size: Positive
    hidden_size: Positive = 768
    num_hidden_layers: Positive = 12
    num_attention_heads: Positive = 12
    intermediate_size: Positive = 3072
    max_position_embeddings: Positive = 512
    type_vocab_size: Positive = 2
    layer_norm_eps: Annotated[float, Meta(gt=0)] = 1e-12
    hidden_act: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"] = "gelu"
    hidden_dropout_prob: Share = 0.1
    attention_probs_dropout_prob: Share = 0.1
    pad_token_id: Annotated[int, Meta(ge=0)] = 0
    initializer_range: Annotated[float, Meta(gt=0)] = 0.02

    def __post_init__(self) -> None:
        check_numbers(self, "the model's configuration")
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is no multiple of num_attention_heads {self.num_attention_heads}."
            )
        if self.usable_positions < 1:
            raise ConfigError(
                f"max_position_embeddings {self.max_position_embeddings} leaves no position after pad_token_id {self.pad_token_id}."
            )

    @property
    def shifts_positions(self) -> bool:
        """RoBERTa's positions begin after the padding index."""
        return self.model_type != "bert"

    @property
    def usable_positions(self) -> int:
        """The longest row, in tokens: 512 of BERT's 512, and 512 of RoBERTa's 514."""
        return self.max_position_embeddings - (self.pad_token_id + 1 if self.shifts_positions else 0)

    def check_vocabulary(self, entries: int, where: str) -> None:
        """Raises ConfigError when the vocabulary has another number of entries than the model."""
        if entries != self.vocab_size:
            raise ConfigError(
                f"the model's vocab_size is {self.vocab_size}, but the vocabulary {where} has {entries} entries. "
                "Use the vocab.txt that belongs to the model."
            )

    def check_length(self, length: int) -> None:
        """Raises ConfigError when rows of ``length`` tokens do not fit the model's positions."""
        if length > self.usable_positions:
            raise ConfigError(
                f"rows of {length} tokens do not fit: this {self.model_type} model has max_position_embeddings "
                f"{self.max_position_embeddings}, of which {self.usable_positions} are usable. "
                f"Set tokenizer.max_length to {self.usable_positions} or less."
            )

    @classmethod
    def from_hf(cls, data: dict[str, Any], where: str = "the model's configuration") -> ModelConfig:
        """Read the fields of a Hugging Face ``config.json``.

        Raises:
            ConfigError: an architecture that is not BERT's or RoBERTa's, a missing or bad value, or a feature that
                would give other numbers (relative positions, a decoder, an untied head).
        """
        refused = {
            "position_embedding_type": ("absolute", None),
            "is_decoder": (False, None),
            "tie_word_embeddings": (True, None),
        }
        for key, good in refused.items():
            if data.get(key) not in good:
                raise ConfigError(f"{where}: {key} is {data[key]!r}; this trainer knows {good[0]!r} only.")
        if "model_type" not in data and any("Roberta" in name for name in data.get("architectures") or ()):
            data = {**data, "model_type": "roberta"}
        roberta = data.get("model_type", "bert") != "bert"
        defaults = (
            {"pad_token_id": 1, "layer_norm_eps": 1e-5, "max_position_embeddings": 514, "type_vocab_size": 1}
            if roberta
            else {}
        )
        known = {field.name for field in msgspec.structs.fields(cls)}
        try:
            return msgspec.convert({**defaults, **{key: value for key, value in data.items() if key in known}}, cls)
        except (msgspec.ValidationError, ConfigError) as error:
            raise ConfigError(f"{where}: {error}") from error

    def to_hf(self) -> dict[str, Any]:
        """A ``config.json`` that transformers reads."""
        name = {"bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM", "xlm-roberta": "XLMRobertaForMaskedLM"}
        return {
            "architectures": [name[self.model_type]],
            **msgspec.to_builtins(self),
            "position_embedding_type": "absolute",
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
        }


class BaseConfig(Section, frozen=True, kw_only=True):
    """Section ``base``: the model that training starts from. Paths are local files.

    ``config`` is a path of a ``config.json`` or its fields; None means the one beside ``weights``. Without ``weights``
    the model starts from random numbers (by the run's seed).
    """

    vocab: str
    config: str | dict[str, Any] | None = None
    weights: str | None = None

    def model(self, entries: int) -> ModelConfig:
        """The architecture. An inline ``config`` without ``vocab_size`` takes it from the vocabulary's ``entries``.

        Raises:
            ConfigError: the configuration cannot be read, is of another kind, or has another vocab_size.
        """
        source = self.config
        if source is None and self.weights is not None:
            source = str(Path(self.weights).parent / "config.json")
        if source is None:
            raise ConfigError(
                "section 'base' has neither config nor weights: give config a path of a config.json, or its fields."
            )
        if isinstance(source, dict):
            model = ModelConfig.from_hf({"vocab_size": entries, **source}, "base.config")
        else:
            model = ModelConfig.from_hf(read_json(source), source)
        model.check_vocabulary(entries, self.vocab)
        return model


def check_numbers(section: Struct, where: str) -> None:
    """Raises ConfigError for a number that single precision cannot hold: NaN, infinite there, or so small that it loses
    its digits or is 0."""
    for field in msgspec.structs.fields(section):
        value = getattr(section, field.name)
        for number in value if isinstance(value, tuple) else (value,):
            if not isinstance(number, float) or number == 0.0:
                continue
            if not (math.isfinite(number) and TINIEST <= abs(number) <= LARGEST):
                raise ConfigError(
                    f"{where}: {field.name} is {number}, and training knows numbers from {TINIEST:.1e} to {LARGEST:.1e} "
                    "(single precision)."
                )


def read_json(path: str) -> dict[str, Any]:
    """The mapping in a JSON file. Raises ConfigError when there is none."""
    try:
        data = msgspec.json.decode(Path(path).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds no mapping, but a {type(data).__name__}.")
    return data
