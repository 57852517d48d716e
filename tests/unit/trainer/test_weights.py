from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from mindstream_common.errors import InputError
from mindstream_trainer import weights
from mindstream_trainer.config import ModelConfig

BERT = ModelConfig(
    vocab_size=40,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=12,
)
ROBERTA = ModelConfig(
    model_type="roberta", vocab_size=40, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=14, type_vocab_size=1, pad_token_id=1,
)  # fmt: skip


def hf(config: ModelConfig = BERT) -> dict[str, np.ndarray]:
    """A Hugging Face state dict with different numbers everywhere."""
    generator = np.random.default_rng(0)
    ours = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in weights.shapes(config).items()}
    return weights.to_hf(ours, config)


def read(source: dict[str, np.ndarray], config: ModelConfig = BERT) -> tuple[weights.Arrays, list[str]]:
    return weights.from_hf(source, config, 1, "base")


def same(a: weights.Arrays, b: weights.Arrays) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("config", [BERT, ROBERTA], ids=["bert", "roberta"])
def test_there_and_back_bit_for_bit(config: ModelConfig) -> None:
    source = hf(config)
    ours, notes = read(source, config)
    assert notes == []
    assert same(weights.to_hf(ours, config), source)


def test_query_key_and_value_are_stacked_in_order() -> None:
    source = hf()
    name = "bert.encoder.layer.1.attention.self.{}.weight"
    stacked = read(source)[0]["layers.1.qkv.weight"]
    assert (stacked == np.concatenate([source[name.format(part)] for part in ("query", "key", "value")])).all()


def test_old_names_and_absent_prefix() -> None:
    expected = read(hf())[0]
    old = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
        for k, v in hf().items()
    }
    assert same(read(old)[0], expected)
    assert same(read({k.removeprefix("bert."): v for k, v in hf().items()})[0], expected)


def test_what_is_dropped_on_purpose() -> None:
    extra = {
        "bert.pooler.dense.weight": np.ones((8, 8)), "cls.seq_relationship.bias": np.ones(2), "bert.embeddings.position_ids": np.arange(12),
    }  # fmt: skip
    assert same(read({**hf(), **extra})[0], read(hf())[0])


def test_a_tied_decoder_is_compared() -> None:
    source = hf()
    word = source["bert.embeddings.word_embeddings.weight"]
    assert same(read({**source, "cls.predictions.decoder.weight": word})[0], read(source)[0])
    with pytest.raises(InputError, match=r"cls\.predictions\.decoder\.weight differs"):
        read({**source, "cls.predictions.decoder.weight": word + 1})


def test_decoder_bias_under_its_other_name() -> None:
    source = hf()
    source["cls.predictions.decoder.bias"] = source.pop("cls.predictions.bias")
    assert same(read(source)[0], read(hf())[0])


@pytest.mark.parametrize("config", [BERT, ROBERTA], ids=["bert", "roberta"])
def test_an_absent_head_is_initialised_and_said(config: ModelConfig) -> None:
    body = {k: v for k, v in hf(config).items() if not k.startswith(("cls.", "lm_head."))}
    ours, notes = read(body, config)
    assert ours["transform.weight"].std() > 0
    assert (ours["transform_norm.weight"] == 1).all()
    assert "no masked-LM head" in notes[0]
    assert "ln(40) = 3.69" in notes[0]


def test_a_key_too_few_is_named() -> None:
    source = hf()
    del source["bert.encoder.layer.1.output.dense.bias"]
    with pytest.raises(InputError, match=r"missing: bert\.encoder\.layer\.1\.output\.dense\.bias"):
        read(source)


def test_half_a_head_is_an_error() -> None:
    source = hf()
    del source["cls.predictions.transform.dense.weight"]
    with pytest.raises(InputError, match=r"missing: cls\.predictions\.transform\.dense\.weight"):
        read(source)


def test_a_key_too_many_is_named() -> None:
    with pytest.raises(InputError, match=r"unknown: bert\.encoder\.layer\.2\.output\.dense\.bias"):
        read({**hf(), "bert.encoder.layer.2.output.dense.bias": np.ones(8)})


def test_a_key_given_twice() -> None:
    with pytest.raises(InputError, match=r"LayerNorm\.weight twice"):
        read({**hf(), "bert.embeddings.LayerNorm.gamma": np.ones(8)})


def test_a_shape_that_differs_is_named_with_both() -> None:
    source = hf()
    source["bert.embeddings.word_embeddings.weight"] = np.ones((39, 8))
    with pytest.raises(InputError, match=r"word_embeddings\.weight has shape \[39, 8\]; .* \[40, 8\]"):
        read(source)


def test_initial_weights_are_those_of_the_seed() -> None:
    assert same(weights.initial(BERT, 1), weights.initial(BERT, 1))
    assert not np.array_equal(weights.initial(BERT, 1)["word"], weights.initial(BERT, 2)["word"])
    first = weights.initial(BERT, 1)
    assert (first["word"][0] == 0).all()
    assert first["layers.0.qkv.weight"].std() == pytest.approx(0.02, rel=0.15)
    assert not np.array_equal(first["layers.0.up.weight"], first["layers.1.up.weight"])


def test_file_there_and_back(tmp_path: Path) -> None:
    weights.write(tmp_path / "model.safetensors", hf())
    assert same(weights.read(tmp_path / "model.safetensors"), hf())
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_half_precision_becomes_single(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 0.0, 384.0], np.float32)
    parts = {
        "half": ("F16", values.astype("<f2").tobytes()),
        "brain": ("BF16", (values.view(np.uint32) >> 16).astype("<u2").tobytes()),
    }
    header = {
        name: {"dtype": kind, "shape": [4], "data_offsets": [8 * i, 8 * i + 8]}
        for i, (name, (kind, _)) in enumerate(parts.items())
    }
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, data in parts.values()))
    got = weights.read(path)
    assert all(array.dtype == np.float32 and (array == values).all() for array in got.values())


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "model.safetensors"
    weights.write(path, hf())
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match="not a whole safetensors file"):
        weights.read(path)


class Trap:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("executed"),))


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickled_code_is_never_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pytorch_model.bin").write_bytes(pickle.dumps(Trap(), protocol))
    with pytest.raises(InputError, match=r"pytorch_model\.bin"):
        weights.read("pytorch_model.bin")
    assert not Path("executed").exists()


def test_an_absent_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the weights"):
        weights.read(tmp_path / "none.safetensors")


def test_numbers_that_are_not_finite_are_named() -> None:
    source = hf()
    source["bert.encoder.layer.0.output.dense.bias"][3] = np.nan
    with pytest.raises(InputError, match=r"layer\.0\.output\.dense\.bias holds 1 numbers that are not finite"):
        read(source)
