"""Rules that measure: letters and Hanzi, language, repetition; and sensitive words, traditional characters, boilerplate."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindstream_cleaning import html, language, letters, repetition, sensitive, simplified
from mindstream_cleaning.config import CleaningConfig
from mindstream_cleaning.language import LanguageConfig
from mindstream_cleaning.page import Page, Rule
from mindstream_cleaning.repetition import RepetitionConfig
from mindstream_cleaning.sensitive import SensitiveConfig
from mindstream_cleaning.simplified import SimplifiedConfig
from mindstream_common.config import section
from mindstream_common.errors import ConfigError

HANZI = [chr(code) for code in range(0x4E00, 0x9FA0)]


def after(rule: Rule, text: str) -> tuple[str, str]:
    """(text, reason) after the rule."""
    page = Page(text=text)
    verdict = rule(page)
    return page.text, verdict.reason if verdict else ""


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("", (0, 0)),
        ("高血压a b", (5, 3)),
        ("12 。，！😀\n", (0, 0)),
        ("〇㐀𠀀豈カタ한Ωя", (9, 4)),
        ("ＡＢ１２", (2, 0)),
        ("\ud800药", (1, 1)),
    ],
)
def test_letters_and_hanzi(text: str, counted: tuple[int, int]) -> None:
    assert letters.count(text) == counted


def test_the_share_of_hanzi() -> None:
    assert letters.count("高血压abc12").hanzi_share == 0.5
    assert letters.count("123").hanzi_share == 0


@given(st.lists(st.text(max_size=30), max_size=8))
def test_counting_together_is_counting_one_by_one(texts: list[str]) -> None:
    assert letters.count_all(texts) == [letters.count(text) for text in texts]


def test_language_is_judged_by_the_share_of_hanzi() -> None:
    rule = language.rule(LanguageConfig(minimum_hanzi_share=0.5))
    assert after(rule, "this page is written in English 高血压")[1] == "language"
    assert after(rule, "高血压患者可以吃党参吗可以吃一点 hypertension")[1] == ""
    assert after(rule, "short 高")[1] == ""  # too few letters to judge
    assert after(language.rule(LanguageConfig()), "this page is written in English")[1] == ""


def varied(characters: int, seed: int = 1) -> str:
    return "".join(random.Random(seed).choices(HANZI, k=characters))


@pytest.mark.parametrize(
    "text",
    [
        "高血压患者可以吃党参" * 20,
        varied(40) * 10,
        "啊" * 200,
        "\n".join(["点击这里查看更多内容"] * 12),
        varied(60) + "广告位招租请联系我们的客服人员" * 30,
    ],
)
def test_repetition_is_dropped(text: str) -> None:
    assert after(repetition.rule(RepetitionConfig()), text)[1] == "repetition"


@pytest.mark.parametrize(
    "text",
    [
        "高血压" * 5,  # short
        varied(5000),
        varied(100) * 2,  # half of it
        "\n".join(varied(30, seed) for seed in range(50)),
        "\n".join(f"第{n}条 {varied(40, n)}\n（一）" for n in range(20)),
    ],
)
def test_what_repeats_little_is_kept(text: str) -> None:
    assert after(repetition.rule(RepetitionConfig()), text)[1] == ""


def test_repetition_measures_can_be_switched_off() -> None:
    text = "啊" * 200 + "\n" + "\n".join(["点击这里查看更多内容"] * 30)
    assert after(repetition.rule(RepetitionConfig(repeated_lines=1, repeated_ngrams=1)), text)[1] == ""


@given(st.text(alphabet="高血压患者", max_size=300), st.integers(2, 12))
def test_repeated_ngrams_are_counted_exactly(text: str, n: int) -> None:
    total = len(text) - n + 1
    right = 1 - len({text[at : at + n] for at in range(total)}) / total if total > 0 else 0.0
    assert repetition.repeated_ngrams(text, n) == pytest.approx(right)


def test_the_fast_gate_lets_nothing_through() -> None:
    """Texts of new and repeated passages, mixed: whenever the exact share is too great, the document is dropped."""
    rule = repetition.rule(RepetitionConfig(repeated_lines=1))
    seen = 0
    for seed in range(300):
        rng = random.Random(seed)
        passage, share = rng.randint(14, 80), rng.uniform(0.65, 0.85)
        bank = [varied(passage, rng.randrange(10**9)) for _ in range(3)]
        fresh = iter(varied(passage, rng.randrange(10**9)) for _ in range(1000))
        text = "".join(rng.choice(bank) if rng.random() < share else next(fresh) for _ in range(rng.randint(8, 200)))
        if 0.6 < repetition.repeated_ngrams(text, 10) < 0.7:
            seen += 1
            assert after(rule, text)[1] == "repetition"
    assert seen > 50


def test_sensitive_words_are_masked_longest_first_or_drop_the_document() -> None:
    words = ("枪支", "枪支弹药", "毒品")
    config = SensitiveConfig(words=words)
    page = Page(text="禁止枪支弹药、毒品和枪支")
    assert sensitive.rule(config, sensitive.load(config))(page) is None
    assert page.text == "禁止****、**和**"
    assert page.counts == {"masked_sensitive": 3}
    drop = SensitiveConfig(words=words, action="drop")
    assert after(sensitive.rule(drop, sensitive.load(drop)), "禁止毒品")[1] == "sensitive"
    assert after(sensitive.rule(drop, sensitive.load(drop)), "禁止吸烟")[1] == ""


def test_a_list_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "gbk.txt").write_bytes("枪支弹药".encode("gbk"))
    for name in ("gbk.txt", "absent.txt"):
        with pytest.raises(ConfigError, match=name):
            sensitive.load(SensitiveConfig(files=(str(tmp_path / name),)))
    with pytest.raises(ConfigError, match=r"section 'cleaning': files: absent.txt is not there"):
        section({"cleaning": {"sensitive": {"files": ["absent.txt"]}}}, "cleaning", CleaningConfig)


def test_traditional_characters_become_simplified_by_phrases() -> None:
    rule = simplified.rule(SimplifiedConfig(enabled=True))
    assert after(rule, "高血壓患者頭髮乾燥，皇后之後")[0] == "高血压患者头发干燥，皇后之后"
    assert after(rule, "，。？“”（１２３）abc")[0] == "，。？“”（１２３）abc"
    words = simplified.rule(SimplifiedConfig(enabled=True, variant="tw2sp"))
    assert after(words, "滑鼠")[0] == "鼠标"


PAGE = """<html><body><div><a href=1>首页</a> <a href=2>科室</a> <a href=3>专家</a></div><nav>导航</nav>
<h1>高血压患者的饮食</h1><p>高血压患者平时要少吃盐，多吃新鲜的蔬菜和水果。<a href=4>党参</a>能不能吃要问医生。</p>
<p>小贴士</p><p>每天盐的摄入量不要超过五克，油也要少放，运动要适量。</p>
<ul><li><a href=5>糖尿病患者能不能吃西瓜</a><li><a href=6>冠心病患者的日常护理要点</a></ul>
<p>版权所有</p><footer>备案号12345</footer><div class=footer>版权所有 &copy; 2026 示例网站 <a href=7>关于我们</a></div></body></html>"""


def test_main_content_leaves_out_what_is_around_the_text() -> None:
    assert html.to_text(PAGE, main_content=True).split("\n") == [
        "高血压患者的饮食",
        "高血压患者平时要少吃盐，多吃新鲜的蔬菜和水果。党参能不能吃要问医生。",
        "小贴士",
        "每天盐的摄入量不要超过五克，油也要少放，运动要适量。",
    ]
    assert "版权所有" in html.to_text(PAGE)


@pytest.mark.parametrize(
    "page",
    [
        "<p>高血<b>压</b>患者</p><p>可以吃党参吗？</p>",
        "<a href=x>只有链接</a>",
        "短",
        "<title>题</title><nav>导航</nav>",
    ],
)
def test_main_content_never_empties_a_page_that_has_text(page: str) -> None:
    assert html.to_text(page, main_content=True)


def test_letters_need_a_table_of_one_byte_per_code_point() -> None:
    assert letters._table().dtype == np.uint8
    assert len(letters._table()) == 0x110000
