"""Every kind of file gives its documents with their places, and what cannot be read is counted and named."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from ingest_files import docx, parquet, pdf, tarred, warc, zipped
from mindstream_common.claims import MemoryClaims
from mindstream_common.documents import Document
from mindstream_common.events import FileBundle
from mindstream_common.stage import Product, Work
from mindstream_ingest.config import IngestConfig

Ingest = Callable[..., list[Product]]
Texts = Callable[[list[Product]], list[Document]]
Bundle = Callable[..., Work[FileBundle]]


def errors(products: list[Product]) -> list[str]:
    return [error for product in products for _, error in product.dead]


def reasons(products: list[Product]) -> list[tuple[str, str]]:
    return [(drop.source, drop.reason) for product in products for drop in product.drops]


def seen(documents: list[Document]) -> list[tuple[str, str]]:
    return [(document.source, document.text) for document in documents]


# text ----------------------------------------------------------------------------------------------------------------


def test_markdown_without_its_front_matter(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    files = {
        "a.md": "---\ntitle: 题\ntags: [x]\n---\n# 标题\n正文\n".encode(),
        "b.markdown": "+++\r\ntitle = '题'\r\n+++\r\n正文二\r\n".encode(),
        "c.md": "正文三\n---\n不是题头\n---\n".encode(),
    }
    assert seen(texts(ingest(bundle(files)))) == [
        ("a.md", "# 标题\n正文\n"),
        ("b.markdown", "正文二\n"),
        ("c.md", "正文三\n---\n不是题头\n---\n"),
    ]


def test_tsv(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    work = bundle({"a.tsv": "id\task\tanswer\n1\t问,一\t答\n2\t问\n".encode()})
    products = ingest(work)
    assert seen(texts(products)) == [("a.tsv#2", "问,一\n答")]
    assert reasons(products) == [("a.tsv#3", "malformed")]


# json ----------------------------------------------------------------------------------------------------------------


def test_json_array_one_record_and_several(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    array = [{"text": '一"]}\\', "tags": ["{", {"x": [1]}]}, 5, {"text": "二"}, {"no": 1}, "字符串"]
    files = {
        "a.json": json.dumps(array, indent=1).encode(),
        "b.json": json.dumps(
            {"text": "三，我们认为这个问题很重要", "list": [1, 2]}, indent=2, ensure_ascii=False
        ).encode("gb18030"),
        "c.json": b'{"text": "\xe5\x9b\x9b"}\n{"text": "\xe4\xba\x94"} {"text": }',
        "d.json": b" [ ] \n",
        "e.json": b"",
        "f.ndjson": b'{"text": "f"}',
    }
    products = ingest(bundle(files))
    assert seen(texts(products)) == [
        ("a.json#1", '一"]}\\'),
        ("a.json#3", "二"),
        ("b.json#1", "三，我们认为这个问题很重要"),
        ("c.json#1", "四"),
        ("c.json#2", "五"),
        ("f.ndjson#1", "f"),
    ]
    assert reasons(products) == [
        ("a.json#2", "malformed"),
        ("a.json#4", "no_text"),
        ("a.json#5", "malformed"),
        ("c.json#3", "malformed"),
    ]
    assert errors(products) == []


@pytest.mark.parametrize("cut", [1, 2, 9, 20, 33])
def test_json_that_was_cut_off_is_refused(bundle: Bundle, ingest: Ingest, cut: int) -> None:
    data = json.dumps([{"text": "one"}, {"text": "two\\"}]).encode()
    [error] = errors(ingest(bundle({"a.json": data[:-cut]})))
    assert error.startswith("a.json: ends in the middle of a record")


@pytest.mark.parametrize("data", [b'[{"text":"a"}] x', b'[{"text":"a"}]]', b'{"text":"a"}}', b'[{"text":"a"}] [1]'])
def test_json_with_something_behind_is_refused(bundle: Bundle, ingest: Ingest, data: bytes) -> None:
    [error] = errors(ingest(bundle({"a.json": data})))
    assert "a.json: " in error


def test_json_records_are_found_wherever_a_chunk_ends(
    bundle: Bundle, ingest: Ingest, texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mindstream_ingest import elements

    array = [{"text": 'a"\\"]}{[,' * n + "文", "more": [{"x": "\\"}]} for n in range(8)]
    data = json.dumps(array).encode() + b"\n"
    for size in (1, 2, 3, 7, 50):
        monkeypatch.setattr(elements, "CHUNK", size)
        found = texts(ingest(bundle({"a.json": data})))
        assert [document.text for document in found] == [record["text"] for record in array]


def test_a_json_record_that_is_too_long_costs_only_itself(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    data = json.dumps([{"text": "一"}, {"text": "长" * 90_000}, {"text": "二"}], ensure_ascii=False).encode()
    products = ingest(bundle({"a.json": data}), IngestConfig(record_bytes=200_000))
    assert [document.text for document in texts(products)] == ["一", "二"]
    assert reasons(products) == [("a.json#2", "too_long")]
    assert len(products[0].drops[0].text) <= 1000


# fields --------------------------------------------------------------------------------------------------------------


def test_a_template_joins_fields(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    records = b'{"ask": "q", "answer": "a", "n": 3}\n{"ask": "q2", "answer": null, "n": 1.5}\n{"ask": "q3"}\n'
    work = bundle({"a.jsonl": records}, template="{{问}}{ask}\\n答：{answer} ({n})")
    products = ingest(work)
    assert [document.text for document in texts(products)] == ["{问}q\n答：a (3)", "{问}q2\n答： (1.5)"]
    assert reasons(products) == [("a.jsonl#3", "no_text")]
    assert "the template's field 'answer' is missing; fields found: ask" in products[0].drops[0].detail


def test_a_template_with_html(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    work = bundle({"a.jsonl": b'{"t": "a<b", "h": "<p>x</p>"}'}, template="<{t}>\n{h}")
    [document] = texts(ingest(work))
    assert (document.format, document.text) == ("html", "&lt;a&lt;b&gt;<br><p>x</p>")


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_field_that_is_no_column_is_named(bundle: Bundle, ingest: Ingest, name: str) -> None:
    data = b"ask,id\nq,1\n" if name.endswith("csv") else parquet([{"ask": "q", "id": 1}])
    for options in ({"template": "{ask} {answer}"}, {"text_fields": ("ask", "answer")}):
        [error] = errors(ingest(bundle({name: data}, **options)))
        assert error.startswith(f"{name}: no column answer; columns found: ask, id.")


@pytest.mark.parametrize("template", ["{ask", "ask}", "no field", "{}", "{a{b}}"])
def test_a_template_that_cannot_be_read_is_a_dead_letter(bundle: Bundle, ingest: Ingest, template: str) -> None:
    [error] = errors(ingest(bundle({"a.jsonl": b'{"ask": "q"}'}, template=template)))
    assert error.startswith("template ")


def test_the_same_file_read_by_other_fields_is_other_content(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    """Who named the wrong field the first time may submit again."""
    claims = MemoryClaims()
    data = b'{"ask": "q", "answer": "a"}\n'
    found = []
    for number, options in enumerate(({"text_fields": ("answer",)}, {"template": "{ask}"}, {"template": "{ask}"})):
        found += texts(ingest(bundle({"a.jsonl": data}, id=f"{number:032}", claims=claims, **options)))
    assert [document.text for document in found] == ["a", "q"]


# parquet -------------------------------------------------------------------------------------------------------------


def test_parquet_rows(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    rows = [{"id": n, "text": f"第{n}行" if n % 7 else None, "title": "同一个题目"} for n in range(3000)]
    products = ingest(bundle({"a.parquet": parquet(rows, row_group_size=700)}), IngestConfig(text_fields=("text",)))
    found = texts(products)
    assert [(d.source, d.text) for d in found] == [(f"a.parquet#{n + 1}", f"第{n}行") for n in range(3000) if n % 7]
    assert sum(product.counts.dropped.get("no_text", 0) for product in products) == len(range(0, 3000, 7))


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_compressed_parquet_file(bundle: Bundle, ingest: Ingest, texts: Texts, ending: str) -> None:
    pack = gzip.compress if ending == ".gz" else zstandard.compress
    work = bundle({f"a.parquet{ending}": pack(parquet([{"text": "一"}]))})
    assert seen(texts(ingest(work))) == [(f"a.parquet{ending}#1", "一")]
    assert [path.name for path in work.folder.iterdir() if path.name.startswith("plain-")] == []


def test_parquet_text_that_is_not_utf8_costs_its_row(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    broken = pa.array([b"ok", b"\xff\xfe", "好".encode()], pa.binary()).view(pa.string())
    out = io.BytesIO()
    pq.write_table(pa.table({"text": broken}), out)
    products = ingest(bundle({"a.parquet": out.getvalue()}))
    assert [document.text for document in texts(products)] == ["ok", "好"]
    assert reasons(products) == [("a.parquet#2", "malformed")]


def test_a_parquet_value_that_is_repeated_without_end_is_a_bomb(bundle: Bundle, ingest: Ingest) -> None:
    import pyarrow as pa

    value = pa.array(["药" * 1_000_000])
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), value)
    import io

    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.table({"text": column}), out, compression="zstd")
    [error] = errors(ingest(bundle({"bomb.parquet": out.getvalue()})))
    assert "bomb.parquet" in error
    assert "Is it a bomb?" in error


def test_a_parquet_value_that_is_too_long(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    rows = [{"text": "short"}, {"text": "x" * 3000}, *({"text": f"s{n}"} for n in range(8))]
    products = ingest(bundle({"a.parquet": parquet(rows)}), IngestConfig(record_bytes=1000))
    assert len(texts(products)) == 9
    assert reasons(products) == [("a.parquet#2", "too_long")]
    [error] = errors(ingest(bundle({"b.parquet": parquet([{"text": "x" * 3000}])}), IngestConfig(record_bytes=1000)))
    assert error.startswith("b.parquet: column text holds values of more than 1000 bytes")


# warc ----------------------------------------------------------------------------------------------------------------

PAGE = "<html><head><meta charset=gb2312></head><body>高血压患者可以吃党参吗？我们认为这个问题很重要。</body></html>"


def archive() -> bytes:
    return b"".join(
        (
            warc("warcinfo", "", "application/warc-fields", b"software: x\r\n"),
            warc("request", "http://a/", "application/http; msgtype=request", b"GET / HTTP/1.1\r\n\r\n"),
            warc("response", "http://a/", "text/html", "<p>一</p>".encode()),
            warc("response", "http://b/", "text/html", PAGE.encode("gb18030")),
            warc("response", "http://c/", "image/png", b"\x89PNG" * 500),
            warc("response", "http://d/", "text/plain; charset=gbk", "二".encode("gbk")),
            warc("response", "http://e/", "text/html", b"<p>404</p>", status=404),
            warc("response", "http://f/", "text/html", gzip.compress("<p>三</p>".encode()), header="Content-Encoding: gzip\r\n"),
            warc("response", "http://g/", "text/html", b"4\r\n<p>x\r\n4\r\n</p>\r\n0\r\n\r\n", header="Transfer-Encoding: chunked\r\n"),
            warc("response", "http://h/", "text/html", "<p>四</p>".encode(), header="Transfer-Encoding: chunked\r\n"),
            warc("conversion", "http://i/", "text/plain", "五".encode()),
            warc("response", "http://j/", "text/html", b"\xfd\xfe caf\xe9"),
            warc("response", "http://k/", "text/html", gzip.compress(b"<p>cut</p>" * 9)[:-9], header="Content-Encoding: gzip\r\n"),
        )
    )  # fmt: skip


@pytest.mark.parametrize("name", ["crawl.warc", "crawl.warc.gz"])
def test_pages_of_a_web_archive(bundle: Bundle, ingest: Ingest, texts: Texts, name: str) -> None:
    data = archive()
    if name.endswith("gz"):  # a member a record, as crawlers write it
        data = b"".join(gzip.compress(b"WARC/1.0" + record) for record in data.split(b"WARC/1.0")[1:])
    products = ingest(bundle({name: data}))
    assert [(d.source.split("#")[1], d.format, d.text) for d in texts(products)] == [
        ("3 http://a/", "html", "<p>一</p>"),
        ("4 http://b/", "html", PAGE),
        ("6 http://d/", "text", "二"),
        ("8 http://f/", "html", "<p>三</p>"),
        ("9 http://g/", "html", "<p>x</p>"),
        ("10 http://h/", "html", "<p>四</p>"),
        ("11 http://i/", "text", "五"),
    ]
    assert [reason for _, reason in reasons(products)] == ["encoding", "malformed"]
    assert products[0].counts.extra["records_other"] == 4


@pytest.mark.parametrize("cut", [1, 30, 150, 500, 600])
def test_a_web_archive_that_was_cut_off_is_refused(bundle: Bundle, ingest: Ingest, cut: int) -> None:
    data = archive()[:-4]  # without the last empty lines it is still whole
    [error] = errors(ingest(bundle({"a.warc": data[:-cut]})))
    assert error.startswith("a.warc: ")
    [error] = errors(ingest(bundle({"a.warc.gz": gzip.compress(data)[:-cut]})))
    assert error.startswith("a.warc.gz: ")


def test_something_else_is_no_web_archive(bundle: Bundle, ingest: Ingest) -> None:
    [error] = errors(ingest(bundle({"a.warc": b"<html>" * 1000})))
    assert "not with WARC/" in error


# office --------------------------------------------------------------------------------------------------------------


def test_pdf_and_docx(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    files = {
        "a.pdf": pdf("高血压患者", "可以吃党参吗"),
        "b.docx": docx("第一段", "第二段", table=[["药名", "剂量"], ["党参", "十克"]]),
        "scan.pdf": pdf(),
        "broken.pdf": b"%PDF-1.4\nnothing",
        "broken.docx": docx("一")[:-30],
        "c.pdf.gz": gzip.compress(pdf("第三")),
        "in.zip": zipped({"d.pdf": pdf("第四"), "e.docx": docx("第五")}),
    }
    products = ingest(bundle(files))
    assert [(source, text.split()) for source, text in seen(texts(products))] == [
        ("a.pdf", ["高血压患者", "可以吃党参吗"]),
        ("b.docx", ["第一段", "第二段", "药名", "剂量", "党参", "十克"]),
        ("c.pdf.gz", ["第三"]),
        ("in.zip/d.pdf", ["第四"]),
        ("in.zip/e.docx", ["第五"]),
    ]
    said = errors(products)
    assert [error.split(":")[0] for error in said] == ["scan.pdf", "broken.pdf", "broken.docx"]
    assert "Run OCR" in said[0]


def test_a_pdf_that_never_ends_is_given_up(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    """Pages by the thousand: more processor time than allowed. The next file is read all the same."""
    config = IngestConfig(office_seconds=0.3)
    slow = pdf(*["字" * 400] * 20_000)
    products = ingest(bundle({"slow.pdf": slow, "good.docx": docx("好")}), config)
    assert "ingest.office_seconds" in errors(products)[0] or "within" in errors(products)[0]
    assert [document.text.strip() for document in texts(products)] in (["好"], [])


def test_an_office_file_that_is_too_large(bundle: Bundle, ingest: Ingest) -> None:
    [error] = errors(ingest(bundle({"a.pdf": pdf("一")}), IngestConfig(office_bytes=10)))
    assert "ingest.office_bytes allows 10" in error


def test_without_the_packages_the_error_says_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from mindstream_ingest.office_child import Task, convert

    monkeypatch.setitem(sys.modules, "pypdf", None)
    said = convert(Task("pdf", str(tmp_path / "a.pdf"), str(tmp_path / "out"), 5.0, 1000))
    assert said == "reading pdf needs the package pypdf: pip install 'mindstream-ingest[office]'"


# archives ------------------------------------------------------------------------------------------------------------

MEMBERS = {
    "a/qa.jsonl": b'{"text": "1"}\n{"text": "2"}\n',
    "notes.txt": b"three",
    "b.csv.gz": gzip.compress(b"text\nfour\n"),
    "t.parquet": parquet([{"text": "five"}]),
    "__MACOSX/._notes.txt": b"hidden",
    ".hidden/x.txt": b"hidden",
    "broken.jsonl.gz": gzip.compress(b"x" * 5000)[:-9],
    "inner.zip": zipped({"x.txt": b"x"}),
    "photo.jpg": b"\xff\xd8",
    "z.md": b"six",
}


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tgz", "a.tar.zst", "a.zip.gz"])
def test_members_of_an_archive(bundle: Bundle, ingest: Ingest, texts: Texts, name: str) -> None:
    data = zipped(MEMBERS) if "zip" in name else tarred(MEMBERS)
    data = gzip.compress(data) if name.endswith("gz") else zstandard.compress(data) if name.endswith("zst") else data
    claims = MemoryClaims()
    work = bundle({name: data, "last.txt": b"seven"}, claims=claims)
    products = ingest(work)
    assert [(d.source.removeprefix(f"{name}/"), d.text) for d in texts(products)] == [
        ("a/qa.jsonl#1", "1"),
        ("a/qa.jsonl#2", "2"),
        ("notes.txt", "three"),
        ("b.csv.gz#2", "four"),
        ("t.parquet#1", "five"),
        ("z.md", "six"),
        ("last.txt", "seven"),
    ]
    dead = products[0].dead
    assert [bundle.files[0].members for bundle, _ in dead] == [("broken.jsonl.gz",), ("inner.zip",), ("photo.jpg",)]
    assert [error.split(": ")[0] for _, error in dead] == [f"{name}/broken.jsonl.gz", f"{name}/inner.zip", name]
    assert "archive in an archive" in dead[1][1]
    assert len({alone.id for alone, _ in dead}) == 3
    again = ingest(bundle({name: data}, id=dead[0][0].id, claims=claims, members=("broken.jsonl.gz",)))
    assert texts(again) == []  # only what the dead letter is about, and that is still broken
    assert len(errors(again)) == 1


def test_a_members_content_is_taken_once(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    claims = MemoryClaims()
    ingest(bundle({"x.txt": b"three"}, claims=claims))
    products = ingest(bundle({"a.zip": zipped(MEMBERS)}, id="1" * 32, claims=claims))
    assert "three" not in [document.text for document in texts(products)]
    assert products[0].counts.extra["files_duplicate"] == 1


@pytest.mark.parametrize("cut", [1, 30, 600, 1500])
@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_an_archive_that_was_cut_off_is_refused_whole(
    bundle: Bundle, ingest: Ingest, texts: Texts, name: str, cut: int
) -> None:
    data = zipped(MEMBERS) if "zip" in name else gzip.compress(tarred(MEMBERS))
    products = ingest(bundle({name: data[:-cut], "b.txt": b"b"}))
    assert [document.text for document in texts(products)] == ["b"]
    [error] = errors(products)
    assert error.startswith(f"{name}: ")


def test_names_that_were_packed_in_gbk(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    data = bytearray(zipped({"xxxx.txt": b"x"}))
    data = bytearray(bytes(data).replace(b"xxxx.txt", "病历".encode("gbk") + b".txt"))
    assert [document.source for document in texts(ingest(bundle({"a.zip": bytes(data)})))] == ["a.zip/病历.txt"]


def test_limits_of_an_archive(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    many = {f"{n}.txt": b"x" for n in range(40)}
    for data, name in ((zipped(many), "a.zip"), (tarred(many), "a.tar")):
        products = ingest(bundle({name: data, "b.txt": b"b"}), IngestConfig(archive_members=30))
        assert [document.text for document in texts(products)] == ["b"]
        assert "ingest.archive_members" in errors(products)[0]
    [error] = errors(
        ingest(bundle({"a.zip": zipped({"a.txt": b"x" * 600, "b.txt": b"y" * 600})}), IngestConfig(file_bytes=1000))
    )
    assert error.startswith("a.zip: its members hold more than 1000 bytes")


def test_a_zip_bomb_is_refused(bundle: Bundle, ingest: Ingest) -> None:
    bomb = zipped({f"{n}.jsonl": b"0" * 20_000_000 for n in range(6)})
    [error] = errors(ingest(bundle({"bomb.zip": bomb})))
    assert error.startswith("bomb.zip: its members hold more than 64000000 bytes")


def test_a_member_with_a_password(bundle: Bundle, ingest: Ingest, texts: Texts) -> None:
    data = bytearray(zipped({"a.txt": b"secret", "b.txt": b"open"}, zipfile.ZIP_STORED))
    for mark in (b"PK\x03\x04", b"PK\x01\x02"):
        at = data.index(mark) + (6 if mark.endswith(b"\x04") else 8)
        data[at] |= 1
    products = ingest(bundle({"a.zip": bytes(data)}))
    assert [document.text for document in texts(products)] == ["open"]
    assert errors(products)[0].startswith("a.zip/a.txt: cannot be unpacked")
