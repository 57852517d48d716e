"""The rules one by one: cases T4, T5, T6 and what they must never do."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindstream_cleaning import characters, html, length, mojibake, tags, whitespace
from mindstream_cleaning.chain import Chain
from mindstream_cleaning.config import CleaningConfig
from mindstream_cleaning.length import LengthConfig
from mindstream_cleaning.page import Page
from mindstream_common.documents import Document

CHAIN = Chain(CleaningConfig())


def clean(document: Document) -> str:
    return CHAIN.clean(document)[0].text


def reason_of(text: str, config: LengthConfig) -> tuple[str, str]:
    verdict = length.rule(config)(Page(text=text))
    return (verdict.reason, verdict.detail) if verdict else ("", "")


FRAGMENT = "<p>高血<b>压</b>患者</p><p>可以吃党参吗？</p>"


@pytest.mark.parametrize(
    "page",
    [FRAGMENT, f"<html><head><title>题</title></head><body>{FRAGMENT}</body></html>", f"<div>\n {FRAGMENT}\n</div>"],
)
def test_t4_blocks_are_lines_and_inline_tags_join(page: str) -> None:
    assert html.to_text(page) == "高血压患者\n可以吃党参吗？"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("没有标签的文字", "没有标签的文字"),
        ("一<br>二<br/>三", "一\n二\n三"),
        ("<ul><li>一<li>二</ul>三", "一\n二\n三"),
        ("<table><tr><th>药</th><td>5<sub>mg</sub></td></tr><tr><td>量</td></tr></table>", "药 5mg\n量"),
        ("<p>一\n  行</p>", "一 行"),
        ("<pre>第一行\n  第二行</pre>", "第一行\n第二行"),
        ("<pre>外<pre>内</pre></pre>", "外\n内"),
        ("<script>var x = '不要';</script><style>p{}</style><p>要</p><noscript>开启</noscript><!-- 不要 -->", "要"),
        ("<p>A&amp;B&nbsp;&lt;5&#20013;</p>", "A&B\u00a0<5中"),
        ("<p>血压&lt;b&gt;高</p>", "血压<b>高"),
        ("<html><head><title>只有&amp;题目</title></head><body><img src=x></body></html>", "只有&题目"),
        ("<a href=x>甲</a><span>乙</span><p>丙", "甲乙\n丙"),
        ("<p>没有关闭 <b>粗", "没有关闭 粗"),
        ("", ""),
    ],
)
def test_t4_html(page: str, text: str) -> None:
    assert html.to_text(page) == text


N = 100_000


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (
            "<script>不要</script>" + "<div>" * N + "药<b>物</b>&amp;<!-- 不要 <p> -->" + "</div>" * N + "<p>末",
            "药物&\n末",
        ),
        ("<p>药<select>" + "<option>x" * N + "</select><p>末", "药\n" + "x\n" * N + "末"),
        ("<div " + " ".join(f"a{n}=1" for n in range(N)) + ">药</div>末", "药\n末"),
        ("药<!--" + "<script>" * N, "药"),
        ("药" + "<title>" * N, "药"),
        ("药<" + "a" * 10 * N, "药"),
        ("药" + "<script><style><b>" * N, "药"),
    ],
    ids=["depth", "options", "attributes", "comment", "titles", "open tag", "scripts"],
)
def test_t4_no_page_takes_absurd_time(page: str, text: str) -> None:
    began = time.process_time()
    assert html.to_text(page) == text
    assert time.process_time() - began < 5  # the parser alone: minutes


@pytest.mark.parametrize(
    "page", [FRAGMENT, "<p>一<br>二<!-- 不要 --><script>不要</script><ul><li>三<li>四</ul>五&lt;", "没有标签"]
)
def test_t4_text_without_the_parser_is_the_same(page: str) -> None:
    lines = [line for line in tags.to_text(page).split(tags.BREAK) if line]
    assert "\n".join(lines) == html.to_text(page)


FULL_WIDTH = "，。？！；：“”‘’（１２３）％—…《》【】、ＡＢ　甲"


def test_t5_full_width_characters_stay() -> None:
    kept = FULL_WIDTH.replace("　", " ")  # white space is white space
    assert clean(Document(id="a", source="a", format="text", text=FULL_WIDTH)) == kept
    assert clean(Document(id="a", source="a", format="html", text=f"<p>{FULL_WIDTH}")) == kept
    assert mojibake.repair("é«˜è¡€åŽ‹" + FULL_WIDTH) == "高血压" + FULL_WIDTH


@pytest.mark.parametrize("codec", ["latin-1", "cp1252"])
def test_t6_utf8_read_as_latin1_is_repaired(codec: str) -> None:
    right = "高血压患者，可以吃党参吗？“好”"
    # Browsers and editors map the five bytes that Windows-1252 leaves open to the same controls as Latin-1.
    broken = "".join(bytes([b]).decode(codec, "ignore") or chr(b) for b in right.encode())
    assert broken != right
    assert mojibake.repair(broken) == right
    assert mojibake.repair(f"前文{broken}后文") == f"前文{right}后文"
    assert clean(Document(id="a", source="a", format="text", text=broken)) == right


@pytest.mark.parametrize(
    "text", ["café “déjà vu” naïve façade", "价格 £5–€10 ±3°", "Ünïcödé • bullet", "高血压“患者”…", "Ã la carte"]
)
def test_t6_sound_text_is_left_alone(text: str) -> None:
    assert mojibake.repair(text) == text


@pytest.mark.parametrize("text", ["锟斤拷锟斤拷患者", "患者\ufffd\ufffd可以"])
def test_t6_lost_text_is_recognised(text: str) -> None:
    assert mojibake.is_lost(text)


def test_t6_one_replaced_character_does_not_lose_a_page() -> None:
    assert not mojibake.is_lost("药" * 200 + "\ufffd")
    assert not mojibake.is_lost("")


def test_characters_and_white_space() -> None:
    assert characters.normalise("a\r\nb\rc\u2028d\u0085e\u200bf\u00adg\ufeff\x00\x07h\u202e") == "a\nb\nc\nd\nefgh"
    assert characters.normalise("e\u0301e\u200b\u0301") == "éé"
    assert whitespace.normalise(" \u3000一 \u00a0 二\t\n \n\n三 \n") == "一 二\n三"


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    once = whitespace.normalise(characters.normalise(text))
    assert whitespace.normalise(characters.normalise(once)) == once


@given(st.text(alphabet="ab药 \t\u3000\r\n\u200b\u0301\u2000é", max_size=40))
def test_texts_that_need_nothing_are_told_from_those_that_do(text: str) -> None:
    page = Page(text=text)
    characters.rule(characters.CharactersConfig())(page)
    assert page.text == whitespace.normalise(characters.normalise(text))


@given(st.text())
def test_html_never_fails_and_never_keeps_the_marker(text: str) -> None:
    assert tags.BREAK not in html.to_text(text)
    assert "患者" in html.to_text(f"<p>患者</p><p>{text}")


@given(st.text(alphabet=st.characters(min_codepoint=0x3000, max_codepoint=0x9FFF)))
def test_chinese_text_is_never_taken_for_mojibake(text: str) -> None:
    assert mojibake.repair(text) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("1234567890-+*/ 3.14%", "symbols_only"),
        ("——！！！……，，，。。。。", "symbols_only"),
        ("😀😀😀😀😀😀", "symbols_only"),
        ("好", "too_short"),
        ("好。！？…………", "too_short"),
        ("谢谢医生", "too_short"),
        ("。" * 5000 + "好" * 4, "too_short"),
        ("谢谢您医生", ""),
        ("血压140", ""),
        ("Ω" * 5, ""),
    ],
)
def test_t8_reasons(text: str, reason: str) -> None:
    assert reason_of(text, LengthConfig())[0] == reason


def test_too_short_is_configured() -> None:
    assert reason_of("好", LengthConfig(minimum=1)) == ("", "")
    assert reason_of("谢谢您医生", LengthConfig(minimum=6)) == (
        "too_short",
        "5 letters and digits, cleaning.length.minimum is 6",
    )
