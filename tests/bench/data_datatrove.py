"""The same job by datatrove, in its own environment: text of pages, mojibake, personal data, short texts, near
duplicates with their words of Chinese (``cmn_Hani``), tokens. Prints one JSON: bytes read, CPU-seconds, documents left.

    python data_datatrove.py FILE.jsonl VOCAB DOCUMENTS [repetition]

With ``repetition`` its filter for repeated lines and n-grams is in the chain too, as it is in ours. Each pass is a
process of its own: datatrove cannot copy a step whose words of Chinese another step has loaded.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.filters import GopherRepetitionFilter, LambdaFilter
from datatrove.pipeline.formatters import FTFYFormatter, PIIFormatter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.pipeline.writers import JsonlWriter
from tokenizers import BertWordPieceTokenizer

BUCKETS = 2  # the pass that takes a task for each bucket


def pipelines(source: str, folder: Path, tokenizer: str, html: bool, repetition: bool) -> list[list[object]]:
    """The passes: it needs four, because its near duplicates are found over files."""
    config = MinhashConfig(n_grams=5, num_buckets=16, hashes_per_bucket=8)
    at = {name: str(folder / name) for name in ("clean", "signatures", "buckets", "removed", "tokens", "tmp")}
    clean = [
        JsonlReader(source),
        *([Trafilatura(favour_precision=False, timeout=10)] if html else []),
        FTFYFormatter(),
        PIIFormatter(),
        LambdaFilter(lambda document: len(document.text) >= 5),
        *([GopherRepetitionFilter(language="cmn_Hani")] if repetition else []),
        JsonlWriter(at["clean"], compression=None),
    ]
    signatures = MinhashDedupSignature(at["signatures"], config=config, language="cmn_Hani")
    return [
        clean,
        [JsonlReader(at["clean"]), signatures],
        [MinhashDedupBuckets(at["signatures"], at["buckets"], config=config)],
        [MinhashDedupCluster(at["buckets"], at["removed"], config=config)],
        [
            JsonlReader(at["clean"]),
            MinhashDedupFilter(at["removed"]),
            DocumentTokenizer(
                at["tokens"], local_working_dir=at["tmp"], tokenizer_name_or_path=tokenizer, eos_token="[SEP]"
            ),
        ],
    ]


def run(number: int, *arguments: object) -> None:
    """One pass."""
    steps = pipelines(*arguments)[number]  # type: ignore[arg-type]
    folder = Path(str(arguments[1]))
    tasks = 16 if number == BUCKETS else 1
    LocalPipelineExecutor(pipeline=steps, tasks=tasks, workers=1, logging_dir=str(folder / f"log{number}")).run()


def main(path: Path, vocab: str, most: int, repetition: bool) -> None:
    """Measure, and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        BertWordPieceTokenizer(vocab, lowercase=True).save(str(folder / "tokenizer.json"))
        lines = path.read_text(encoding="utf-8").split("\n")[:most]
        texts = [json.loads(line) for line in lines if line]
        (folder / "in").mkdir()
        (folder / "in" / "0.jsonl").write_text("\n".join(lines), encoding="utf-8")
        html = texts[0]["text"].lstrip().startswith("<")
        arguments = (str(folder / "in"), folder, str(folder / "tokenizer.json"), html, repetition)
        began = _cpu()
        for number in range(len(pipelines(*arguments))):
            process = get_context("fork").Process(target=run, args=(number, *arguments))
            process.start()
            process.join()
            if process.exitcode:
                sys.exit(f"pass {number} ended with {process.exitcode}")
        seconds = _cpu() - began
        size = sum(len(text["text"].encode()) for text in texts)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(json.dumps({"bytes": size, "seconds": seconds, "documents": len(texts), "peak_rss": peak}))


def _cpu() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), "repetition" in sys.argv[4:])
