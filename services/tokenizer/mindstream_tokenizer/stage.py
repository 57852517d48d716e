"""Tokenizer: clean documents become rows of token ids."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from mindstream_common import ids
from mindstream_common.errors import ConfigError
from mindstream_common.events import CleanShard, TokenShard
from mindstream_common.stage import Counts, Declaration, Drop, Product, Work

from mindstream_tokenizer import rows, table, vocabulary
from mindstream_tokenizer.batch import TokenEncoder
from mindstream_tokenizer.config import TokenizerConfig, buckets
from mindstream_tokenizer.encoder import Encoder
from mindstream_tokenizer.jsonfile import JsonEncoder
from mindstream_tokenizer.rows import Layout, Spans
from mindstream_tokenizer.shard import Shard, read
from mindstream_tokenizer.table import SPLITS, Columns

ALGORITHM = "2"  # raised when the same documents would give other rows
DECLARATION = Declaration(name="tokenizer", takes=CleanShard, makes=TokenShard)
NO_TOKENS = "no_tokens"  # only characters that the tokenizer deletes


def encoder(config: TokenizerConfig, vocab: Path) -> TokenEncoder:
    """The encoder for a vocabulary: the table for a vocab.txt, Hugging Face's library for a tokenizer.json.

    Raises:
        ConfigError: the file cannot be used, or leaves no room for text in a row.
    """
    if vocab.suffix == ".json":
        made: TokenEncoder = JsonEncoder(vocab, config.end_token)
    else:
        made = Encoder(vocabulary.load(vocab), config.lowercase)
    if config.max_length <= len(made.begin) + len(made.end):
        raise ConfigError(
            f"tokenizer.max_length is {config.max_length}, and {vocab} puts {len(made.begin)} special tokens before a text "
            f"and {len(made.end)} behind it: choose a larger one."
        )
    return made


class TokenizerStage:
    """One shard of rows for each clean shard."""

    def __init__(self, config: TokenizerConfig, vocab: Path) -> None:
        """Raises ConfigError when the vocabulary cannot be used."""
        self._config = config
        self._encoder = encoder(config, vocab)
        self._buckets = np.array(buckets(config))
        libraries = ["tokenizers", "xxhash", *(["rjieba"] if config.whole_word else [])]
        self.configuration = ids.configuration_hash(
            config,
            tokenizer=ALGORITHM,
            vocabulary=self._encoder.sha256,
            **{name: version(name) for name in libraries},
        )

    def run(self, work: Work[CleanShard]) -> Iterator[Product]:
        shard = read(work.files, self._encoder, self._config.whole_word)
        splits = self._splits(shard)
        spans = self._cut(shard, splits)
        empty = np.flatnonzero(np.diff(shard.tokens) == 0).tolist()
        drops = [Drop(reason=NO_TOKENS, **shard.document(number)) for number in empty]
        files = {}
        if spans.rows:
            name = ids.shard_id("tokenizer", (work.event.id,), self.configuration)
            files[".parquet"] = work.folder / f"{name}.parquet"
            specials = (len(self._encoder.begin), len(self._encoder.end))
            table.write(files[".parquet"], self._columns(shard, spans, splits), self._encoder.entries, specials)
        yield self._product(shard, spans, drops, files)

    def _splits(self, shard: Shard) -> npt.NDArray[np.int8]:
        """An index into SPLITS for each document, by the text alone: the same text never stands on both sides."""
        share = self._config.held_out
        return np.fromiter((hash / 2**64 < share for hash in shard.hashes), np.int8, len(shard.hashes))

    def _cut(self, shard: Shard, splits: npt.NDArray[np.int8]) -> Spans:
        length, begin, end = self._config.max_length, len(self._encoder.begin), len(self._encoder.end)
        tokens, ends = shard.tokens.tolist(), shard.ends.tolist()
        if self._config.packing == "document":
            return rows.single(tokens, ends, length - begin - end)
        groups = [np.flatnonzero(splits == split).tolist() for split in range(len(SPLITS))]
        return rows.full(tokens, ends, length, (begin, end), groups)

    def _columns(self, shard: Shard, spans: Spans, splits: npt.NDArray[np.int8]) -> Columns:
        layout = rows.lay_out(shard.ids, spans, self._encoder.begin, self._encoder.end)
        sizes = np.diff(layout.starts)
        first = np.searchsorted(spans.rows, np.arange(len(sizes)))  # of each row's spans
        documents = np.array(spans.documents)[first]
        names = shard.names.take(pa.array(documents))
        if self._config.packing == "full":
            names = pa.array(_names(shard, spans, layout), pa.string())
        words = None if shard.words is None else layout.spread(shard.words)
        lengths = self._buckets[np.searchsorted(self._buckets, sizes)].astype(np.int32)
        return Columns(names, splits[documents], lengths, layout, words)

    def _product(self, shard: Shard, spans: Spans, drops: list[Drop], files: dict[str, Path]) -> Product:
        tokens = sum(spans.stops) - sum(spans.starts)
        extra = {"unknown_tokens": int(np.count_nonzero(shard.ids == self._encoder.unknown))}
        if self._config.whole_word:
            extra["whole_word_fallback"] = shard.fell_back
        counts = Counts(
            documents_in=len(shard.texts),
            documents_out=len(shard.texts) - len(drops),
            dropped={NO_TOKENS: len(drops)} if drops else {},
            bytes_in=sum(map(len, shard.texts)),
            bytes_out=sum(path.stat().st_size for path in files.values()),
            rows=spans.rows[-1] + 1 if spans.rows else 0,
            tokens_in=len(shard.ids),
            tokens_out=tokens,
            extra=extra,
        )
        fields = {
            "rows": counts.rows,
            "tokens": tokens,
            "vocab_size": self._encoder.entries,
            "tokenizer_sha256": self._encoder.sha256,
        }
        return Product(files=files, counts=counts, drops=drops, fields=fields)


def _names(shard: Shard, spans: Spans, layout: Layout) -> list[str]:
    """Of each row: its documents with the places of their tokens in the row, ``<id>@<start>-<stop>``."""
    ids, row_starts = shard.names.to_pylist(), layout.starts.tolist()
    names: list[list[str]] = [[] for _ in row_starts[1:]]
    pieces = zip(spans.rows, spans.documents, spans.starts, spans.stops, layout.places.tolist(), strict=True)
    for row, document, start, stop, place in pieces:
        at = place - row_starts[row]
        names[row].append(f"{ids[document]}@{at}-{at + stop - start}")
    return [" ".join(name) for name in names]
