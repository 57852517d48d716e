from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from mindstream_common.config import section
from mindstream_common.errors import ConfigError
from mindstream_trainer.config import BaseConfig, ModelConfig, TrainerConfig

BERT = {
    "model_type": "bert",
    "vocab_size": 21128,
    "max_position_embeddings": 512,
    "architectures": ["BertForMaskedLM"],
    "pooler_type": "first_token_transform",
}
BAD = (1e39, math.inf, math.nan, 1e-60, -1.0)  # as single precision sees them: infinite, no number, 0
ROBERTA = {
    "model_type": "roberta",
    "vocab_size": 21128,
    "max_position_embeddings": 514,
    "pad_token_id": 1,
    "type_vocab_size": 1,
}


def test_micro_batch_must_divide_the_global_batch() -> None:
    with pytest.raises(ConfigError, match="micro_batch 5 does not divide global_batch 32"):
        section({"trainer": {"micro_batch": 5}}, "trainer", TrainerConfig)


def test_a_misspelt_key_names_the_near_miss() -> None:
    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        section({"trainer": {"learning_rat": 1e-4}}, "trainer", TrainerConfig)


@pytest.mark.parametrize(
    "change",
    [
        *({name: value} for name in ("learning_rate", "eps", "weight_decay", "clip_norm") for value in BAD),
        *({name: math.nan} for name in ("dropout", "mask_probability", "warmup", "stall_seconds")),
        {"betas": (math.nan, 0.9)},
        {"betas": (0.9, 1 - 1e-9)},
        {"learning_rate": 1e30},
        {"learning_rate": 1.0, "weight_decay": 1.0},
        {"window": {"seconds": math.inf}},
        {"window": {"seconds": math.nan}},
    ],
)
def test_numbers_that_single_precision_cannot_train_with_are_refused(change: dict[str, object]) -> None:
    (name,) = list(change)[-1:]
    with pytest.raises(ConfigError, match=name):
        section({"trainer": change}, "trainer", TrainerConfig)


def test_usual_numbers_are_taken() -> None:
    for change in (
        {"weight_decay": 0.0},
        {"betas": (0.0, 0.0)},
        {"eps": 1e-12},
        {"betas": (0.9, 0.9999)},
        {"dropout": 0.0},
    ):
        section({"trainer": change}, "trainer", TrainerConfig)


@pytest.mark.parametrize("name", ["layer_norm_eps", "initializer_range"])
@pytest.mark.parametrize("value", [math.inf, math.nan, 1e-60])
def test_a_model_s_numbers_too(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        ModelConfig.from_hf({**BERT, name: value})


def test_warmup_as_steps_and_as_a_share() -> None:
    assert TrainerConfig(warmup=7, steps=100).warmup_steps == 7
    assert section({"trainer": {"warmup": 0.06, "steps": 100}}, "trainer", TrainerConfig).warmup_steps == 6
    assert section({"trainer": {"warmup": 0.0}}, "trainer", TrainerConfig).warmup_steps == 0


def test_rows_of_600_in_512_positions_are_refused_with_the_three_numbers() -> None:
    with pytest.raises(ConfigError, match=r"600 tokens .* max_position_embeddings 512, of which 512 are usable"):
        ModelConfig.from_hf(BERT).check_length(600)


def test_roberta_514_means_512() -> None:
    model = ModelConfig.from_hf(ROBERTA)
    model.check_length(512)
    with pytest.raises(ConfigError, match=r"513 tokens .* 514, of which 512 are usable"):
        model.check_length(513)


def test_a_vocabulary_of_another_size_is_refused_with_both() -> None:
    with pytest.raises(ConfigError, match=r"vocab_size is 21128, but the vocabulary v\.txt has 21127 entries"):
        ModelConfig.from_hf(BERT).check_vocabulary(21127, "v.txt")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"hidden_act": "swish"}, "swish"),
        ({"num_attention_heads": 7}, "768 is no multiple of num_attention_heads 7"),
    ],
)
def test_what_would_give_other_numbers_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ModelConfig.from_hf({**BERT, **change})


def test_roberta_defaults_are_roberta_s() -> None:
    model = ModelConfig.from_hf({"model_type": "roberta", "vocab_size": 100})
    assert (model.layer_norm_eps, model.pad_token_id, model.type_vocab_size) == (1e-5, 1, 1)


def test_to_hf_and_back() -> None:
    for data in (BERT, ROBERTA):
        model = ModelConfig.from_hf(data)
        assert ModelConfig.from_hf(json.loads(json.dumps(model.to_hf()))) == model


def test_base_inline_takes_the_vocabulary_s_size() -> None:
    base = section(
        {"base": {"vocab": "v.txt", "config": {"hidden_size": 24, "num_attention_heads": 2}}}, "base", BaseConfig
    )
    assert base.model(300).vocab_size == 300


def test_base_takes_the_config_beside_its_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    base = BaseConfig(vocab="v.txt", weights=str(tmp_path / "model.safetensors"))
    assert base.model(21128).max_position_embeddings == 512
    with pytest.raises(ConfigError, match="21128"):
        base.model(100)


def test_base_without_anything_says_what_to_give() -> None:
    with pytest.raises(ConfigError, match="neither config nor weights"):
        BaseConfig(vocab="v.txt").model(10)


def test_planning_modules_do_not_import_mindspore() -> None:
    code = "import sys, mindstream_trainer.config, mindstream_trainer.plan, mindstream_trainer.masking, mindstream_trainer.schedule, mindstream_trainer.rundir, mindstream_trainer.checkpoint, mindstream_trainer.report; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
