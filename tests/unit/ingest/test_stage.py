from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mindstream_common.claims import MemoryClaims
from mindstream_common.documents import Document
from mindstream_common.events import FileBundle
from mindstream_common.ids import shard_id
from mindstream_common.stage import Product, Work
from mindstream_ingest.config import IngestConfig
from mindstream_ingest.stage import IngestStage

Ingest = Callable[..., list[Product]]
Texts = Callable[[list[Product]], list[Document]]
Bundle = Callable[..., Work[FileBundle]]
DATA = Path(__file__).parents[4] / "shared" / "data"


def lines(*records: object) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def test_every_format_with_its_place(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    work = bundle(
        {
            "folder/笔记.txt": "一\r\n二\u2028三".encode(),
            "qa.jsonl": lines({"title": "题", "ask": "问", "answer": "答", "id": 7})
            + b"\n"
            + lines({"text": "文\u2028本"}),
            "page.HTML": "<p>页</p>".encode(),
            "t.csv": 'id,ask,answer\r\n1,"问,\n一",答\r\n2,问二,\r\n'.encode(),
        }
    )
    [product] = ingest(work)
    shard = shard_id("ingest", ("0" * 32,), IngestStage(IngestConfig()).configuration, 0)
    assert [(d.id, d.source, d.format, d.text) for d in texts([product])] == [
        (f"{shard}/0", "folder/笔记.txt", "text", "一\n二\u2028三"),
        (f"{shard}/1", "qa.jsonl#1", "text", "题\n问\n答"),
        (f"{shard}/2", "qa.jsonl#3", "text", "文\u2028本"),
        (f"{shard}/3", "page.HTML", "html", "<p>页</p>"),
        (f"{shard}/4", "t.csv#2", "text", "问,\n一\n答"),
        (f"{shard}/5", "t.csv#4", "text", "问二"),
    ]
    assert product.fields == {}
    assert product.counts.extra == {"files": 4}


def test_html_in_records_is_known_by_field_or_looks(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    records = lines(
        {"html": "<p>一</p>"},
        {"text": "<!DOCTYPE html><html>二"},
        {"title": "a<b", "html": "<p>三</p>"},
        {"text": "1 <p>"},
    )
    found = texts(ingest(bundle({"a.jsonl": records})))
    assert [(d.format, d.text) for d in found] == [
        ("html", "<p>一</p>"),
        ("html", "<!DOCTYPE html><html>二"),
        ("html", "<p>a&lt;b</p>\n<p>三</p>"),
        ("text", "1 <p>"),
    ]


def test_a_files_own_text_fields_win(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    work = bundle({"a.jsonl": lines({"text": "不要", "body": "要"})}, text_fields=("body",))
    assert [d.text for d in texts(ingest(work))] == ["要"]


def test_bad_records_are_drops_with_their_place_and_the_rest_goes_on(
    bundle: Bundle, ingest: Ingest, texts: Texts
) -> None:
    jsonl = b'{"text": "\xe4\xb8\x80"}\n{"text": \n[1]\n{"id": 3}\n{"text": null}\n{"text": "\\ud800"}\n{"text": "\xe4\xba\x8c"}'
    csv = "id,text\n1,一\n2,二,三\n3,二\n".encode()
    work = bundle({"a.jsonl": jsonl, "b.csv": csv, "c.csv": b'text\n"open\nnext\n'})
    [product] = ingest(work)
    assert [d.text for d in texts([product])] == ["一", "二", "一", "二"]
    assert [(d.source, d.reason) for d in product.drops] == [
        ("a.jsonl#2", "malformed"),
        ("a.jsonl#3", "malformed"),
        ("a.jsonl#4", "no_text"),
        ("a.jsonl#5", "no_text"),
        ("a.jsonl#6", "malformed"),
        ("b.csv#3", "malformed"),
        ("c.csv#2", "malformed"),
    ]
    assert product.counts.dropped == {"malformed": 5, "no_text": 2}
    assert [d.text for d in product.drops][-2:] == ["2,二,三\n", '"open\nnext\n']
    assert "id" in product.drops[2].detail
    assert len({d.document for d in product.drops}) == 7


def test_records_that_are_too_long_are_drops(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    config = IngestConfig(record_bytes=2000)
    long = "长" * 5000
    work = bundle(
        {
            "a.jsonl": lines({"text": "一"}, {"text": long}, {"text": "二"}),
            "b.csv": f"text\n一\n{long}\n二\n".encode(),
            "c.txt": long.encode(),
        }
    )
    [product] = ingest(work, config)
    assert [d.text for d in texts([product])] == ["一", "二", "一", "二"]
    assert [(d.source, d.reason) for d in product.drops] == [("a.jsonl#2", "too_long"), ("b.csv#3", "too_long")]
    assert "15013 bytes" in product.drops[0].detail
    assert [error.split(":")[0] for _, error in product.dead] == ["c.txt"]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_compressed_files(
    bundle: Bundle, ingest: Ingest, texts: Texts, pack: Callable[[bytes], bytes], ending: str
) -> None:
    plain = lines(*({"text": f"第{i}条"} for i in range(1000)))
    right = (pack is gzip.compress) == (ending == ".gz")
    [product] = ingest(bundle({f"a.jsonl{ending}": pack(plain) + pack(plain)}))  # both formats allow several members
    if right:
        assert [d.text for d in texts([product])] == [f"第{i}条" for i in range(1000)] * 2
    else:
        assert [error.split(":")[0] for _, error in product.dead] == [f"a.jsonl{ending}"]


def test_files_that_cannot_be_read_are_dead_letters_and_the_others_go_on(
    bundle: Bundle, ingest: Ingest, texts: Texts
) -> None:
    whole = gzip.compress(lines(*({"text": "文" * (i % 97)} for i in range(3000))))
    work = bundle(
        {
            "a.xlsx": b"PK",
            "cut.jsonl.gz": whole[:-20],
            "cut.jsonl.zst": zstandard.compress(b"x" * 100000)[:-3],
            "latin.txt": "café très bon".encode("latin-1"),
            "columns.csv": b"id,name\n1,x\n",
            "twice.csv": b"text,text\n1,x\n",
            "empty.csv": b"",
            "no ending": b"x",
            "good.txt": "好".encode(),
        }
    )
    [product] = ingest(work)
    assert [d.text for d in texts([product])] == ["好"]
    assert [bundle.files[0].name for bundle, _ in product.dead] == [file.name for file in work.event.files[:-1]]
    for (alone, error), file, object in zip(product.dead, work.event.files, work.event.objects, strict=False):
        assert alone.files == (file,)
        assert alone.objects == (object,)
        assert error.startswith(file.name)
    assert len({alone.id for alone, _ in product.dead} | {work.event.id}) == 9
    assert product.counts.extra == {"files": 9, "files_dead": 8}


def test_a_dead_file_can_be_retried(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    claims = MemoryClaims()
    data = "长文。" * 1000
    [product] = ingest(bundle({"a.txt": data.encode()}, claims=claims), IngestConfig(record_bytes=100))
    [(alone, _)] = product.dead
    again = bundle({"a.txt": data.encode()}, id=alone.id, claims=claims)
    assert [d.text for d in texts(ingest(again))] == [data]  # its content was not claimed by the attempt that failed


def test_a_compression_bomb_is_refused(bundle: Bundle, ingest: Ingest) -> None:
    bomb = zstandard.compress(b"{" * 80_000_000)
    [product] = ingest(bundle({"bomb.jsonl.zst": bomb}))
    [(_, error)] = product.dead
    assert error.startswith("bomb.jsonl.zst: holds more than 64000000 bytes")


def test_nothing_readable_gives_one_empty_product(bundle: Bundle, ingest: Ingest) -> None:
    for files in ({}, {"a.jsonl": b""}, {"a.xls": b"x"}):
        [product] = ingest(bundle(files))
        assert product.files == {}
        assert product.counts.documents_in == 0


def test_content_is_taken_once_under_whatever_name(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    claims = MemoryClaims()
    first = bundle({"a.txt": b"one", "b.txt": b"two", "c.txt": b"one"}, claims=claims)
    second = bundle({"d.txt": b"two", "e.txt": b"three"}, id="1" * 32, claims=claims)
    for _ in range(2):  # also when they are delivered again, in any order
        [product] = ingest(first)
        assert [d.text for d in texts([product])] == ["one", "two"]
        assert product.counts.extra == {"files": 3, "files_duplicate": 1}
        [product] = ingest(second)
        assert [d.text for d in texts([product])] == ["three"]
        assert product.counts.extra["files_duplicate"] == 1


def test_shards_are_bounded_in_order_and_named_by_their_part(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    config = IngestConfig(shard_documents=100, shard_bytes=3000)
    files = {f"{n}.jsonl": lines(*({"text": f"{n}-{i}" + "字" * (i % 40)} for i in range(70))) for n in range(5)}
    products = ingest(bundle(files), config)
    assert [
        d.text[: len(f"{n}-{i}")]
        for d, (n, i) in zip(texts(products), ((n, i) for n in range(5) for i in range(70)), strict=True)
    ]
    assert len(products) > 5
    configuration = IngestStage(config).configuration
    for part, product in enumerate(products):
        id = shard_id("ingest", ("0" * 32,), configuration, part)
        found = texts([product])
        assert [d.id for d in found] == [f"{id}/{row}" for row in range(len(found))]
        assert product.counts.documents_out <= 100
        assert product.counts.bytes_out <= 3000
    assert {d.source.split("#")[0] for d in texts(products[:1])} == {"0.jsonl"}


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.zst"])
def test_memory_does_not_grow_with_the_file(bundle: Bundle, name: str) -> None:
    record = "药" * 300 + "。"
    rows = (json.dumps({"text": f"{n}{record}"}) if ".jsonl" in name else f"{n}{record}" for n in range(20_000))
    plain = ("\n".join(["text", *rows] if ".csv" in name else rows)).encode()
    assert len(plain) > 18_000_000
    work = bundle({name: gzip.compress(plain, 1) if name.endswith("gz") else zstandard.compress(plain)})
    del plain
    documents = 0
    tracemalloc.start()
    try:
        for product in IngestStage(IngestConfig(shard_bytes=500_000)).run(work):
            documents += product.counts.documents_out
            for path in product.files.values():
                path.unlink()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert documents == 20_000
    assert peak < 9_000_000  # a chunk and its decoded text, twice; not the file


def test_many_small_files_share_a_shard(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    [product] = ingest(bundle({f"{n}.txt": f"第{n}篇".encode() for n in range(200)}))
    assert len(texts([product])) == 200


def test_t8_two_megabytes_without_punctuation_pass_whole(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    text = "药" * 700_000
    assert [
        d.text for d in texts(ingest(bundle({"a.jsonl": lines({"text": text}), "b.txt": text.encode() + b"!"})))
    ] == [text, text + "!"]


def test_the_same_bundle_gives_the_same_bytes(bundle: Bundle, ingest: Ingest) -> None:
    files = {"a.jsonl": lines(*({"text": f"文{i}"} for i in range(500)), {"x": 1}), "b.xls": b"1"}
    config = IngestConfig(shard_documents=200)
    runs = []
    for _ in range(2):
        products = ingest(bundle(files), config)
        runs.append(
            [(p.counts, list(p.drops), list(p.dead), [f.read_bytes() for f in p.files.values()]) for p in products]
        )
    assert runs[0] == runs[1]
    assert len(runs[0]) == 3


def test_the_configuration_names_the_output() -> None:
    assert IngestStage(IngestConfig()).configuration == IngestStage(IngestConfig()).configuration
    assert IngestStage(IngestConfig()).configuration != IngestStage(IngestConfig(shard_documents=1)).configuration


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(
        st.binary(max_size=40) | st.text(max_size=20).map(lambda t: json.dumps({"text": t}).encode()), max_size=30
    )
)
def test_every_record_is_a_document_or_a_drop(
    bundle: Bundle, ingest: Ingest, texts: Texts, records: list[bytes]
) -> None:
    data = b"\n".join(records)
    products = ingest(bundle({"a.jsonl": data}), IngestConfig(shard_documents=7))
    taken = sum(p.counts.documents_in for p in products)
    if products[0].dead:
        assert taken == 0
    else:
        assert taken == len(texts(products)) + sum(len(p.drops) for p in products)
        decodable = [line for line in data.split(b"\n") if line.strip(b" \t\r\n\xef\xbb\xbf")]
        assert taken == len(decodable)


def test_the_real_gb18030_csv(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    path = DATA / "medical_qa_gb18030.csv"
    if not path.is_file():
        pytest.skip(f"{DATA} is not there: the real file is only read where it is")
    [product] = ingest(bundle({path.name: path.read_bytes()}))
    found = texts([product])
    assert (len(found), product.drops, product.dead) == (300, [], [])
    assert found[0].text.startswith("高血压患者能吃党参吗？\n我有高血压")
