"""A WordPiece vocabulary from text, in the form that BERT's tokenizers read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from mindstream_cleaning.config import CleaningConfig
from mindstream_cleaning.stage import CleaningStage
from mindstream_common import documents
from mindstream_common.claims import MemoryClaims
from mindstream_common.events import FileBundle, Object, RawShard, SourceFile
from mindstream_common.ids import sha256_file
from mindstream_common.stage import Work
from mindstream_ingest.config import IngestConfig
from mindstream_ingest.stage import IngestStage
from mindstream_ingest.submit import Found
from tokenizers import BertWordPieceTokenizer


def build(texts: Iterable[str], path: Path, *, size: int, lowercase: bool = True) -> int:
    """Write ``vocab.txt`` to ``path``; returns the number of entries (at most ``size``; fewer for little text).

    Every Hanzi is a token of its own, as in BERT's Chinese models.
    """
    tokenizer = BertWordPieceTokenizer(lowercase=lowercase)
    tokenizer.train_from_iterator(
        texts, vocab_size=size, min_frequency=2, limit_alphabet=size - 200, show_progress=False
    )
    entries = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    aside = path.with_name(f".{path.name}")
    aside.write_text("\n".join(entry for entry, _ in entries) + "\n", encoding="utf-8")
    aside.replace(path)
    return len(entries)


def texts(files: Sequence[Found], most: int = 20_000) -> Iterator[str]:
    """The cleaned texts of the first ``most`` documents in files of any kind that ingest reads."""
    yield from islice(_texts(files), most)


def _texts(files: Sequence[Found]) -> Iterator[str]:
    """The same stages as in the services, in this process and without a store."""
    ingest, cleaning, claims = IngestStage(IngestConfig()), CleaningStage(CleaningConfig()), MemoryClaims()
    with TemporaryDirectory(prefix="mindstream-vocabulary-") as name:
        folder = Path(name)
        objects = tuple(Object(key=file.name, size=file.size, sha256=sha256_file(file.path)) for file in files)
        names = tuple(SourceFile(name=file.name) for file in files)
        bundle = FileBundle(id="0" * 32, domain="vocabulary", objects=objects, created=0.0, files=names)
        work = Work(event=bundle, files=tuple(file.path for file in files), folder=folder, claims=claims)
        for number, product in enumerate(ingest.run(work)):
            id = f"{number:032x}"
            raw = RawShard(id=id, domain="vocabulary", objects=(), created=0.0, root=id, parents=(), documents=0)
            made = Work(event=raw, files=tuple(product.files.values()), folder=folder, claims=claims)
            for clean in cleaning.run(made):
                for path in clean.files.values():
                    yield from (document.text for document in documents.read(path))
