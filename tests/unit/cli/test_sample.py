"""The sample corpus: same bytes for the same seed, real variety, and dirt that is there as often as it says."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from mindstream_cli.sample import Corpus, dirt, finance, write
from mindstream_cli.sample.corpus import GENERAL, compose
from mindstream_cli.sample.grammar import Material, Voice, add_section, check, load
from mindstream_common.errors import InputError
from selectolax.lexbor import LexborHTMLParser

HANZI = re.compile(r"[一-鿿]")
ID = re.compile(r"(?<!\d)\d{17}[\dX](?!\d)")
CARD = re.compile(r"(?<!\d)\d{19}(?!\d)")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return write(tmp_path_factory.mktemp("sample"))


def records_of(path: Path) -> tuple[list[dict[str, str]], int]:
    """Records of a jsonl or csv file, and how many lines are not records."""
    if path.suffix == ".csv":
        return list(csv.DictReader(io.StringIO(path.read_bytes().decode("gb18030")))), 0
    records, broken = [], 0
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            broken += 1
    return records, broken


def texts_of(path: Path) -> list[str]:
    """The documents of a file, as ingest and cleaning would read them."""
    if path.suffix in (".csv", ".jsonl"):
        return ["\n".join(r[k] for k in ("title", "ask", "answer")).strip() for r in records_of(path)[0]]
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".html":
        main = LexborHTMLParser(text).css_first("main")
        assert main is not None
        text = main.text()
    return [text.strip()]


def texts(corpus: Corpus, domain: str) -> list[str]:
    return [text for file in corpus.files if file.domain == domain for text in texts_of(file.path)]


def medical_records(corpus: Corpus) -> list[dict[str, str]]:
    return [r for f in corpus.files if f.domain == "medical" for r in records_of(f.path)[0]]


def legible(documents: list[str]) -> list[str]:
    """Documents once each, without those whose encoding was spoiled on purpose."""
    return [d for d in dict.fromkeys(documents) if len(HANZI.findall(d)) > len(d) / 2 and "锟斤拷" not in d]


def test_same_seed_same_bytes_in_any_process() -> None:
    again = (
        "import hashlib; from mindstream_cli.sample.corpus import compose; f, p = compose(7); "
        "print(hashlib.sha256(repr((f, p)).encode()).hexdigest())"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", again], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1
    assert compose(7) == compose(7)
    assert compose(7)[0] != compose(8)[0]


def test_written_fast_and_of_the_right_size(tmp_path: Path) -> None:
    start = time.process_time()
    corpus = write(tmp_path / "new" / "folder")
    assert time.process_time() - start < 2
    sizes = Counter[str]()
    for file in corpus.files:
        sizes[file.domain] += file.path.stat().st_size
        assert file.path.relative_to(corpus.folder).parts[0] == file.part
    assert 230_000 < sizes["general"] < 300_000
    assert 150_000 < sizes["medical"] < 250_000
    assert 100_000 < sizes["finance"] < 180_000


def test_parts_and_domains(corpus: Corpus) -> None:
    assert {(f.part, f.domain) for f in corpus.files} == {
        ("general", "general"),
        *((part, domain) for part in ("domain-1", "domain-2") for domain in ("medical", "finance")),
    }
    assert set(corpus.paths("domain-1")) == {
        *corpus.paths("domain-1", "medical"),
        *corpus.paths("domain-1", "finance"),
    }
    for part, domain, suffixes in (
        ("general", "general", {".txt", ".html"}),
        ("domain-1", "finance", {".txt", ".html"}),
        ("domain-2", "finance", {".txt", ".html"}),
        ("domain-1", "medical", {".jsonl", ".csv"}),
        ("domain-2", "medical", {".jsonl"}),
    ):
        assert {p.suffix for p in corpus.paths(part, domain)} == suffixes


def test_one_table_is_gb18030_and_nothing_else(corpus: Corpus) -> None:
    (path,) = [f.path for f in corpus.files if f.path.suffix == ".csv"]
    data = path.read_bytes()
    with pytest.raises(UnicodeDecodeError):
        data.decode("utf-8")
    with pytest.raises(UnicodeDecodeError):
        data.decode("gbk")  # a four-byte character is in it
    records, _ = records_of(path)
    assert len(records) == 50
    assert set(records[0]) == {"department", "title", "ask", "answer"}
    assert all(len(HANZI.findall(r["answer"])) > 20 for r in records)


def test_planted_rubbish_is_there(corpus: Corpus) -> None:
    planted, records = corpus.planted, medical_records(corpus)
    bodies = ["".join(r[k] for k in ("title", "ask", "answer")) for r in records]
    assert sum(b == "" for b in bodies) == planted["empty"] >= 1
    assert sum(b in dirt.SHORT for b in bodies) == planted["too_short"] >= 20
    symbols = sum(1 for b in bodies if b and not re.search(r"[^\W\d_]", b))
    assert symbols == planted["symbols_only"] >= 15
    broken = sum(records_of(f.path)[1] for f in corpus.files if f.domain == "medical")
    assert broken == planted["malformed_lines"] >= 1


def test_planted_duplicates_are_there_and_cross_the_halves(corpus: Corpus) -> None:
    places: dict[str, list[str]] = {}
    for file in corpus.files:
        for text in texts_of(file.path):
            if len(text) > 15 and HANZI.search(text):
                places.setdefault(text, []).append(file.part)
    copies = sum(len(parts) - 1 for parts in places.values())
    assert copies == corpus.planted["exact_duplicates"] >= 40
    assert sum(set(parts) == {"domain-1", "domain-2"} for parts in places.values()) >= 10
    contents = [f.path.read_bytes() for f in corpus.files]
    assert len(set(contents)) == len(contents)  # files differ: it is the text that repeats


def test_planted_personal_data_is_there(corpus: Corpus) -> None:
    planted = corpus.planted
    everything = "\n".join(t for d in ("general", "medical", "finance") for t in texts(corpus, d))
    phones = re.findall(r"(?<!\d)1\d\d0000\d{4}(?!\d)", everything)
    assert len(phones) >= planted["phone_numbers"] >= 20  # an announcement with a number may have been copied
    assert everything.count("@example.com") >= planted["email_addresses"] >= 20
    numbers = ID.findall(everything)
    assert Counter(map(identity_is_valid, numbers)) == {
        True: planted["identity_numbers"],
        False: planted["identity_numbers_invalid"],
    }
    assert Counter(map(luhn_is_valid, CARD.findall(everything))) == {
        True: planted["card_numbers"],
        False: planted["card_numbers_invalid"],
    }
    assert not re.findall(r"(?<!\d)1[3-9]\d(?!0000)\d{8}(?!\d)", everything)  # nothing that could be somebody's


def identity_is_valid(number: str) -> bool:
    """ISO 7064 MOD 11-2, computed the other way round than the generator does."""
    total = 0
    for digit in number[:-1]:
        total = (total + int(digit)) * 2 % 11
    return (12 - total) % 11 == (10 if number[-1] == "X" else int(number[-1]))


def luhn_is_valid(number: str) -> bool:
    doubled = [int(d) * (2 if i % 2 else 1) for i, d in enumerate(reversed(number))]
    return sum(d - 9 if d > 9 else d for d in doubled) % 10 == 0


def test_planted_encodings_are_there(corpus: Corpus) -> None:
    answers = [r["answer"] for r in medical_records(corpus)]
    assert sum("锟斤拷" in a for a in answers) == corpus.planted["lost_encoding"]
    assert sum(any(c in a for c in dirt.CONTROL) for a in answers) == corpus.planted["control_characters"]
    assert sum(any(c in a for c in dirt.INVISIBLE) for a in answers) == corpus.planted["invisible_characters"]
    spoiled = [a for a in answers if a and not HANZI.search(a) and a not in dirt.SYMBOLS]
    assert len(spoiled) == corpus.planted["misread_encoding"]
    for answer in spoiled:
        data = b"".join(bytes([ord(c)]) if ord(c) < 256 else c.encode("cp1252") for c in answer)
        assert len(HANZI.findall(data.decode("utf-8"))) > 20  # it can be repaired


def test_misread_is_what_people_see() -> None:
    assert dirt.misread("高血压") == "é«˜è¡€åŽ‹"


def test_html_pages_are_whole_and_cut_words(corpus: Corpus) -> None:
    pages = [f.path.read_text(encoding="utf-8") for f in corpus.files if f.path.suffix == ".html"]
    for page in pages:
        for tag in ("<head>", "<style>", "<script>", "<nav>", "<h1>", "<p>"):
            assert tag in page
        assert re.search(r"[一-鿿]<(b|em|span|strong|font|i)>[一-鿿]</\1>", page)
    assert sum("<table>" in page for page in pages) >= 30
    assert sum("<ul>\n" in page for page in pages) >= 20


@pytest.mark.parametrize(
    ("domain", "share", "least"), [("general", 0.9, 2500), ("medical", 0.9, 2000), ("finance", 0.8, 600)]
)
def test_sentences_do_not_repeat(corpus: Corpus, domain: str, share: float, least: int) -> None:
    sentences = [
        s for document in legible(texts(corpus, domain)) for s in re.findall(r"[^。？！\n]{4,}[。？！]", document)
    ]
    assert len(sentences) >= least
    assert len(set(sentences)) / len(sentences) > share


def test_documents_are_not_near_duplicates(corpus: Corpus) -> None:
    """No two different documents share half of their 5-grams (near duplicates have 0.8)."""
    for domain in ("general", "medical", "finance"):
        grams = [{d[i : i + 5] for i in range(len(d) - 4)} for d in legible(texts(corpus, domain)) if len(d) > 50]
        for number, one in enumerate(grams):
            for other in grams[:number]:
                assert len(one & other) < 0.5 * len(one | other)


def test_general_text_covers_the_domain_characters(corpus: Corpus) -> None:
    general = set("".join(texts(corpus, "general")))
    assert len(HANZI.findall("".join(general))) > 1800
    for domain in ("medical", "finance"):
        counts = Counter(HANZI.findall("".join(d for d in legible(texts(corpus, domain)))))
        unseen = [c for c in counts if c not in general]
        assert len(unseen) / len(counts) < 0.08
        assert sum(counts[c] for c in unseen) / counts.total() < 0.03


def test_domains_differ_in_their_words(corpus: Corpus) -> None:
    joined = {d: "".join(legible(texts(corpus, d))) for d in ("general", "medical", "finance")}
    for domain, words in (("medical", ("就诊", "患者", "复查")), ("finance", ("公司", "股东", "万元"))):
        for word in words:
            rates = {d: text.count(word) / len(text) for d, text in joined.items()}
            assert all(rates[domain] > 4 * rate for d, rate in rates.items() if d != domain), (word, rates)


def test_no_address_but_example_com(corpus: Corpus) -> None:
    for file in corpus.files:
        text = file.path.read_bytes().decode("gb18030" if file.path.suffix == ".csv" else "utf-8")
        hosts = re.findall(r"[\w-]+(?:\.[\w-]+)*\.(?:com|cn|org|net|io|local|internal)\b", text)
        assert set(hosts) <= {"example.com"}
        assert "://" not in text


def test_material_is_large_and_every_frame_can_be_filled() -> None:
    total = 0
    for names in (GENERAL, ("medical",), ("finance",)):
        material, rng = load(*names), random.Random(1)
        total += sum(map(len, material.frames.values()))
        voice = Voice(material, rng)
        rows = {name: rng.choice(rows) for name, rows in material.tables.items()}
        if "病" in rows:
            rows["病"] = rows["病"] | {"病程": "两三天"}
        for frames in material.frames.values():
            for frame in frames:
                voice.begin(**rows, 数=finance.draw(rng))
                text = voice.fill(frame)
                assert not set(text) & set("{}|*@"), frame
    assert total >= 400


def test_a_word_is_not_said_twice_in_a_sentence() -> None:
    voice = Voice(Material(lists={"花": ["兰花", "菊花", "荷花"]}), random.Random(3))
    for _ in range(50):
        voice.begin()
        first, second, third = voice.fill("{花1}、{花}、{花}").split("、")
        assert len({first, second, third}) == 3
        assert voice.fill("{花1}") == first


def test_numbers_and_whole_cells() -> None:
    voice = Voice(Material(), random.Random(3))
    voice.begin(菜={"主料": "番茄、鸡蛋"})
    assert voice.fill("{菜.主料*}") == "番茄、鸡蛋"
    for _ in range(50):
        assert 3 <= int(voice.fill("{3-5}")) <= 5
        assert 0.1 <= float(voice.fill("{0.1-0.3}")) <= 0.3


def test_material_that_is_wrong_is_refused() -> None:
    material = Material()
    add_section(material, "list 花", ["兰花 菊花"])
    with pytest.raises(ValueError, match="list '花' twice"):
        add_section(material, "list 花", ["荷花"])
    with pytest.raises(ValueError, match="lists 花"):
        add_section(material, "lists 花", ["荷花"])
    with pytest.raises(ValueError, match="zip"):
        add_section(material, "table 菜: 名 | 味", ["汤 | 鲜 | 热"])


@pytest.mark.parametrize(
    ("lists", "frames", "message"),
    [
        ({"花": ["兰花开了。"]}, {}, "list '花' is empty or holds a sentence"),
        ({"花": []}, {}, "list '花' is empty"),
        ({"花": ["兰花"]}, {"开头": ["{草}很绿。"]}, "nothing fills the slot '草'"),
    ],
)
def test_slots_and_lists_that_cannot_be_meant(
    lists: dict[str, list[str]], frames: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check(Material(lists=lists, frames=frames))


def test_figures_fit_each_other() -> None:
    def number(text: str) -> float:
        return float(text.replace(",", ""))

    for seed in range(40):
        figures = finance.draw(random.Random(seed))
        growth = float(figures["营收变动"][2:-1]) / 100 * (1 if figures["营收变动"].startswith("增长") else -1)
        assert number(figures["营收"]) / number(figures["上年营收"]) == pytest.approx(1 + growth, abs=3e-3)
        paid = number(figures["股本"]) * number(figures["派现"]) / 10
        assert number(figures["派现额"]) == pytest.approx(paid, rel=1e-6, abs=0.01)
        assert number(figures["净资产"]) < number(figures["总资产"])


def test_a_stranger_in_the_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path)  # again is fine
    stranger = tmp_path / "domain-1" / "mine.txt"
    stranger.write_text("别的文字", encoding="utf-8")
    with pytest.raises(InputError, match=r"mine\.txt is not of the sample corpus"):
        write(tmp_path)
    assert stranger.read_text(encoding="utf-8") == "别的文字"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write the sample corpus"):
        write(tmp_path / "file")


def test_by_hand(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mindstream_cli.sample"]
    done = subprocess.run([*command, str(tmp_path / "out"), "3"], capture_output=True, text=True, check=True)
    assert "exact_duplicates 46" in done.stdout
    assert (tmp_path / "out" / "domain-1" / "medical" / "qa-gb18030.csv").is_file()
    wrong = subprocess.run([*command, str(tmp_path), "seven"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "usage" in wrong.stderr
