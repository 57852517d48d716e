"""Small files of every kind, made by the tests themselves."""

from __future__ import annotations

import io
import tarfile
import zipfile
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def parquet(rows: list[dict[str, Any]], **options: Any) -> bytes:
    """A Parquet file of these rows."""
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out, **options)
    return out.getvalue()


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of these members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as opened:
        for name, data in members.items():
            opened.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


def tarred(members: dict[str, bytes]) -> bytes:
    """A tar of these members."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as opened:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            opened.addfile(info, io.BytesIO(data))
    return out.getvalue()


def warc(kind: str, uri: str, content_type: str, body: bytes, *, status: int = 200, header: str = "") -> bytes:
    """One record of a web archive."""
    if kind == "response":
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\n{header}\r\n".encode()
        body, content_type = head + body, "application/http; msgtype=response"
    lines = (
        "WARC/1.0", f"WARC-Type: {kind}", f"WARC-Target-URI: {uri}", f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}", "", "",
    )  # fmt: skip
    return "\r\n".join(lines).encode() + body + b"\r\n\r\n"


def pdf(*lines: str) -> bytes:
    """A page with these lines of Hanzi as a text layer (a composite font with a ToUnicode map); none: no text layer."""
    shown = " ".join(f"<{line.encode('utf-16-be').hex()}> Tj 0 -20 Td" for line in lines)
    content = f"BT /F1 12 Tf 72 720 Td {shown} ET".encode() if lines else b"0 0 m 10 10 l S"
    cmap = (
        b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /X def 1 begincodespacerange <0000> "
        b"<FFFF> endcodespacerange 1 beginbfrange <0000> <FFFF> <0000> endbfrange endcmap end end"
    )
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        b"<< /Type /Font /Subtype /Type0 /BaseFont /X /Encoding /Identity-H /DescendantFonts [6 0 R] /ToUnicode 7 0 R >>",
        b"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /X /CIDSystemInfo << /Registry (Adobe) /Ordering (Identity) "
        b"/Supplement 0 >> /DW 1000 >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(cmap), cmap),
    ]
    out, offsets = bytearray(b"%PDF-1.4\n"), []
    for number, data in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, data)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    out += b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return bytes(out)


def docx(*paragraphs: str, table: list[list[str]] | None = None) -> bytes:
    """A Word file, with a table at its end."""
    from docx import Document

    document = Document()
    for paragraph in paragraphs:
        document.add_paragraph(paragraph)
    if table:
        made = document.add_table(len(table), len(table[0]))
        for row, cells in zip(made.rows, table, strict=True):
            for cell, text in zip(row.cells, cells, strict=True):
                cell.text = text
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()
