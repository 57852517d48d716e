"""What real text has and a model should not learn: duplicates, empty and broken records, personal data, lost encodings.

Every number, address and card here is invented: telephone numbers have a block of zeros, e-mail is at example.com,
identity numbers belong to birthdays of 1900 to 1909.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from mindstream_cli.sample.medical import Record

SHORT = ("好。", "谢谢", "嗯", "收到", "顶", "是的。", "不客气", "好的", "同上", "知道了", "再见", "在吗")
SYMBOLS = ("。。。！！！", "123456", "———", "……？？？", "666666", "==========", "★★★★★", "......", "、、、、、、")
INVISIBLE = ("\u200b", "\u200d", "\ufeff", "\u2060")
CONTROL = ("\x07", "\x0b", "\x1f", "\x08")
WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)  # GB 11643, digits 1 to 17
PHONE_ASKS = ("我的电话是{}，方便的话请回电。", "联系电话{}，请拨打。", "加我微信同号{}，谢谢医生。", "家属手机{}。")
EMAIL_ASKS = ("报告可以发到{}。", "资料已发邮箱{}，请查收。", "请回复到{}，谢谢。")
ID_ASKS = ("挂号用的身份证号是{}。", "患者身份证{}，请帮忙查一下报告。", "登记信息：身份证号码{}。")
CARD_ASKS = ("退费请打到卡号{}。", "银行卡{}，医保一直没有到账。")


def phone(rng: random.Random) -> str:
    """Eleven digits of a mobile number with a block of zeros."""
    return f"1{rng.choice(('38', '55', '77', '86', '99'))}0000{rng.randint(0, 9999):04d}"


def email(rng: random.Random) -> str:
    """An address at example.com, which nobody can own."""
    return f"{rng.choice(('lianxi', 'wenzhen', 'user', 'reader', 'kefu'))}{rng.randint(10, 9999)}@example.com"


def identity(rng: random.Random, valid: bool) -> str:
    """Eighteen characters of an identity number, its check character (GB 11643, ISO 7064 MOD 11-2) right or wrong."""
    digits = f"110101{rng.randint(1900, 1909)}{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}{rng.randint(0, 999):03d}"
    right = sum(w * int(d) for w, d in zip(WEIGHTS, digits, strict=True)) % 11
    return digits + "10X98765432"[right if valid else (right + rng.randint(1, 10)) % 11]


def card(rng: random.Random, valid: bool) -> str:
    """Nineteen digits of a bank card, its check digit (Luhn, ISO/IEC 7812) right or wrong."""
    digits = f"62000000000000{rng.randint(0, 9999):04d}"
    total = sum(int(d) if i % 2 else sum(divmod(2 * int(d), 10)) for i, d in enumerate(reversed(digits)))
    return digits + str((-total + (0 if valid else rng.randint(1, 9))) % 10)


def misread(text: str) -> str:
    """UTF-8 bytes read as Latin-1 the way browsers do it: windows-1252, and Latin-1 where that has no character."""
    return "".join(bytes([b]).decode("cp1252", "ignore") or chr(b) for b in text.encode())


def sprinkle(rng: random.Random, text: str, characters: tuple[str, ...]) -> str:
    """The text with two to four of these characters between others."""
    for _ in range(rng.randint(2, 4)):
        place = rng.randint(1, len(text) - 1)
        text = text[:place] + rng.choice(characters) + text[place:]
    return text


def spoil(records: list[Record], rng: random.Random, counts: Counter[str]) -> None:
    """Change some records in place: personal data, invisible and control characters, lost encodings. Each record is
    changed once."""
    kinds: list[tuple[str, int, Callable[[], str]]] = [
        ("phone_numbers", 16, lambda: rng.choice(PHONE_ASKS).format(phone(rng))),
        ("email_addresses", 10, lambda: rng.choice(EMAIL_ASKS).format(email(rng))),
        ("identity_numbers", 8, lambda: rng.choice(ID_ASKS).format(identity(rng, True))),
        ("identity_numbers_invalid", 4, lambda: rng.choice(ID_ASKS).format(identity(rng, False))),
        ("card_numbers", 4, lambda: rng.choice(CARD_ASKS).format(card(rng, True))),
        ("card_numbers_invalid", 2, lambda: rng.choice(CARD_ASKS).format(card(rng, False))),
    ]
    chosen = iter(rng.sample(range(len(records)), 44 + 12 + 8 + 6 + 3))
    for name, number, sentence in kinds:
        for _ in range(number):
            records[next(chosen)]["ask"] += sentence()
        counts[name] += number
    for name, number, characters in (("invisible_characters", 12, INVISIBLE), ("control_characters", 8, CONTROL)):
        for _ in range(number):
            record = records[next(chosen)]
            record["answer"] = sprinkle(rng, record["answer"], characters)
        counts[name] += number
    for _ in range(6):
        record = records[next(chosen)]
        record.update({key: misread(record[key]) for key in ("title", "ask", "answer")})
    for _ in range(3):
        record = records[next(chosen)]
        record.update({key: "锟斤拷" * (len(record[key]) // 3) for key in ("title", "ask", "answer")})
    counts["misread_encoding"] += 6
    counts["lost_encoding"] += 3


def rubbish(rng: random.Random, counts: Counter[str]) -> list[Record]:
    """Records that hold nothing to learn: too short, symbols only, empty."""
    kinds = (("too_short", 24, SHORT), ("symbols_only", 18, SYMBOLS), ("empty", 3, ("",)))
    records = []
    for name, number, texts in kinds:
        counts[name] += number
        records += [{"department": "其他", "title": "", "ask": "", "answer": rng.choice(texts)} for _ in range(number)]
    return records
