"""A raw shard that is being filled: documents, records that could not be read, files that never can."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from mindstream_common import documents
from mindstream_common.documents import Document
from mindstream_common.events import FileBundle
from mindstream_common.stage import Counts, Drop, Product

from mindstream_ingest.config import IngestConfig
from mindstream_ingest.record import Record


class Position(NamedTuple):
    """Where the next part begins: file of the bundle, member of an archive, units of it that were read.

    ``dead`` is how many files after it could not be read: their dead letters were in the first part.
    """

    file: int = 0
    member: int = 0
    at: int = 0
    dead: int = 0

    @classmethod
    def of(cls, counts: Counts) -> Position:
        """What a stored part says."""
        return cls(*(counts.extra.get(f"next_{name}", 0) for name in cls._fields))


class OpenShard:
    """Filled record by record, closed once. Holds at most ``shard_bytes`` and one record."""

    def __init__(self, id: str, config: IngestConfig) -> None:
        self.id = id
        self._config = config
        self._documents: list[Document] = []
        self._drops: list[Drop] = []
        self._bytes = [0, 0]  # of the documents, of the drops
        self.dead: list[tuple[FileBundle, str]] = []
        self.extra: Counter[str] = Counter()

    def full(self, size: int) -> bool:
        """Whether ``size`` more bytes do not fit any more."""
        records = len(self._documents) + len(self._drops)
        return records >= self._config.shard_documents or bool(
            records and sum(self._bytes) + size > self._config.shard_bytes
        )

    def add(self, record: Record, name: str, size: int) -> None:
        """Take a record of ``size`` bytes of file ``name``: a document, or a drop when it has a reason."""
        source = f"{name}#{record.place}" if record.place else name
        self._bytes[bool(record.reason)] += size
        if record.reason:
            id = f"{self.id}/unread-{len(self._drops)}"
            self._drops.append(
                Drop(document=id, source=source, reason=record.reason, text=record.text, detail=record.detail)
            )
        else:
            id = f"{self.id}/{len(self._documents)}"
            self._documents.append(Document(id=id, source=source, format=record.format, text=record.text))

    @property
    def empty(self) -> bool:
        """Whether it would say nothing at all."""
        return not (self._documents or self._drops or self.dead or self.extra)

    def close(self, folder: Path, following: Position | None = None) -> Product:
        """Write it into ``folder``. Without documents there is no file. ``following``: where the next part begins."""
        files = {}
        if self._documents:
            files[".parquet"] = folder / f"{self.id}.parquet"
            documents.write(files[".parquet"], self._documents)
        if following is not None:
            self.extra.update({f"next_{name}": number for name, number in following._asdict().items() if number})
        counts = Counts(
            documents_in=len(self._documents) + len(self._drops),
            documents_out=len(self._documents),
            dropped=dict(Counter(drop.reason for drop in self._drops)),
            bytes_in=sum(self._bytes),
            bytes_out=self._bytes[0],
            extra=dict(self.extra),
        )
        return Product(files=files, counts=counts, drops=self._drops, dead=self.dead)
