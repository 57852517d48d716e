"""Cleaning: raw documents become clean ones, or drops with a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version

import msgspec
from mindstream_common import documents, ids
from mindstream_common.documents import Document
from mindstream_common.events import CleanShard, RawShard
from mindstream_common.stage import Counts, Declaration, Drop, Product, Work

from mindstream_cleaning import duplicates, mojibake, reasons, sketch, text
from mindstream_cleaning.config import CleaningConfig
from mindstream_cleaning.duplicates import Duplicate

ALGORITHM = "1"  # raised when the same documents would give other texts
DECLARATION = Declaration(
    name="cleaning", takes=RawShard, makes=CleanShard, claims=True, claims_version=sketch.VERSION
)


class CleaningStage:
    """One clean shard for each raw shard; no file when nothing survived."""

    def __init__(self, config: CleaningConfig) -> None:
        self._config = config
        libraries = {name: version(name) for name in ("selectolax", "ftfy", "xxhash")}
        self.configuration = ids.configuration_hash(config, cleaning=ALGORITHM, sketch=sketch.VERSION, **libraries)

    def run(self, work: Work[RawShard]) -> Iterator[Product]:
        raw = [document for path in work.files for document in documents.read(path)]
        cleaned: list[Document] = []
        originals: list[Document] = []  # of ``cleaned``
        drops: dict[str, Drop] = {}
        for document in raw:
            clean, reason, detail = self._clean(document)
            if reason:
                drops[document.id] = _drop(document, reason, detail=detail)
            else:
                cleaned.append(msgspec.structs.replace(document, text=clean, format="text"))
                originals.append(document)
        kept = []
        for document, original, holder in zip(cleaned, originals, self._holders(work, cleaned), strict=True):
            if holder:
                drops[original.id] = _drop(original, holder.reason, detail=holder.detail, duplicate_of=holder.of)
            else:
                kept.append(document)
        yield self._product(work, raw, kept, [drops[document.id] for document in raw if document.id in drops])

    def _clean(self, document: Document) -> tuple[str, str, str]:
        """(clean text, reason, detail)"""
        clean = text.clean(document)
        if mojibake.is_lost(clean):
            return clean, reasons.MOJIBAKE, ""
        return clean, *reasons.reason_of(clean, self._config)

    def _holders(self, work: Work[RawShard], cleaned: list[Document]) -> list[Duplicate | None]:
        if not self._config.exact_duplicates:
            return [None] * len(cleaned)
        return duplicates.holders(work.event.id, cleaned, work.claims, self._config.near_duplicates)

    def _product(self, work: Work[RawShard], raw: list[Document], kept: list[Document], drops: list[Drop]) -> Product:
        files = {}
        if kept:
            files[".parquet"] = (
                work.folder / f"{ids.shard_id('cleaning', (work.event.id,), self.configuration)}.parquet"
            )
            documents.write(files[".parquet"], kept)
        counts = Counts(
            documents_in=len(raw),
            documents_out=len(kept),
            dropped=dict(Counter(drop.reason for drop in drops)),
            bytes_in=_size(raw),
            bytes_out=_size(kept),
        )
        return Product(files=files, counts=counts, drops=drops)


def _drop(document: Document, reason: str, detail: str = "", duplicate_of: str = "") -> Drop:
    return Drop(
        document=document.id,
        source=document.source,
        reason=reason,
        text=document.text,
        detail=detail,
        duplicate_of=duplicate_of,
    )


def _size(documents: list[Document]) -> int:
    """Bytes of UTF-8."""
    return sum(len(document.text.encode()) for document in documents)
