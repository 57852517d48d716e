"""Tokenizing alone, against ``tokenizers.encode_batch``: identical ids on all text there is, and the ratio of CPU-seconds.

python data_tokens.py
"""

from __future__ import annotations

import csv
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from mindstream_tokenizer import vocabulary
from mindstream_tokenizer.encoder import Encoder
from tokenizers import BertWordPieceTokenizer

DATA = Path(__file__).parents[3] / "shared" / "data"
SAMPLE, ROUNDS = 1000, 5  # texts of the comparison of speed


def texts() -> Iterator[str]:
    """Every text of every file, pages as their sources too."""
    for path in sorted(DATA.glob("*.jsonl")):
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield from (value for value in json.loads(line).values() if isinstance(value, str))
    with (DATA / "medical_qa_gb18030.csv").open(encoding="gb18030", newline="") as file:
        for row in csv.reader(file):
            yield from row


def main() -> None:
    """Compare, measure, print one JSON."""
    found = vocabulary.load(DATA / "bert_vocab_zh.txt")
    mine, theirs = Encoder(found, True), BertWordPieceTokenizer(found.ids, lowercase=True)
    theirs._tokenizer.encode_special_tokens = True
    every = list(texts())
    batch = mine.encode([text.encode() for text in every])
    differing = 0
    for start in range(0, len(every), 512):
        for n, one in enumerate(theirs.encode_batch(every[start : start + 512], add_special_tokens=False), start):
            differing += not np.array_equal(batch.ids[batch.tokens[n] : batch.tokens[n + 1]], one.ids)
    with (DATA / "bench_text_5k.jsonl").open(encoding="utf-8") as file:
        some = [json.loads(line)["text"] for _, line in zip(range(SAMPLE), file, strict=False)]
    encoded = [text.encode() for text in some]
    ours, other = [], []
    for _ in range(ROUNDS):
        began = time.process_time()
        for start in range(0, SAMPLE, 250):
            mine.encode(encoded[start : start + 250])
        ours.append(time.process_time() - began)
        began = time.process_time()
        theirs.encode_batch(some, add_special_tokens=False)
        other.append(time.process_time() - began)
    size = sum(map(len, encoded)) / 1e6
    report = {
        "texts": len(every), "bytes": sum(len(text.encode()) for text in every), "differing": differing,
        "ours": size / statistics.median(ours), "encode_batch": size / statistics.median(other),
    }  # fmt: skip
    print(json.dumps(report))


if __name__ == "__main__":
    main()
