"""How fast cleaning is, rule by rule: ``python tests/bench/cleaning.py [FILE.jsonl] [text|html] [section.key=value ...]``.

MB of UTF-8 that went in per CPU-second on one core, the best of three rounds; without reading, writing and duplicates.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from mindstream_cleaning.chain import Chain
from mindstream_cleaning.config import CleaningConfig
from mindstream_cleaning.page import Page
from mindstream_common import config
from mindstream_common.documents import Document

DATA = Path(__file__).parents[3] / "shared" / "data" / "bench_text_5k.jsonl"
ROUNDS = 3


def seconds(call: Callable[[], Any]) -> float:
    """CPU-seconds of a call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def rules(chain: Chain, documents: list[Document]) -> dict[str, float]:
    """CPU-seconds of each rule over all documents that the rules before it have left."""
    found = {}
    pages = [Page(text=document.text, format=document.format) for document in documents]
    for name, rule in chain.rules:
        verdicts: list[Any] = []
        found[name] = seconds(lambda rule=rule, verdicts=verdicts, pages=pages: verdicts.extend(map(rule, pages)))
        pages = [page for page, verdict in zip(pages, verdicts, strict=True) if verdict is None]
    return found


def settings(texts: list[str]) -> CleaningConfig:
    """Section ``cleaning`` from ``key.key=value`` texts."""
    data: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        *outer, last = name.split(".")
        place = data
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = config.parse(value)
    return msgspec.convert(data, CleaningConfig)


def main(path: Path, format: str, set: list[str]) -> None:
    """Print the table."""
    texts = [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").split("\n") if line]
    documents = [Document(id=f"a/{n}", source="a", format=format, text=text) for n, text in enumerate(texts)]
    size = sum(len(text.encode()) for text in texts) / 1e6
    chain = Chain(settings(set))
    whole = min(seconds(lambda: [chain.clean(document) for document in documents]) for _ in range(ROUNDS))
    rounds = [rules(chain, documents) for _ in range(ROUNDS)]
    counts: Counter[str] = Counter()
    for document in documents:
        page, verdict = chain.clean(document)
        counts.update(page.counts)
        counts.update([f"dropped {verdict.reason}"] if verdict else [])
    print(f"{path.name}: {len(texts)} documents, {size:.1f} MB")
    for name, _ in chain.rules:
        best = min(found[name] for found in rounds)
        print(f"  {name:14} {size / best:9.0f} MB/s")
    print(f"  {'whole chain':14} {size / whole:9.1f} MB/s")
    print("  " + ", ".join(f"{name} {number}" for name, number in sorted(counts.items())))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    plain = [argument for argument in arguments if "=" not in argument]
    main(
        Path(plain[0]) if plain else DATA,
        plain[1] if len(plain) > 1 else "text",
        [argument for argument in arguments if "=" in argument],
    )
