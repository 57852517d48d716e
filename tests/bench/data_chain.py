"""The data plane in this process, on one core: files in, token rows (and MindRecord) out. Prints one JSON.

    python data_chain.py FILE.jsonl [REPEAT]

CPU-seconds of this process, all threads; the best and the median of REPEAT runs, each with claims of its own. Building
the stages (imports, the tokenizer's table) is not counted: a service does it once.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mindstream_cleaning.config import CleaningConfig
from mindstream_cleaning.stage import DECLARATION as CLEANING
from mindstream_cleaning.stage import CleaningStage
from mindstream_common import ids
from mindstream_common.claims import MemoryClaims
from mindstream_common.events import Event, FileBundle, Object, SourceFile
from mindstream_common.stage import Declaration, Product, Work
from mindstream_ingest.config import IngestConfig
from mindstream_ingest.stage import DECLARATION as INGEST
from mindstream_ingest.stage import IngestStage
from mindstream_tokenizer.config import TokenizerConfig
from mindstream_tokenizer.stage import DECLARATION as TOKENIZER
from mindstream_tokenizer.stage import TokenizerStage
from mindstream_writer.config import WriterConfig
from mindstream_writer.stage import DECLARATION as WRITER
from mindstream_writer.stage import WriterStage

DATA = Path(__file__).parents[3] / "shared" / "data"
VOCAB = DATA / "bert_vocab_zh.txt"
Inputs = Sequence[tuple[Event, tuple[Path, ...]]]


class Chain:
    """The four stages, built once."""

    def __init__(self) -> None:
        tokenizer = TokenizerStage(TokenizerConfig(), VOCAB)
        entries = VOCAB.read_bytes().count(b"\n")
        self.stages: list[tuple[Any, Declaration]] = [
            (IngestStage(IngestConfig()), INGEST),
            (CleaningStage(CleaningConfig()), CLEANING),
            (tokenizer, TOKENIZER),
            (WriterStage(WriterConfig(), entries, ids.sha256_file(VOCAB)), WRITER),
        ]

    def run(self, path: Path, folder: Path) -> dict[str, float]:
        """CPU-seconds by stage, and what came of it."""
        found = Object(key=path.name, size=path.stat().st_size, sha256=ids.sha256_file(path))
        bundle = FileBundle(
            id=ids.shard_id("bench", (found.sha256,), ""), domain="bench", created=0.0, objects=(found,),
            files=(SourceFile(name=path.name),),
        )  # fmt: skip
        inputs: Inputs = [(bundle, (path,))]
        claims = MemoryClaims()
        numbers: dict[str, float] = {}
        for stage, declaration in self.stages:
            began = time.process_time()
            made = list(self._stage(stage, declaration, inputs, folder, claims))
            numbers[declaration.name] = time.process_time() - began
            products = [product for _, product in made]
            numbers |= {
                f"{declaration.name}_documents": sum(p.counts.documents_out for p in products),
                f"{declaration.name}_bytes_in": sum(p.counts.bytes_in for p in products),
                "rows": sum(p.counts.rows for p in products),
            }
            inputs = [(event, tuple(p.files.values())) for event, p in made if event.objects]
        return numbers

    def _stage(self, stage: Any, declaration: Declaration, inputs: Inputs, folder: Path, claims: MemoryClaims) -> Any:
        for event, paths in inputs:
            scratch = folder / f"{declaration.name}-{event.id}"
            scratch.mkdir()
            for part, product in enumerate(stage.run(Work(event=event, files=paths, folder=scratch, claims=claims))):
                yield self._next(stage, declaration, event, part, product), product

    def _next(self, stage: Any, declaration: Declaration, event: Any, part: int, product: Product) -> Event:
        objects = tuple(Object(key=p.name, size=p.stat().st_size, sha256="0" * 64) for p in product.files.values())
        id = ids.shard_id(declaration.name, (event.id,), stage.configuration, part)
        makes: Any = declaration.makes
        return makes(  # type: ignore[no-any-return]
            id=id, domain="bench", objects=objects, created=0.0, root=getattr(event, "root", id), parents=(event.id,),
            documents=product.counts.documents_out, **product.fields,
        )  # fmt: skip


def main(path: Path, repeat: int) -> None:
    """Measure, and print."""
    import mindspore.mindrecord  # noqa: F401 - loads for seconds, once

    chain = Chain()
    with path.open("rb") as file:
        text = sum(len(json.loads(line)["text"].encode()) for line in file)
    runs = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(chain.run(path, Path(folder)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"bytes": text, "runs": runs, "peak_rss": peak}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
