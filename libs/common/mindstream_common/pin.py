"""A pipeline has one tokenizer, for ever: the first one that works in it is pinned in the store.

Without the pin one start with another vocabulary would put rows into the catalog that no model of the pipeline can read.
"""

from __future__ import annotations

import time
from itertools import zip_longest
from pathlib import Path

import msgspec

from mindstream_common import logs
from mindstream_common.errors import ConfigError, Transient
from mindstream_common.ids import sha256_bytes
from mindstream_common.store import Store


class Pin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``pipeline/<name>/tokenizer.json``: which vocabulary the pipeline uses. Its bytes lie beside it."""

    sha256: str
    key: str


def pin_tokenizer(store: Store, pipeline: str, vocab: Path) -> None:
    """Pin ``vocab`` as the pipeline's tokenizer, or make sure that it is the one. Waits for a store that is away.

    Raises:
        ConfigError: the pipeline uses another one; with both hashes and the first line that differs.
    """
    backoff = 0.5
    while True:
        try:
            return _pin(store, pipeline, vocab)
        except Transient as error:
            logs.get().warning("waiting for the store", error=str(error))
            time.sleep(backoff)
            backoff = min(15.0, backoff * 2)


def _pin(store: Store, pipeline: str, vocab: Path) -> None:
    data = vocab.read_bytes()
    folder = f"pipeline/{pipeline}"
    mine = Pin(sha256=sha256_bytes(data), key=f"{folder}/{sha256_bytes(data)}")
    name = f"{folder}/tokenizer.json"
    if not store.exists(name):
        store.put_bytes(mine.key, data)
        if store.put_if_absent(name, msgspec.json.encode(mine)):
            return
    found = msgspec.json.decode(store.get_bytes(name), type=Pin)
    if found.sha256 != mine.sha256:
        raise ConfigError(
            f"base.vocab is {vocab} (sha256 {mine.sha256}), but the pipeline {pipeline!r} was begun with another "
            f"tokenizer (sha256 {found.sha256}); {_first_difference(data, store.get_bytes(found.key))}. A pipeline has "
            "one tokenizer: put that one back, or begin another pipeline (another --state folder, or pipeline.name on "
            "a cluster)."
        )


def _first_difference(mine: bytes, theirs: bytes) -> str:
    for number, (ours, other) in enumerate(zip_longest(mine.split(b"\n"), theirs.split(b"\n"))):
        if ours != other:
            return f"line {number + 1} is {_shown(ours)} here and {_shown(other)} there"
    return "the files are the same but for their hashes"


def _shown(line: bytes | None) -> str:
    return "missing" if line is None else repr(line[:80].decode("utf-8", "replace"))
