"""Exact duplicates across all shards, by claims: the first document that has a text keeps it."""

from __future__ import annotations

from collections.abc import Sequence

import xxhash
from mindstream_common.documents import Document
from mindstream_common.stage import Claims

BATCH = 128  # documents in one call: one round trip each


def holders(shard: str, documents: Sequence[Document], claims: Claims) -> list[str]:
    """For each document: ``""`` when it is the first with its text, else the id of the one that is.

    A redelivered shard makes the same calls and gets the same answers.
    """
    found: list[str] = []
    for start in range(0, len(documents), BATCH):
        batch = documents[start : start + BATCH]
        keys = [xxhash.xxh3_128_digest(document.text.encode()) for document in batch]
        found += claims.claim(f"{shard}/{start}", keys, [document.id for document in batch])
    return found
