"""The section ``tokenizer`` of a run's file."""

from __future__ import annotations

from typing import Annotated, Literal

from mindstream_common.config import Section
from mindstream_common.errors import ConfigError
from msgspec import Meta

SHORTEST = 8  # tokens in a row: less than this is all [CLS] and [SEP]


class TokenizerConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How documents become rows.

    ``max_length``: the most tokens in a row, [CLS] and [SEP] among them. ``buckets``: the lengths that rows are padded
    to when they are trained on, ascending, the last one ``max_length``; each is a shape that compiles for some seconds,
    so there are few: by default the whole length and, from 128 on, its half. ``lowercase``: as the base model's
    tokenizer (true for bert-base-chinese and its kin; it also strips accents); a tokenizer.json knows by itself.
    ``held_out``: the share of documents that is never trained on, chosen by a hash of the text. ``packing``: a row holds
    one document, or (``full``) is filled across documents, with [SEP] between them; then all rows are of ``max_length``
    unless ``buckets`` says more. ``whole_word``: mark which tokens continue a word, for ``trainer.whole_word``.
    ``end_token``: what ends a document, for a tokenizer.json whose template puts nothing behind a text; empty: the usual
    one that it has.
    """

    max_length: Annotated[int, Meta(ge=SHORTEST, le=8192)] = 128
    buckets: tuple[int, ...] = ()
    lowercase: bool = True
    held_out: Annotated[float, Meta(ge=0, le=0.5)] = 0.02
    packing: Literal["document", "full"] = "document"
    whole_word: bool = False
    end_token: str = ""

    def __post_init__(self) -> None:
        if self.buckets and (
            list(self.buckets) != sorted(set(self.buckets))
            or self.buckets[0] < SHORTEST
            or self.buckets[-1] != self.max_length
        ):
            raise ConfigError(
                f"buckets are {list(self.buckets)} and max_length is {self.max_length}: buckets must ascend from {SHORTEST} "
                f"or more and end with max_length. Leave them out for {list(default_buckets(self.max_length))}."
            )


def default_buckets(max_length: int) -> tuple[int, ...]:
    """The whole length and, from 128 on, its half."""
    return (max_length // 2, max_length) if max_length >= 128 else (max_length,)


def buckets(config: TokenizerConfig) -> tuple[int, ...]:
    """The lengths that rows are padded to."""
    whole = (config.max_length,) if config.packing == "full" else default_buckets(config.max_length)
    return config.buckets or whole
