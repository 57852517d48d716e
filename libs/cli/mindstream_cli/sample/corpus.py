"""The files of the sample corpus, as bytes by relative path."""

from __future__ import annotations

import csv
import io
import json
import random
from collections import Counter
from pathlib import PurePosixPath

from mindstream_cli.sample import dirt, finance, medical, pages
from mindstream_cli.sample.grammar import Voice, load
from mindstream_cli.sample.medical import Record

GENERAL = ("common", "food", "weather", "places", "things", "tech", "nature", "reading", "life", "body")
GENERAL_NOTES, RECORDS, ANNOUNCEMENTS, CSV_RECORDS = 255, 220, 56, 50
COMMON_GROUND = ("身体", "商业", "看病", "账本")  # twice: words that the domain text uses
COPIES = {"notes": 6, "announcements": 8, "records": 32}
PARTS = ("domain-1", "domain-2")
FIELDS = ("department", "title", "ask", "answer")
NOTES_MENU, FINANCE_MENU = ["首页", "随笔", "关于本站"], ["首页", "公司公告", "投资者关系", "联系我们"]
Files = dict[str, bytes]


def compose(seed: int) -> tuple[Files, dict[str, int]]:
    """Every file of the corpus and how often each kind of dirt was planted. The same seed gives the same bytes."""
    rng, counts = random.Random(seed), Counter[str]()
    files: Files = {}
    _general(files, rng, counts)
    _medical(files, rng, counts)
    _finance(files, rng, counts)
    return dict(sorted(files.items())), dict(sorted(counts.items()))


def _general(files: Files, rng: random.Random, counts: Counter[str]) -> None:
    voice = Voice(load(*GENERAL), rng)
    pages_of = voice.material.pages
    kinds = [*pages_of.values(), *(pages_of[name] for name in COMMON_GROUND)]
    for number in range(1, GENERAL_NOTES + 1):
        title, paragraphs = voice.page(kinds[number % len(kinds)])
        if number % 8 == 0:
            text = pages.page(rng, title, paragraphs, "四季笔记", NOTES_MENU)
            files[f"general/page-{number:03d}.html"] = text.encode()
        else:
            files[f"general/note-{number:03d}.txt"] = _text(title, paragraphs)
    _copy(files, rng, "general/", "general/", COPIES["notes"], counts)


def _text(title: str, paragraphs: list[str]) -> bytes:
    return "\n\n".join([title, *paragraphs, ""]).encode()


def _copy(files: Files, rng: random.Random, source: str, target: str, number: int, counts: Counter[str]) -> None:
    """Some text files once more under another name. The copy has an empty line more, so that only its text is equal."""
    names = [name for name in files if name.startswith(source) and name.endswith(".txt")]
    for name in rng.sample(names, number):
        files[f"{target}{PurePosixPath(name).stem}-copy.txt"] = files[name] + b"\n"
    counts["exact_duplicates"] += number


def _medical(files: Files, rng: random.Random, counts: Counter[str]) -> None:
    voice = Voice(load("medical"), rng)
    records = [medical.record(voice, rng) for _ in range(RECORDS)]
    clean = rng.sample(records, COPIES["records"])
    # The table stays free of dirt: every illness is in it, and one has a letter that GB18030 writes with four bytes.
    dirt.spoil([record for record in records[CSV_RECORDS:] if record not in clean], rng, counts)
    counts["exact_duplicates"] += len(clean)
    # Copies go to the end of the list, their originals lie anywhere: half of the copies are in another part.
    records += [dict(record) for record in clean]
    extra = dirt.rubbish(rng, counts)
    half = len(records) // 2
    for part, own, junk in (
        ("domain-1", records[:half], extra[0::2]),
        ("domain-2", records[half:], extra[1::2]),
    ):
        if part == "domain-1":
            files[f"{part}/medical/qa-gb18030.csv"] = _csv(own[:CSV_RECORDS])
            own = own[CSV_RECORDS:]
        mixed = own + junk
        rng.shuffle(mixed)
        third = len(mixed) // 2
        files[f"{part}/medical/qa-1.jsonl"] = _jsonl(mixed[:third], rng, counts)
        files[f"{part}/medical/qa-2.jsonl"] = _jsonl(mixed[third:], rng, counts)


def _jsonl(records: list[Record], rng: random.Random, counts: Counter[str]) -> bytes:
    """One record a line; somewhere a line that broke off."""
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    broken = rng.choice([line for line in lines if len(line) > 200])
    lines.insert(rng.randrange(len(lines)), broken[: rng.randint(60, 150)])
    counts["malformed_lines"] += 1
    return ("\n".join(lines) + "\n").encode()


def _csv(records: list[Record]) -> bytes:
    """GB18030, as spreadsheets write it."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, FIELDS)
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue().encode("gb18030")


def _finance(files: Files, rng: random.Random, counts: Counter[str]) -> None:
    voice = Voice(load("finance"), rng)
    kinds = list(voice.material.pages.values())
    for number in range(ANNOUNCEMENTS):
        part = PARTS[number * 2 // ANNOUNCEMENTS]
        title, paragraphs, table = finance.announcement(voice, kinds[number % len(kinds)], rng)
        if number % 3 == 0:
            paragraphs.append(f"联系电话：{dirt.phone(rng)}，电子邮箱：{dirt.email(rng)}。")
            counts["phone_numbers"] += 1
            counts["email_addresses"] += 1
        if number % 4 == 3:
            files[f"{part}/finance/notice-{number:03d}.txt"] = _text(title, paragraphs)
        else:
            text = pages.page(rng, title, paragraphs, "公告网", FINANCE_MENU, table)
            files[f"{part}/finance/notice-{number:03d}.html"] = text.encode()
    _copy(files, rng, "domain-1/finance/", "domain-2/finance/", COPIES["announcements"] // 2, counts)
    _copy(files, rng, "domain-2/finance/notice", "domain-2/finance/", COPIES["announcements"] // 2, counts)
