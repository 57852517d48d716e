"""Tokenizer: clean documents become rows of token ids."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import xxhash
from mindstream_common import documents, ids
from mindstream_common.documents import Document
from mindstream_common.events import CleanShard, Split, TokenShard
from mindstream_common.stage import Counts, Declaration, Drop, Product, Work

from mindstream_tokenizer import table, vocabulary
from mindstream_tokenizer.config import TokenizerConfig, default_buckets
from mindstream_tokenizer.encoder import Encoded, Encoder
from mindstream_tokenizer.rows import cut
from mindstream_tokenizer.table import Row

ALGORITHM = "1"  # raised when the same documents would give other rows
DECLARATION = Declaration(name="tokenizer", takes=CleanShard, makes=TokenShard)
NO_TOKENS = "no_tokens"  # only characters that the tokenizer deletes
BATCH = 256  # documents encoded together


class TokenizerStage:
    """One shard of rows for each clean shard. A row holds one document; a document has one row or more."""

    def __init__(self, config: TokenizerConfig, vocab: Path) -> None:
        """Raises ConfigError when the vocabulary cannot be used."""
        self._config = config
        self._vocabulary = vocabulary.load(vocab)
        self._encoder = Encoder(self._vocabulary, config.lowercase)
        self._buckets = np.array(config.buckets or default_buckets(config.max_length))
        libraries = {name: version(name) for name in ("tokenizers", "xxhash")}
        self.configuration = ids.configuration_hash(
            config, tokenizer=ALGORITHM, vocabulary=self._vocabulary.sha256, **libraries
        )

    def run(self, work: Work[CleanShard]) -> Iterator[Product]:
        rows: list[Row] = []
        drops: list[Drop] = []
        counts = Counts()
        for document, encoded in self._encode(work):
            counts.documents_in += 1
            counts.bytes_in += len(document.text.encode())
            counts.tokens_in += len(encoded.ids)
            unknown = int(np.count_nonzero(encoded.ids == self._encoder.unknown))
            counts.extra["unknown_tokens"] = counts.extra.get("unknown_tokens", 0) + unknown
            made = self._rows(document, encoded)
            rows += made
            if not made:
                drops.append(Drop(document=document.id, source=document.source, reason=NO_TOKENS, text=document.text))
        yield self._product(work, rows, drops, counts)

    def _encode(self, work: Work[CleanShard]) -> Iterator[tuple[Document, Encoded]]:
        clean = [document for path in work.files for document in documents.read(path)]
        for start in range(0, len(clean), BATCH):
            batch = clean[start : start + BATCH]
            yield from zip(batch, self._encoder.encode([document.text for document in batch]), strict=True)

    def _rows(self, document: Document, encoded: Encoded) -> list[Row]:
        split = self._split(document.text)
        made = []
        for start, stop in cut(document.text, encoded, self._config.max_length - 2):
            tokens = np.concatenate(([self._encoder.cls], encoded.ids[start:stop], [self._encoder.sep])).astype(
                np.int32
            )
            length = int(self._buckets[np.searchsorted(self._buckets, len(tokens))])
            made.append(Row(document=document.id, split=split, length=length, tokens=tokens))
        return made

    def _split(self, text: str) -> Split:
        """By the text alone: the same text never stands on both sides."""
        share = xxhash.xxh3_64_intdigest(text.encode()) / 2**64
        return "held_out" if share < self._config.held_out else "train"

    def _product(self, work: Work[CleanShard], rows: list[Row], drops: list[Drop], counts: Counts) -> Product:
        files = {}
        if rows:
            files[".parquet"] = (
                work.folder / f"{ids.shard_id('tokenizer', (work.event.id,), self.configuration)}.parquet"
            )
            table.write(files[".parquet"], rows, len(self._vocabulary))
        counts.rows = len(rows)
        counts.dropped = {NO_TOKENS: len(drops)} if drops else {}
        counts.documents_out = counts.documents_in - len(drops)
        counts.tokens_out = sum(len(row.tokens) - 2 for row in rows)
        counts.bytes_out = sum(path.stat().st_size for path in files.values())
        fields = {
            "rows": counts.rows,
            "tokens": counts.tokens_out,
            "vocab_size": len(self._vocabulary),
            "tokenizer_sha256": self._vocabulary.sha256,
        }
        return Product(files=files, counts=counts, drops=drops, fields=fields)
