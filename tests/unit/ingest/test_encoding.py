"""Case T7: every encoding decoded right, or the file refused by name; never silently mangled."""

from __future__ import annotations

from pathlib import Path

import pytest
from mindstream_common.errors import InputError
from mindstream_ingest.config import IngestConfig
from mindstream_ingest.encoding import detect
from mindstream_ingest.source import source

SIMPLIFIED = (
    "高血压患者可以吃党参吗？医生建议患者在饭后服用药物，并且定期检查身体。我们认为这个问题很重要，需要进一步讨论。"
)
TRADITIONAL = (
    "高血壓患者可以吃黨參嗎？醫生建議患者應該在飯後服用藥物，並且定期檢查身體。我們認為這個問題很重要，需要進一步討論。"
)
DATA = Path(__file__).parents[4] / "shared" / "data"


def encoding_of(tmp_path: Path, data: bytes, name: str = "file.txt") -> str:
    path = tmp_path / "bytes"
    path.write_bytes(data)
    return detect(source(name, path, IngestConfig()))


@pytest.mark.parametrize(
    "text", [SIMPLIFIED, TRADITIONAL, SIMPLIFIED[:5], TRADITIONAL[:5], "“a”——b……", "plain ASCII", ""]
)
@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "gb18030", "utf-32"])
def test_t7_unicode_and_gb18030_come_back_as_written(tmp_path: Path, text: str, codec: str) -> None:
    data = text.encode(codec)
    assert data.decode(encoding_of(tmp_path, data)) == text


@pytest.mark.parametrize("text", [TRADITIONAL, TRADITIONAL[:5], "臺灣的天氣非常炎熱"])
def test_t7_big5_comes_back_as_written(tmp_path: Path, text: str) -> None:
    data = text.encode("big5")
    assert data.decode(encoding_of(tmp_path, data)) == text


def test_t7_utf16_big_endian_with_mark(tmp_path: Path) -> None:
    data = b"\xfe\xff" + SIMPLIFIED.encode("utf-16-be")
    assert data.decode(encoding_of(tmp_path, data)) == SIMPLIFIED


def test_t7_labelled_gb2312_with_gb18030_characters(tmp_path: Path) -> None:
    page = f'<html><head><meta charset="gb2312"></head><body>{SIMPLIFIED}朱镕基、喆、㐀、€</body></html>'
    with pytest.raises(UnicodeEncodeError):
        page.encode("gb2312")
    data = page.encode("gb18030")
    assert data.decode(encoding_of(tmp_path, data, "page.html")) == page


def test_t7_a_wrong_label_is_not_believed(tmp_path: Path) -> None:
    page = f'<meta charset="utf-8"><p>{SIMPLIFIED}'
    assert encoding_of(tmp_path, page.encode("gb18030"), "page.htm") == "gb18030"
    page = f'<meta charset="gb2312"><p>{SIMPLIFIED}'
    assert encoding_of(tmp_path, page.encode("utf-8"), "page.htm") == "utf-8"


KOREAN = "고혈압 환자는 인삼을 먹어도 됩니까? 대한민국의 모든 권력은 국민으로부터 나온다. 우리는 이 문제가 중요하다고 생각합니다."
JAPANESE = "高血圧の患者は薬を飲んだ後に食事をしてもよいですか。私たちはこの問題が重要だと思います。"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (KOREAN.encode("euc-kr"), "not UTF-8"),
        (JAPANESE.encode("euc-jp"), "not UTF-8"),
        (JAPANESE.encode("shift_jis"), "not UTF-8"),
        ("Le café est très bon, ça va être dégusté.".encode("cp1252"), "not UTF-8"),
        ("He said “hello” to the naïve man. ".encode("cp1252") * 9, "not UTF-8"),
        (SIMPLIFIED.encode("utf-16-le"), "(not UTF-8|NUL)"),
        ("abc plain".encode("utf-16-le"), "NUL"),
        (SIMPLIFIED.encode()[:-1], "at 162 is not utf-8"),
        (b"\xff\xfe" + SIMPLIFIED.encode("utf-16-le") + b"\x00", "mark of utf-16"),
        (b"\xef\xbb\xbf" + SIMPLIFIED.encode("gb18030"), "mark of utf-8"),
        (bytes(range(128, 256)) * 20, "not UTF-8"),
        (b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n" + bytes(range(256)) * 4, "not UTF-8"),
        (KOREAN[:7].encode("euc-kr"), "not UTF-8"),
        (JAPANESE[:9].encode("euc-jp"), "not UTF-8"),
        ("医療制度".encode("euc-jp"), "not UTF-8"),
        (SIMPLIFIED.encode("hz"), "HZ"),
        ("。秋".encode("gb18030"), "not UTF-8"),  # two symbols in Big5
    ],
)
def test_t7_what_cannot_be_decoded_for_sure_is_refused_by_name(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(InputError, match="notes.txt.*" + words):
        encoding_of(tmp_path, data, "notes.txt")


def test_t7_one_line_of_utf8_in_a_gb18030_file_is_refused(tmp_path: Path) -> None:
    lines = [SIMPLIFIED.encode("gb18030")] * 200
    lines[120] = "糖尿病患者可以吃".encode()  # 24 bytes: also strict GB18030
    with pytest.raises(InputError, match=r"notes\.txt: line 121 is UTF-8"):
        encoding_of(tmp_path, b"\n".join(lines), "notes.txt")


def test_t7_a_foreign_label_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"page\.html: declares the encoding shift_jis"):
        encoding_of(tmp_path, b"<meta charset=Shift_JIS>" + JAPANESE.encode("shift_jis"), "page.html")


def test_a_character_cut_by_a_chunk_is_whole(tmp_path: Path) -> None:
    for shift in range(4):
        data = b"x" * shift + ("高" * 400_000).encode()
        assert encoding_of(tmp_path, data) == "utf-8"
        with pytest.raises(InputError, match=f"at {shift + 1_200_000} is not utf-8"):
            encoding_of(tmp_path, data + b"\xff")


def test_t7_the_real_gb18030_file(tmp_path: Path) -> None:
    path = DATA / "medical_qa_gb18030.csv"
    if not path.is_file():
        pytest.skip(f"{DATA} is not there: the real file is only compared where it is")
    data = path.read_bytes()
    assert encoding_of(tmp_path, data, path.name) == "gb18030"
    assert encoding_of(tmp_path, data[:2000].rsplit(b"\n", 1)[0], path.name) == "gb18030"
