"""Any other tokenizer that comes as a ``tokenizer.json`` (Qwen's, LLaMA's, GLM's, ...), through ``tokenizers``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from mindstream_common import ids
from mindstream_common.errors import ConfigError
from tokenizers import Tokenizer

from mindstream_tokenizer.batch import Batch, Places, join

# What ends a document where the tokenizer's own template puts nothing behind a text; the first that exists.
ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<｜end▁of▁sentence｜>", "[SEP]")
UNKNOWN = ("[UNK]", "<unk>")
PROBE = "语言模型 model 3.14，好。"


class JsonEncoder:
    """A :class:`~mindstream_tokenizer.batch.TokenEncoder` made from a file."""

    def __init__(self, path: Path, end_token: str = "") -> None:
        """Raises ConfigError when the file is no tokenizer, or nothing is known to end a document with."""
        try:
            data = path.read_bytes()
            self._tokenizer = Tokenizer.from_str(data.decode("utf-8"))
        except Exception as error:  # tokenizers raises Exception itself
            raise ConfigError(
                f"cannot read the tokenizer {path}: {error}. It is the tokenizer.json beside the base model."
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # a special token's name in a text is text
        self.sha256 = ids.sha256_bytes(data)
        self.entries = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        known = [found for name in UNKNOWN if (found := self._tokenizer.token_to_id(name)) is not None]
        self.unknown = known[0] if known else -1
        self.begin, self.end = self._frame(path, end_token)

    def encode(self, texts: Sequence[bytes], positions: bool = False) -> Batch:
        """Encode UTF-8 texts, each by itself, without special tokens."""
        text, points, chars = join(texts)
        pieces = [text[a : b - 1] for a, b in pairwise(chars.tolist())]
        encoded = self._tokenizer.encode_batch(pieces, add_special_tokens=False)
        sizes = [len(one.ids) for one in encoded]
        found = np.fromiter((id for one in encoded for id in one.ids), np.int32, sum(sizes))
        spans = np.array([span for one in encoded for span in one.offsets], np.int64).reshape(-1, 2)
        base = np.repeat(chars[:-1], sizes)
        # A token of no characters (a blank that the tokenizer puts before a text) belongs to the character behind it.
        ends: Places = np.add(np.maximum(spans[:, 1], 1), base)
        ends = np.minimum(np.maximum.accumulate(ends), np.repeat(chars[1:], sizes))
        done = np.searchsorted(ends, np.arange(1, len(points) + 1), side="right").astype(np.int32)
        if not positions:
            return Batch(text, points, chars, found, done)
        begins = np.minimum(spans[:, 0] + base, ends - 1).astype(np.int64)
        return Batch(text, points, chars, found, done, begins, ends)

    def _frame(self, path: Path, end_token: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens before and behind a text."""
        plain = self._tokenizer.encode(PROBE, add_special_tokens=False).ids
        whole = self._tokenizer.encode(PROBE, add_special_tokens=True).ids
        at = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), None)
        if at is None or not plain:
            raise ConfigError(
                f"{path}: the text {PROBE!r} has the ids {plain}, in a template {whole}: not a tokenizer for text."
            )
        begin, end = tuple(whole[:at]), tuple(whole[at + len(plain) :])
        names = (end_token,) if end_token else () if end else ENDS
        found = [id for name in names if (id := self._tokenizer.token_to_id(name)) is not None]
        if names and not found:
            raise ConfigError(
                f"{path} has no {' or '.join(names)} to end a document with; name a token that it has: tokenizer.end_token"
            )
        return begin, (found[0],) if names else end
