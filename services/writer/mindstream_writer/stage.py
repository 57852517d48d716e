"""Writer: rows of token ids become a MindRecord shard in the catalog."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from mindstream_common import ids
from mindstream_common.errors import Poison
from mindstream_common.events import CatalogShard, TokenShard
from mindstream_common.stage import Counts, Declaration, Product, Work

from mindstream_writer import mindrecord
from mindstream_writer.config import WriterConfig
from mindstream_writer.rows import Rows, dtype_of, group, read

ALGORITHM = "2"  # raised when the same rows would give another file
DECLARATION = Declaration(name="writer", takes=TokenShard, makes=CatalogShard)


class WriterStage:
    """One MindRecord shard for each shard of rows; no file when there are no rows."""

    def __init__(self, config: WriterConfig, vocab_size: int, tokenizer_sha256: str) -> None:
        """``vocab_size`` and ``tokenizer_sha256`` are the pipeline's: a shard of another tokenizer is refused."""
        self._config = config
        self._vocab_size = vocab_size
        self._tokenizer = tokenizer_sha256
        self.configuration = ids.configuration_hash(
            config, writer=ALGORITHM, tokenizer=tokenizer_sha256, mindspore=version("mindspore")
        )

    def run(self, work: Work[TokenShard]) -> Iterator[Product]:
        """Raises Poison when the rows cannot be of this pipeline's tokenizer, or are not what the event says."""
        event = work.event
        if (event.vocab_size, event.tokenizer_sha256) != (self._vocab_size, self._tokenizer):
            raise Poison(
                f"shard {event.id} was tokenized with a vocabulary of {event.vocab_size} entries (sha256 "
                f"{event.tokenizer_sha256}); this pipeline's has {self._vocab_size} (sha256 {self._tokenizer}). "
                "Another base model is another pipeline: replay the clean shards there."
            )
        rows = read(work.files, event.id, self._vocab_size)
        if (len(rows), rows.tokens) != (event.rows, event.tokens):
            raise Poison(
                f"shard {event.id} holds {len(rows)} rows, {rows.tokens} tokens; its event says {event.rows}, {event.tokens}"
            )
        yield self._product(work, rows)

    def _product(self, work: Work[TokenShard], rows: Rows) -> Product:
        ordered, groups = group(rows)
        files = {}
        if len(ordered):
            path = work.folder / f"{ids.shard_id('writer', (work.event.id,), self.configuration)}.mindrecord"
            index = mindrecord.write(path, ordered, self._config.header_size, self._config.page_size)
            mindrecord.verify(path, ordered, self._config.page_size)
            files = {".mindrecord": path, ".mindrecord.db": index}
        counts = Counts(
            documents_in=work.event.documents,
            documents_out=work.event.documents,
            bytes_in=sum(path.stat().st_size for path in work.files),
            bytes_out=sum(path.stat().st_size for path in files.values()),
            rows=len(ordered),
            tokens_in=rows.tokens,
            tokens_out=rows.tokens,
        )
        fields = {
            "rows": len(ordered),
            "tokens": rows.tokens,
            "vocab_size": self._vocab_size,
            "tokenizer_sha256": self._tokenizer,
            "dtype": dtype_of(self._vocab_size),
            "groups": groups,
        }
        return Product(files=files, counts=counts, fields=fields)
