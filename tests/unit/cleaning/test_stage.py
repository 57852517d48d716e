from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mindstream_cleaning.config import CleaningConfig
from mindstream_cleaning.reasons import REASONS
from mindstream_cleaning.stage import CleaningStage
from mindstream_common import documents
from mindstream_common.claims import MemoryClaims
from mindstream_common.documents import Document
from mindstream_common.events import RawShard
from mindstream_common.signatures import Sketches
from mindstream_common.stage import Claims, Holder, Product, Work

Clean = Callable[..., Product]


def kept(product: Product) -> list[Document]:
    return [document for path in product.files.values() for document in documents.read(path)]


@pytest.fixture
def clean(tmp_path: Path) -> Clean:
    """``clean(["text", ("html", "<p>...")], id=..., claims=...)`` → the one product, balanced."""
    numbers = itertools.count()

    def run(
        texts: Sequence[str | tuple[str, str]],
        id: str = "a" * 32,
        claims: Claims | None = None,
        config: CleaningConfig | None = None,
    ) -> Product:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        pairs = [("text", text) if isinstance(text, str) else text for text in texts]
        documents.write(
            folder / "in.parquet",
            [Document(id=f"{id}/{n}", source=f"f.jsonl#{n}", format=f, text=t) for n, (f, t) in enumerate(pairs)],
        )
        event = RawShard(id=id, domain="test", objects=(), created=1.0, root=id, parents=(), documents=len(pairs))
        work = Work(event=event, files=(folder / "in.parquet",), folder=folder, claims=claims or MemoryClaims())
        [product] = CleaningStage(config or CleaningConfig()).run(work)
        product.counts.check()
        assert product.counts.documents_in == len(pairs)
        assert product.counts.dropped.keys() <= set(REASONS)
        return product

    return run


def test_each_drop_has_its_reason_its_place_and_its_text(clean: Clean) -> None:
    product = clean(
        [
            "高血压患者可以吃",
            "  ",
            "12345 --",
            "好",
            "锟斤拷锟斤拷患者",
            ("html", "<p>高血<b>压</b>患者可以吃</p>"),
            ("html", "<p></p>"),
        ]
    )
    assert [(d.id, d.format, d.text) for d in kept(product)] == [("a" * 32 + "/0", "text", "高血压患者可以吃")]
    assert [(d.document[-2:], d.reason, d.text) for d in product.drops] == [
        ("/1", "empty", "  "),
        ("/2", "symbols_only", "12345 --"),
        ("/3", "too_short", "好"),
        ("/4", "mojibake", "锟斤拷锟斤拷患者"),
        ("/5", "exact_duplicate", "<p>高血<b>压</b>患者可以吃</p>"),
        ("/6", "empty", "<p></p>"),
    ]
    assert product.drops[4].duplicate_of == "a" * 32 + "/0"
    assert product.drops[2].source == "f.jsonl#3"
    assert product.counts.dropped == {
        "empty": 2,
        "symbols_only": 1,
        "too_short": 1,
        "mojibake": 1,
        "exact_duplicate": 1,
    }


def test_nothing_left_is_a_product_without_a_file(clean: Clean) -> None:
    product = clean(["", "好"])
    assert product.files == {}
    assert product.counts.dropped == {"empty": 1, "too_short": 1}


def test_t8_two_megabytes_without_punctuation_pass_whole(clean: Clean) -> None:
    text = "".join(random.Random(8).choices([chr(c) for c in range(0x4E00, 0x9FA0)], k=700_000))
    assert [d.text for d in kept(clean([text]))] == [text]


def test_duplicates_are_found_across_shards_and_a_redelivery_changes_nothing(clean: Clean) -> None:
    claims = MemoryClaims()
    first = clean(["第一篇文章", "第二篇文章"], id="a" * 32, claims=claims)
    second = clean(["第二篇文章", "第三篇文章"], id="b" * 32, claims=claims)
    assert [d.duplicate_of for d in second.drops] == ["a" * 32 + "/1"]
    for _ in range(2):
        again = clean(["第二篇文章", "第三篇文章"], id="b" * 32, claims=claims)
        assert (again.counts, list(again.drops)) == (second.counts, list(second.drops))
        assert again.files[".parquet"].read_bytes() == second.files[".parquet"].read_bytes()
        assert clean(["第一篇文章", "第二篇文章"], id="a" * 32, claims=claims).counts == first.counts


def test_claims_are_asked_in_batches_that_name_the_shard_and_the_row(clean: Clean) -> None:
    class Recorder(MemoryClaims):
        calls: list[tuple[str, int]]

        def claim_similar(
            self, batch: str, keys: Sequence[bytes], owners: Sequence[str], sketches: Sketches
        ) -> list[Holder]:
            self.calls.append((batch, len(keys)))
            assert {len(key) for key in keys} == {16}
            return super().claim_similar(batch, keys, owners, sketches)

    claims = Recorder()
    claims.calls = []
    clean([f"第{n}篇文章好" for n in range(300)] + ["好"], claims=claims)
    assert claims.calls == [("a" * 32 + "/0", 128), ("a" * 32 + "/128", 128), ("a" * 32 + "/256", 44)]


def test_duplicates_can_be_kept(clean: Clean) -> None:
    product = clean(["第一篇文章", "第一篇文章"], config=CleaningConfig(exact_duplicates=False))
    assert len(kept(product)) == 2


TEXTS = st.text(max_size=30) | st.sampled_from(
    ["好", "高血压患者可以吃", "锟斤拷锟斤拷", "１２３", "<p>高血压患者可以吃"]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.tuples(st.sampled_from(["text", "html"]), TEXTS), max_size=20))
def test_every_document_is_kept_or_dropped_once(clean: Clean, texts: list[tuple[str, str]]) -> None:
    product = clean(texts)
    ids = [d.id for d in kept(product)] + [d.document for d in product.drops]
    assert sorted(ids) == sorted("a" * 32 + f"/{n}" for n in range(len(texts)))
    survivors = [d.text for d in kept(product)]
    assert len(set(survivors)) == len(survivors)
    assert {d.duplicate_of for d in product.drops} - {""} <= {d.id for d in kept(product)}
