"""The Parquet files of documents: optional columns are there only when a document has something for them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from mindstream_common import documents
from mindstream_common.documents import Document, Signals

PLAIN = Document(id="a/0", source="f#1", format="text", text="高血压")
MEASURED = Document(id="a/1", source="f#2", format="text", text="药a", signals=Signals(characters=2, hanzi_share=0.5))
SPARED = Document(id="a/2", source="f#3", format="html", text="<p>好", spared="too_short,mojibake")


@pytest.mark.parametrize(
    ("found", "columns"),
    [
        ([PLAIN], []),
        ([PLAIN, MEASURED], ["characters", "hanzi_share"]),
        ([SPARED, PLAIN], ["spared"]),
        ([SPARED, PLAIN, MEASURED], ["characters", "hanzi_share", "spared"]),
        ([], []),
    ],
)
def test_what_was_written_is_read(tmp_path: Path, found: list[Document], columns: list[str]) -> None:
    path = tmp_path / "a.parquet"
    documents.write(path, found)
    assert pq.read_schema(path).names == ["id", "source", "format", "text", *columns]
    assert list(documents.read(path)) == found


def test_the_same_documents_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        documents.write(tmp_path / name, [PLAIN, MEASURED, SPARED] * 1000)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
