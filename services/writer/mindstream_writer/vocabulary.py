"""How many entries a tokenizer's file has: all that the writer needs to know of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from mindstream_common import vocabulary
from mindstream_common.errors import ConfigError


def entries(path: Path) -> int:
    """Of a ``vocab.txt``, its lines; of a ``tokenizer.json``, the highest id and one more.

    Raises:
        ConfigError: a tokenizer.json that has no vocabulary.
    """
    if path.suffix != ".json":
        return len(vocabulary.read(path)[1])
    try:
        data = msgspec.json.decode(path.read_bytes())
        vocab: Any = data["model"]["vocab"]
        known = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
        return 1 + max([*known, *(token["id"] for token in data.get("added_tokens") or ())])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path} has no vocabulary ({error}). It is the tokenizer.json beside the base model."
        ) from error
