"""Whatever the bytes are: a document, a counted drop or a dead letter that names the file; in bounded memory and time."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from functools import cache

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ingest_files import docx, parquet, pdf, tarred, warc, zipped
from mindstream_common.documents import Document
from mindstream_common.events import FileBundle
from mindstream_common.stage import Product, Work
from mindstream_ingest.config import IngestConfig

Ingest = Callable[..., list[Product]]
Texts = Callable[[list[Product]], list[Document]]
Bundle = Callable[..., Work[FileBundle]]
RECORDS = b"\n".join(json.dumps({"text": f"t{n}" * 9, "n": n}).encode() for n in range(60))


@cache
def samples() -> dict[str, bytes]:
    """A whole file of every kind."""
    rows = [{"text": f"row {n}"} for n in range(50)]
    pages = b"".join(warc("response", f"http://{n}/", "text/html", b"<p>page</p>" * n) for n in range(9))
    return {
        "a.jsonl": RECORDS,
        "a.jsonl.gz": gzip.compress(RECORDS),
        "a.jsonl.zst": zstandard.compress(RECORDS),
        "a.json": b"[" + RECORDS.replace(b"\n", b",") + b"]",
        "a.csv": b'text,n\n"a ""b""\nc",1\nd,2\n' * 5,
        "a.parquet": parquet(rows, row_group_size=20),
        "a.warc": pages,
        "a.warc.gz": gzip.compress(pages),
        "a.zip": zipped({"x.jsonl": RECORDS, "y.txt": b"y", "z.csv.gz": gzip.compress(b"text\nz\n")}),
        "a.tar": tarred({"x.jsonl": RECORDS, "y.txt": b"y"}),
        "a.tar.gz": gzip.compress(tarred({"x.jsonl": RECORDS, "y.txt": b"y"})),
    }


def accounted(products: list[Product], texts: Texts) -> None:
    """Counts say what is there; every dead letter names its file."""
    documents = texts(products)
    assert sum(product.counts.documents_out for product in products) == len(documents)
    assert sum(product.counts.documents_in for product in products) == len(documents) + sum(
        len(product.drops) for product in products
    )
    for product in products:
        for bundle, error in product.dead:
            assert error.startswith(bundle.files[0].name)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_files_that_are_cut_or_damaged(bundle: Bundle, ingest: Ingest, texts: Texts, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(samples())))
    whole = samples()[name]
    broken = bytearray(whole[: data.draw(st.integers(0, len(whole)), label="cut")])
    for _ in range(data.draw(st.integers(0, 4), label="damages")):
        if broken:
            at = data.draw(st.integers(0, len(broken) - 1))
            broken[at : at + 1] = data.draw(st.binary(max_size=6))
    products = ingest(bundle({name: bytes(broken), "good.txt": b"good"}), IngestConfig(shard_documents=11))
    accounted(products, texts)
    assert texts(products)[-1].text == "good"


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_office_files_that_are_cut_or_damaged(
    bundle: Bundle, ingest: Ingest, texts: Texts, data: st.DataObject
) -> None:
    name, whole = data.draw(
        st.sampled_from([("a.pdf", pdf("一二三", "四五六")), ("a.docx", docx("一", table=[["二"]]))])
    )
    broken = bytearray(whole)
    at = data.draw(st.integers(0, len(broken) - 1))
    if data.draw(st.booleans()):
        del broken[at:]
    else:
        broken[at : at + 3] = data.draw(st.binary(max_size=9))
    accounted(ingest(bundle({name: bytes(broken)})), texts)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(max_size=300),
    name=st.sampled_from(
        ["a.txt", "a.md", "a.html", "a.tsv", "a.json", "a.warc", "a.tar", "a.zip", "a.parquet", "a.txt.gz"]
    ),
)
def test_any_bytes_under_any_name(bundle: Bundle, ingest: Ingest, texts: Texts, data: bytes, name: str) -> None:
    accounted(ingest(bundle({name: data})), texts)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.recursive(st.none() | st.text(max_size=9), lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner)), max_size=9))  # fmt: skip
def test_any_array_gives_as_many_records_as_it_has(
    bundle: Bundle, ingest: Ingest, texts: Texts, values: list[object]
) -> None:
    products = ingest(bundle({"a.json": json.dumps(values, indent=1).encode()}))
    accounted(products, texts)
    assert sum(product.counts.documents_in for product in products) == len(values)


@pytest.mark.parametrize(
    ("name", "data", "outcome"),
    [
        ("nul.txt", b"a\0b" * 999, "dead"),
        ("nul.jsonl", b'{"text": "a\\u0000b"}\n', "document"),
        ("surrogate.jsonl", b'{"text": "\\ud83d"}\n', "drop"),
        ("surrogate.json", b'[{"text": "\\udc00\\ud800"}]', "drop"),
        ("cesu.txt", b"\xed\xa0\xbd\xed\xb8\x80 text", "dead"),
        ("long.jsonl", json.dumps({"text": "药" * 1_300_000}, ensure_ascii=False).encode(), "document"),
        ("long.csv", b"text\n" + "药".encode() * 1_300_000 + b"\n", "document"),
        ("longer.jsonl", b'{"text": "' + b"x" * 20_000_000, "drop"),
        ("longer.txt", b"x" * 20_000_000, "dead"),
        ("deep.jsonl", b'{"text": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}\n", "drop"),
        ("deep.json", b'[{"text": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}]\n", "drop"),
        ("open.json", b"[" * 3_000_000, "dead"),
        ("escapes.json", b'[{"text": "' + b"\\u836f" * 500_000 + b'"}]', "document"),
        ("commas.json", b"[" + b"," * 600_000 + b"]", "nothing"),
        ("headers.warc", b"WARC/1.0\r\n" + b"a: b\r\n" * 500_000, "dead"),
        ("line.warc", b"WARC/1.0\r\na: " + b"b" * 5_000_000, "dead"),
        ("quote.csv", b'text\n"' + b"x\n" * 2_000_000, "drop"),
        ("tags.html", b"<div>" * 10_000 + b"x", "document"),
    ],
)  # fmt: skip
def test_hostile_text_is_a_counted_outcome(
    bundle: Bundle, ingest: Ingest, texts: Texts, name: str, data: bytes, outcome: str
) -> None:
    began = time.process_time()
    products = ingest(bundle({name: data}))
    assert time.process_time() - began < 6.0
    accounted(products, texts)
    found = {
        "document": len(texts(products)),
        "drop": sum(len(product.drops) for product in products),
        "dead": sum(len(product.dead) for product in products),
    }
    assert found == {**dict.fromkeys(found, 0), **({outcome: 1} if outcome in found else {})}


def zeros(megabytes: int, first: bytes = b"") -> bytes:
    """gzip of so many megabytes of spaces, made without holding them."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packer.compress(first)]
    parts += [packer.compress(b" " * 1_000_000) for _ in range(megabytes)]
    return b"".join(parts) + packer.flush()


@pytest.mark.parametrize("kind", ["jsonl.gz", "txt.gz", "json.gz", "csv.gz", "warc.gz", "tar.gz", "zip"])
def test_bombs_cost_little_memory(bundle: Bundle, ingest: Ingest, kind: str) -> None:
    first = {"csv.gz": b"text\n", "json.gz": b"[", "warc.gz": b"WARC/1.0\r\nContent-Length: 999999999999\r\n\r\n"}
    if kind == "zip":
        data = zipped({f"{n}.jsonl": b" " * 30_000_000 for n in range(5)}, zipfile.ZIP_DEFLATED)
    else:
        data = zeros(150, first.get(kind, b""))
    work = bundle({f"bomb.{kind}": data, "good.txt": b"good"})
    tracemalloc.start()
    try:
        products = ingest(work)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [error.split(":")[0].split("/")[0] for product in products for _, error in product.dead] == [f"bomb.{kind}"]
    assert sum(product.counts.documents_out for product in products) == 1
    assert peak < 60_000_000
