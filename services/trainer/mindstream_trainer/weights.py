"""Hugging Face's names of weights and ours: one table, read in both directions.

Every key of a file is taken, or dropped on purpose; every parameter of the model is filled; anything else is an error
that names the keys. Files are safetensors: nothing in them is ever executed.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from mindstream_common.errors import InputError
from mindstream_common.ids import sha256_file

from mindstream_trainer.config import ModelConfig

Arrays = dict[str, np.ndarray]

EMBEDDINGS = {
    "word": "embeddings.word_embeddings.weight",
    "position": "embeddings.position_embeddings.weight",
    "type": "embeddings.token_type_embeddings.weight",
    "norm": "embeddings.LayerNorm",
}
LAYER = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "out": "attention.output.dense",
    "norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "final_norm": "output.LayerNorm",
}
HEAD = {
    "bert": {
        "transform": "cls.predictions.transform.dense",
        "transform_norm": "cls.predictions.transform.LayerNorm",
        "decoder_bias": "cls.predictions.bias",
    },
    "roberta": {"transform": "lm_head.dense", "transform_norm": "lm_head.layer_norm", "decoder_bias": "lm_head.bias"},
}
# Keys that carry nothing this model needs. Decoder keys repeat others (they are compared, not just dropped).
DROPPED = {
    "bert": ("bert.pooler.", "cls.seq_relationship.", "bert.embeddings.position_ids"),
    "roberta": ("roberta.pooler.", "roberta.embeddings.position_ids", "roberta.embeddings.token_type_ids"),
}
REPEATED = {
    "bert": {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    "roberta": {
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
}


def family(config: ModelConfig) -> str:
    """``bert`` or ``roberta``: which names are used (XLM-RoBERTa uses RoBERTa's)."""
    return "roberta" if config.shifts_positions else "bert"


def table(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Our name → Hugging Face's names; several are stacked along the first axis, in that order."""
    kind = family(config)
    names: dict[str, tuple[str, ...]] = {}
    for ours, theirs in EMBEDDINGS.items():
        names |= _pair(ours, (f"{kind}.{theirs}",), whole=ours != "norm")
    for i in range(config.num_hidden_layers):
        for ours, part in LAYER.items():
            parts = (part,) if isinstance(part, str) else part
            names |= _pair(f"layers.{i}.{ours}", tuple(f"{kind}.encoder.layer.{i}.{p}" for p in parts), whole=False)
    for ours, theirs in HEAD[kind].items():
        names |= _pair(ours, (theirs,), whole=ours == "decoder_bias")
    return names


def _pair(ours: str, theirs: tuple[str, ...], whole: bool) -> dict[str, tuple[str, ...]]:
    if whole:
        return {ours: theirs}
    return {f"{ours}.{end}": tuple(f"{name}.{end}" for name in theirs) for end in ("weight", "bias")}


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Our name → shape."""
    size, wide = config.hidden_size, config.intermediate_size
    outputs = {
        "qkv": (3 * size, size),
        "out": (size, size),
        "up": (wide, size),
        "down": (size, wide),
        "transform": (size, size),
    }
    single = {
        "word": (config.vocab_size, size),
        "position": (config.max_position_embeddings, size),
        "type": (config.type_vocab_size, size),
        "decoder_bias": (config.vocab_size,),
    }
    found: dict[str, tuple[int, ...]] = {}
    for name in table(config):
        module, _, end = name.rpartition(".")
        dense = outputs.get(module.rpartition(".")[2])
        found[name] = single.get(name) or ((size,) if dense is None else dense if end == "weight" else dense[:1])
    return found


def initial(config: ModelConfig, seed: int) -> Arrays:
    """Random weights as Hugging Face draws them (normal of ``initializer_range``, zeros, ones for LayerNorm), fp32. Each
    array is keyed by (seed, name), so it is the same on every machine."""
    arrays = {name: _initial(name, shape, config, seed) for name, shape in shapes(config).items()}
    arrays["word"][config.pad_token_id] = 0.0
    if config.shifts_positions:
        arrays["position"][config.pad_token_id] = 0.0
    return arrays


def _initial(name: str, shape: tuple[int, ...], config: ModelConfig, seed: int) -> np.ndarray:
    if len(shape) == 1:
        return np.full(shape, 1.0 if name.endswith("norm.weight") else 0.0, np.float32)
    key = hashlib.blake2b(f"initial\0{seed}\0{name}".encode(), digest_size=16).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
    return generator.standard_normal(shape, np.float32) * np.float32(config.initializer_range)


def from_hf(source: Mapping[str, np.ndarray], config: ModelConfig, seed: int, where: str) -> tuple[Arrays, list[str]]:
    """Our arrays (fp32) from Hugging Face's, and notes for people. An absent masked-LM head is initialised by ``seed``.

    Raises:
        InputError: a key is missing, unknown or given twice, a shape differs, or the decoder is not tied.
    """
    names, kind = table(config), family(config)
    given = _canonical(source, kind, where)
    _check_repeated(given, kind, where)
    arrays: Arrays = {}
    notes: list[str] = []
    if not any(theirs in given for ours in names for theirs in names[ours] if not theirs.startswith(f"{kind}.")):
        arrays, notes = _without_head(config, seed, where)
    missing = [theirs for ours in names if ours not in arrays for theirs in names[ours] if theirs not in given]
    known = {theirs for parts in names.values() for theirs in parts}
    surplus = [key for key in given if key not in known and not key.startswith(DROPPED[kind])]
    if missing or surplus:
        parts = [f"{what}: {_some(keys)}" for what, keys in (("missing", missing), ("unknown", surplus)) if keys]
        raise InputError(
            f"{where} is not a {config.model_type} masked language model of {config.num_hidden_layers} layers; {'; '.join(parts)}. "
            "Check that config.json belongs to these weights."
        )
    for ours, shape in shapes(config).items():
        if ours not in arrays:
            arrays[ours] = _stacked([given[theirs] for theirs in names[ours]], shape, names[ours], where)
    return arrays, notes


def to_hf(arrays: Mapping[str, np.ndarray], config: ModelConfig) -> Arrays:
    """The same numbers under Hugging Face's names."""
    result: Arrays = {}
    for ours, theirs in table(config).items():
        parts = np.split(arrays[ours], len(theirs))
        result |= {name: np.ascontiguousarray(part) for name, part in zip(theirs, parts, strict=True)}
    return result


def _canonical(source: Mapping[str, np.ndarray], kind: str, where: str) -> Arrays:
    """Today's names: TensorFlow's gamma and beta, and a missing prefix, are older spellings."""
    given: Arrays = {}
    for key, value in source.items():
        name = key.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name.startswith(("embeddings.", "encoder.", "pooler.")):
            name = f"{kind}.{name}"
        if name in given:
            raise InputError(f"{where} has {name} twice, under two spellings; one of them is {key}.")
        given[name] = value
    return given


def _check_repeated(given: Arrays, kind: str, where: str) -> None:
    for key, original in REPEATED[kind].items():
        if key not in given:
            continue
        value = given.pop(key)
        if original not in given:
            given[original] = value
        elif not np.array_equal(value, given[original]):
            raise InputError(
                f"{where}: {key} differs from {original}. This trainer ties them, so it would change the model."
            )


def _without_head(config: ModelConfig, seed: int, where: str) -> tuple[Arrays, list[str]]:
    start = initial(config, seed)
    head = {name: array for name, array in start.items() if name.startswith(("transform", "decoder_bias"))}
    note = (
        f"{where} has no masked-LM head: {_some(sorted(head))} start from seed {seed}. "
        f"A first loss near ln({config.vocab_size}) = {math.log(config.vocab_size):.2f} is then healthy."
    )
    return head, [note]


def _stacked(parts: list[np.ndarray], shape: tuple[int, ...], names: tuple[str, ...], where: str) -> np.ndarray:
    expected = (shape[0] // len(parts), *shape[1:])
    for name, part in zip(names, parts, strict=True):
        if part.shape != expected:
            raise InputError(
                f"{where}: {name} has shape {list(part.shape)}; the configuration asks for {list(expected)}."
            )
        bad = int((~np.isfinite(part)).sum())
        if bad:
            raise InputError(
                f"{where}: {name} holds {bad} numbers that are not finite; training from it cannot succeed."
            )
    return np.concatenate([part.astype(np.float32) for part in parts])


def _some(keys: list[str], most: int = 8) -> str:
    return ", ".join(keys[:most]) + (f" and {len(keys) - most} more" if len(keys) > most else "")


def read(path: str | Path) -> Arrays:
    """The arrays of a safetensors file (fp16 and bf16 become fp32).

    Raises:
        InputError: the file is absent, truncated, or not safetensors (pickled ``.bin`` / ``.pt`` files are never opened).
    """
    path = Path(path)
    try:
        data = path.read_bytes()
        if data[:2] in (b"PK", b"\x80\x02", b"\x80\x04"):
            raise InputError(
                f"{path} is a pickled file, which can run code when opened. Convert it to model.safetensors."
            )
        return {name: _array(entry) for name, entry in safetensors.deserialize(data)}  # type: ignore[no-untyped-call]
    except OSError as error:
        raise InputError(f"cannot read the weights {path}: {error}") from error
    except safetensors.SafetensorError as error:
        raise InputError(
            f"{path} is not a whole safetensors file ({error}); it has {len(data)} bytes. Fetch it again."
        ) from error


def _array(entry: Mapping[str, object]) -> np.ndarray:
    kinds = {
        "F64": "<f8",
        "F32": "<f4",
        "F16": "<f2",
        "BF16": "<u2",
        "I64": "<i8",
        "I32": "<i4",
        "I16": "<i2",
        "I8": "i1",
        "U8": "u1",
        "BOOL": "?",
    }
    kind, shape = str(entry["dtype"]), list(entry["shape"])  # type: ignore[call-overload]
    if kind not in kinds:
        raise InputError(f"a tensor of type {kind} is not supported; store the weights as fp32, fp16 or bf16.")
    flat = np.frombuffer(entry["data"], kinds[kind])  # type: ignore[call-overload]
    if kind == "BF16":
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    array: np.ndarray = flat.reshape(shape)
    return array.astype(np.float32) if kind in ("F16", "F64") else array


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Write a safetensors file so that a crash leaves the old one or the new one; returns its sha256."""
    aside = path.with_name(f".tmp-{path.name}")
    safetensors.numpy.save_file(dict(arrays), aside, metadata={"format": "pt"})
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    aside.replace(path)
    return sha256_file(path)
