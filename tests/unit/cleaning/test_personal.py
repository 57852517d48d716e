"""Personal data: cases T2 and T3, every kind, what is left alone, and time in proportion to the text."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindstream_cleaning import identifiers, patterns, personal
from mindstream_cleaning.page import Page
from mindstream_cleaning.personal import PersonalDataConfig

ID = "11010519491231002X"  # the example of GB 11643-1999
CARD = "6222021234567890128"
CODE = "91350100M000100Y43"  # the example of GB 32100-2015


def masked(text: str, **config: object) -> str:
    page = Page(text=text)
    assert personal.rule(PersonalDataConfig(**config))(page) is None  # type: ignore[arg-type]
    return page.text


def wrong(number: str) -> str:
    """The number with another check digit."""
    return number[:-1] + str((int(number[-1], 36) + 1) % 10)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("联系电话13812345678，请拨打", "联系电话[手机号]，请拨打"),
        ("电话是13812345678我等你", "电话是[手机号]我等你"),
        ("１３８１２３４５６７８找我", "[手机号]找我"),
        ("请打+86 138 1234 5678或86-138-1234-5678", "请打[手机号]或[手机号]"),
        ("微信同号13812345678", "微信同号[手机号]"),
        ("a13812345678b", "a[手机号]b"),
    ],
)
def test_t2_numbers_glued_to_hanzi_are_found(text: str, right: str) -> None:
    assert masked(text) == right


def test_t3_a_card_beside_an_identity_number() -> None:
    assert identifiers.is_id_card(ID)
    assert identifiers.is_luhn(CARD)
    assert len(CARD) == 19
    assert masked(f"卡号{CARD}身份证{ID}号") == "卡号[银行卡号]身份证[身份证号]号"
    assert masked(f"{ID} {CARD}") == "[身份证号] [银行卡号]"
    assert masked(f"{CARD},{ID.lower()}") == "[银行卡号],[身份证号]"


def test_t3_wrong_check_digits_are_left_alone_unless_it_is_strict() -> None:
    text = f"卡号{wrong(CARD)}身份证{wrong(ID)}号"
    assert masked(text) == text
    assert masked(text, strict=True) == "卡号[银行卡号]身份证[身份证号]号"


def test_t3_a_wrong_identity_number_is_no_card_even_if_luhn_fits() -> None:
    fitting = next(
        n
        for n in (f"4101051949123100{k:02}" for k in range(100))
        if identifiers.is_luhn(n) and not identifiers.is_id_card(n)
    )
    assert masked(fitting) == fitting


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (f"代码{CODE}。", "代码[统一社会信用代码]。"),
        ("邮箱zhang.san+x@mail.example.com.cn联系", "邮箱[邮箱]联系"),
        ("ｚｓ＠ｅｘａｍｐｌｅ．ｃｏｍ", "[邮箱]"),
        ("座机010-62345678转802", "座机[固定电话]"),
        ("座机(0371)6234 5678", "座机[固定电话]"),
        ("座机（010）62345678", "座机[固定电话]"),
        ("传真+86-21-52345678", "传真[固定电话]"),
        ("卡6222 0212 3456 7890 128", "卡[银行卡号]"),
        ("卡4111-1111-1111-1111", "卡[银行卡号]"),
        ("卡３７８２８２２４６３１０００５", "卡[银行卡号]"),
        ("车牌京A12345和粤B·12D45还有沪AD12345", "车牌[车牌号]和[车牌号]还有[车牌号]"),
        ("护照E12345678和EA1234567", "护照[护照号]和[护照号]"),
    ],
)
def test_each_kind_is_found(text: str, right: str) -> None:
    assert masked(text) == right


@pytest.mark.parametrize(
    "text",
    [
        "国药准字H20051234，国药准字S20050001",
        "京津冀A股12家，云A型3号",
        "2018-12-29至2019-01-01，GB 11643-1999，ISO 9001",
        "订单20181229123456789012345678",
        "圆周率3.14159265358979，0.13812345678",
        "共12345678元，热线12345，邮编100000",
        "第E12345678号",
        "三聚氰胺@示例",
        "1111111111111111",
        "138123456789",
    ],
)
def test_other_numbers_are_left_alone(text: str) -> None:
    assert masked(text) == text


def test_a_kind_is_masked_dropped_or_kept() -> None:
    text = f"电话13812345678，身份证{ID}"
    assert masked(text, mobile="keep") == "电话13812345678，身份证[身份证号]"
    # A kept number is not taken for one of another kind.
    assert masked(f"卡{CARD}", bank_card="keep") == f"卡{CARD}"
    verdict = personal.rule(PersonalDataConfig(id_card="drop"))(Page(text=text))
    assert verdict is not None
    assert (verdict.reason, verdict.detail) == ("personal_data", "holds id_card")


def test_what_is_masked_is_counted_by_kind() -> None:
    page = Page(text="13812345678和13912345678，zs@example.com")
    personal.rule(PersonalDataConfig())(page)
    assert page.counts == {"masked_mobile": 2, "masked_email": 1}


@pytest.mark.parametrize(
    ("number", "right"),
    [
        (ID, True),
        (wrong(ID), False),
        ("110105194912310021", False),
        ("110105194913310029", False),
        ("x" * 18, False),
        ("", False),
    ],
)
def test_check_digit_of_identity_numbers(number: str, right: bool) -> None:
    assert identifiers.is_id_card(number) is right


@pytest.mark.parametrize("number", ["4111111111111111", "378282246310005", CARD])
def test_check_digit_of_cards(number: str) -> None:
    assert identifiers.is_luhn(number)
    assert not identifiers.is_luhn(wrong(number))


def test_check_digit_of_credit_codes() -> None:
    assert identifiers.is_credit_code(CODE)
    assert not identifiers.is_credit_code(wrong(CODE))
    assert not identifiers.is_credit_code(CODE[:-1] + "I")


@pytest.mark.parametrize(
    "text",
    [
        "1" * 1_000_000,
        "a" * 1_000_000,
        "a@" * 500_000,
        "a." * 500_000 + "@",
        "a@" + "a." * 500_000,
        "1234 " * 200_000,
        "京A" * 500_000,
        "0" * 20 + "010-" * 250_000,
        "E" * 500_000 + "1" * 500_000,
    ],
    ids=["digits", "letters", "ats", "dots", "domains", "groups", "plates", "areas", "passports"],
)
def test_a_megabyte_takes_seconds_at_most(text: str) -> None:
    began = time.process_time()
    patterns.find("13812345678" + "电" + text)
    assert time.process_time() - began < 2


@given(st.text(alphabet="0123456789xX０１２３ -@.aEG电京A", max_size=60), st.booleans())
def test_found_places_do_not_overlap_and_the_rest_stays(text: str, strict: bool) -> None:
    found = patterns.find(text, strict=strict)
    assert all(a.end <= b.start for a, b in itertools.pairwise(found))
    rest, at = "", 0
    for place in found:
        rest += text[at : place.start] + place.kind.mask
        at = place.end
    # The gate lets through whatever can be found.
    assert masked(text, strict=strict) == rest + text[at:]


@given(
    st.lists(
        st.sampled_from(
            [ID, CARD, CODE, "13812345678", "zs@example.com", "京A12345", "粤B1234学", "E12345678", "010-62345678"]
        )
        | st.text(alphabet="0１xX -.@转学挂京字第药，a（", max_size=4),
        max_size=8,
    ).map("".join),
    st.booleans(),
)
def test_looking_at_islands_finds_what_looking_at_everything_finds(text: str, strict: bool) -> None:
    whole = patterns._in_island(text, 0, patterns.KINDS, strict)
    assert patterns.find(text, strict=strict) == whole


@given(st.sampled_from([ID, CARD, CODE, "13812345678", "zs@example.com", "京A12345", "E12345678", "010-62345678"]))
def test_nothing_that_was_masked_is_found_again(number: str) -> None:
    once = masked(f"是{number}，")
    assert number not in once
    assert masked(once) == once


@pytest.mark.parametrize("dash", ["-", "\u2010", "\u2011", "\u2013", "\u2014", "\u2212", "－"])
def test_any_dash_may_stand_in_a_number(dash: str) -> None:
    assert masked(f"请拨打138{dash}1234{dash}5678，谢谢") == "请拨打[手机号]，谢谢"
