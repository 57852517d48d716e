"""Cleaning: raw documents become clean ones, or drops with a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version

import msgspec
from mindstream_common import documents, ids
from mindstream_common.documents import Document, Signals
from mindstream_common.events import CleanShard, RawShard
from mindstream_common.stage import Counts, Declaration, Drop, Product, Work

from mindstream_cleaning import duplicates, letters, sketch
from mindstream_cleaning.chain import Chain
from mindstream_cleaning.config import CleaningConfig
from mindstream_cleaning.duplicates import Duplicate

ALGORITHM = "3"  # raised when the same documents would give other texts
DECLARATION = Declaration(name="cleaning", takes=RawShard, makes=CleanShard, claims=True, claims_version=sketch.VERSION)
# Whose versions decide the texts.
LIBRARIES = ("selectolax", "ftfy", "xxhash", "zstandard", "opencc", "ahocorasick-rs")


class CleaningStage:
    """One clean shard for each raw shard; no file when nothing survived."""

    def __init__(self, config: CleaningConfig) -> None:
        self._config = config
        self._chain = Chain(config)
        self.configuration = self._chain.configuration(
            cleaning=ALGORITHM, sketch=sketch.VERSION, **{name: version(name) for name in LIBRARIES}
        )

    def run(self, work: Work[RawShard]) -> Iterator[Product]:
        cleaned = _Cleaned()
        for path in work.files:
            for document in documents.read(path):
                self._clean(document, cleaned)
        yield self._product(work, cleaned, self._kept(work, cleaned))

    def _clean(self, document: Document, cleaned: _Cleaned) -> None:
        page, verdict = self._chain.clean(document, frozenset(document.spared.split(",")))
        cleaned.read += 1
        cleaned.bytes += len(document.text.encode())
        cleaned.extra.update(page.counts)
        if verdict is not None:
            cleaned.drops[document.id] = _drop(document, verdict.reason, detail=verdict.detail)
            return
        cleaned.texts.append(Document(id=document.id, source=document.source, format=page.format, text=page.text))
        cleaned.originals.append(document)

    def _kept(self, work: Work[RawShard], cleaned: _Cleaned) -> list[Document]:
        """The documents that repeat none; the others are dropped."""
        kept = []
        for document, original, holder in zip(
            cleaned.texts, cleaned.originals, self._holders(work, cleaned), strict=True
        ):
            if holder:
                cleaned.drops[original.id] = _drop(original, holder.reason, holder.detail, duplicate_of=holder.of)
            else:
                kept.append(document)
        return kept

    def _holders(self, work: Work[RawShard], cleaned: _Cleaned) -> list[Duplicate | None]:
        """For each document what it repeats. Those that are spared are not asked about."""
        holders: list[Duplicate | None] = [None] * len(cleaned.texts)
        if not self._config.exact_duplicates:
            return holders
        asked = [n for n, original in enumerate(cleaned.originals) if "duplicate" not in original.spared]
        texts = [cleaned.texts[n] for n in asked]
        found = duplicates.holders(work.event.id, texts, work.claims, self._config.near_duplicates)
        for number, holder in zip(asked, found, strict=True):
            holders[number] = holder
        return holders

    def _product(self, work: Work[RawShard], cleaned: _Cleaned, kept: list[Document]) -> Product:
        files = {}
        if kept:
            name = ids.shard_id("cleaning", (work.event.id,), self.configuration)
            files[".parquet"] = work.folder / f"{name}.parquet"
            documents.write(files[".parquet"], _measured(kept))
        drops = sorted(cleaned.drops.values(), key=lambda drop: _row(drop.document))
        counts = Counts(
            documents_in=cleaned.read,
            documents_out=len(kept),
            dropped=dict(Counter(drop.reason for drop in drops)),
            bytes_in=cleaned.bytes,
            bytes_out=sum(len(document.text.encode()) for document in kept),
            extra=dict(sorted(cleaned.extra.items())),
        )
        return Product(files=files, counts=counts, drops=drops)


@dataclass(slots=True)
class _Cleaned:
    """A shard that is being cleaned: what passed the rules, what these were, what did not pass, what was counted."""

    read: int = 0
    bytes: int = 0  # of UTF-8
    texts: list[Document] = field(default_factory=list)
    originals: list[Document] = field(default_factory=list)  # of ``texts``
    drops: dict[str, Drop] = field(default_factory=dict)
    extra: Counter[str] = field(default_factory=Counter)


def _measured(kept: list[Document]) -> list[Document]:
    found = letters.count_all([document.text for document in kept])
    return [
        msgspec.structs.replace(
            document, signals=Signals(characters=len(document.text), hanzi_share=round(counted.hanzi_share, 4))
        )
        for document, counted in zip(kept, found, strict=True)
    ]


def _row(id: str) -> int:
    return int(id.rsplit("/", 1)[1])


def _drop(document: Document, reason: str, detail: str = "", duplicate_of: str = "") -> Drop:
    return Drop(
        document=document.id,
        source=document.source,
        reason=reason,
        text=document.text,
        detail=detail,
        duplicate_of=duplicate_of,
    )
