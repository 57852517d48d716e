"""Exact and near duplicates across all shards, by claims: the first document that has a text keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import xxhash
from mindstream_common.config import Section
from mindstream_common.documents import Document
from mindstream_common.signatures import Sketches
from mindstream_common.stage import Claims, Holder
from msgspec import Meta

from mindstream_cleaning import sketch
from mindstream_cleaning.reasons import EXACT_DUPLICATE, NEAR_DUPLICATE

BATCH = 128  # documents in one call: one round trip each


class NearDuplicates(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a document that is much like one that was kept before is dropped, and how much alike they must be.

    ``threshold``: Jaccard index of their character 5-grams without white space and punctuation. At 0.8 a text of 200
    characters may differ in four places; below 0.75 the bands would miss too many. Documents of fewer than 50
    characters are compared as a whole.
    """

    enabled: bool = True
    threshold: Annotated[float, Meta(ge=0.75, le=1.0)] = 0.8


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A document that repeats the document ``of``, which was kept."""

    of: str
    reason: str
    detail: str


def holders(
    shard: str, documents: Sequence[Document], claims: Claims, config: NearDuplicates
) -> list[Duplicate | None]:
    """For each document: what it repeats, or ``None`` when it is the first with its text.

    A redelivered shard makes the same calls and gets the same answers.
    """
    found: list[Holder] = []
    for start in range(0, len(documents), BATCH):
        batch = documents[start : start + BATCH]
        texts = [document.text for document in batch]
        sketches = sketch.sketches(texts) if config.enabled else [b""] * len(texts)
        found += claims.claim_similar(
            f"{shard}/{start}",
            [xxhash.xxh3_128_digest(text.encode()) for text in texts],
            [document.id for document in batch],
            Sketches(threshold=config.threshold, bands=sketch.BANDS, of=sketches),
        )
    return [_duplicate(holder, config) for holder in found]


def _duplicate(holder: Holder, config: NearDuplicates) -> Duplicate | None:
    if not holder.owner:
        return None
    if holder.exact:
        return Duplicate(holder.owner, EXACT_DUPLICATE, "")
    detail = f"similarity {holder.similarity:.3f}, cleaning.near_duplicates.threshold is {config.threshold}"
    return Duplicate(holder.owner, NEAR_DUPLICATE, detail)
