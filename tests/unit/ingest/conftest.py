"""A bundle of files as ingest gets it: local paths, an event, claims in a dictionary."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mindstream_common import documents, ids
from mindstream_common.claims import MemoryClaims
from mindstream_common.documents import Document
from mindstream_common.events import FileBundle, Object, SourceFile
from mindstream_common.stage import Claims, Counts, Product, Work
from mindstream_ingest.config import IngestConfig
from mindstream_ingest.stage import IngestStage

Bundle = Callable[..., Work[FileBundle]]


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """``bundle({"a.txt": b"..."}, id=..., claims=...)``; the paths are not the names, as in the runner."""
    numbers: Iterator[int] = iter(range(1000))

    def make(
        files: dict[str, bytes],
        id: str = "0" * 32,
        claims: Claims | None = None,
        known: tuple[Counts, ...] = (),
        **options: Any,
    ) -> Work[FileBundle]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        objects, paths = [], []
        for index, data in enumerate(files.values()):
            path = folder / f"in-{index}"
            path.write_bytes(data)
            paths.append(path)
            objects.append(Object(key=f"files/{index}", size=len(data), sha256=ids.sha256_bytes(data)))
        event = FileBundle(
            id=id,
            domain="test",
            objects=tuple(objects),
            created=1.0,
            files=tuple(SourceFile(name=name, **options) for name in files),
        )
        return Work(event=event, files=tuple(paths), folder=folder, claims=claims or MemoryClaims(), known=known)

    return make


@pytest.fixture
def ingest() -> Callable[..., list[Product]]:
    """Run the stage over a bundle and check that every product balances."""

    def run(work: Work[FileBundle], config: IngestConfig | None = None) -> list[Product]:
        with contextlib.closing(IngestStage(config or IngestConfig())) as stage:
            products = list(stage.run(work))
        for product in products:
            product.counts.check()
        return products

    return run


@pytest.fixture
def texts() -> Callable[[list[Product]], list[Document]]:
    """The documents of all products, in order."""

    def of(products: list[Product]) -> list[Document]:
        return [
            document for product in products for path in product.files.values() for document in documents.read(path)
        ]

    return of
