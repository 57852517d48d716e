from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from mindstream_cleaning.config import CleaningConfig
from mindstream_cleaning.duplicates import NearDuplicates
from mindstream_cleaning.stage import DECLARATION, CleaningStage
from mindstream_common import documents
from mindstream_common.claims import MemoryClaims, ScopedClaims, ValkeyClaims, namespace
from mindstream_common.config import section
from mindstream_common.documents import Document
from mindstream_common.errors import ConfigError
from mindstream_common.events import RawShard
from mindstream_common.stage import Product, Work

DATA = Path(__file__).parents[4] / "shared" / "data" / "medical_qa.jsonl"
HANZI = [chr(code) for code in range(0x4E00, 0x4E00 + 3000)]
ANSWER = (
    "您好，根据您的描述，考虑是由于饮食不规律引起的慢性胃炎，建议先到医院做一个胃镜检查明确病因，"
    "平时注意清淡饮食，少吃辛辣刺激的食物，戒烟戒酒，三餐定时定量，避免过度劳累和精神紧张。"
    "可以在医生指导下服用保护胃黏膜的药物，两周以后复查，如果疼痛加重或者出现黑便应当立即就医。"
)
GREETINGS = ["", "你好！", "谢谢提问。", "朋友您好，", "祝早日康复！", "您好:", "患者你好。", "Hi~", "很高兴为您解答，"]
Clean = Callable[..., Product]


@pytest.fixture(params=["memory", pytest.param("valkey", marks=pytest.mark.servers)])
def claims(request: pytest.FixtureRequest, environment: dict[str, str]) -> Iterator[ScopedClaims]:
    """A namespace of the test's own."""
    if request.param == "memory":
        yield MemoryClaims()
        return
    words = namespace(environment["MINDSTREAM_S3_BUCKET"], 0, DECLARATION)
    opened = ValkeyClaims(environment["MINDSTREAM_VALKEY_URL"], words)
    yield opened
    opened.close()


@pytest.fixture
def clean(tmp_path: Path) -> Clean:
    """``clean(claims, id, texts)`` → the one product, balanced."""
    numbers = itertools.count()

    def run(claims: ScopedClaims, id: str, texts: Sequence[str], config: CleaningConfig | None = None) -> Product:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        id = id * 32
        rows = [Document(id=f"{id}/{n}", source=f"f#{n}", format="text", text=text) for n, text in enumerate(texts)]
        documents.write(folder / "in.parquet", rows)
        event = RawShard(id=id, domain="test", objects=(), created=1.0, root=id, parents=(), documents=len(rows))
        [product] = CleaningStage(config or CleaningConfig()).run(
            Work(event=event, files=(folder / "in.parquet",), folder=folder, claims=claims)
        )
        product.counts.check()
        assert product.counts.documents_in == len(texts)
        claims.settle(id)
        return product

    return run


def kept(product: Product) -> list[str]:
    return [document.id for path in product.files.values() for document in documents.read(path)]


def articles(seed: int, number: int) -> list[str]:
    choose = random.Random(seed)
    return ["".join(choose.choices(HANZI, k=choose.randrange(80, 600))) + "。" for _ in range(number)]


def test_t9_an_answer_posted_500_times_with_another_greeting_stays_once(claims: ScopedClaims, clean: Clean) -> None:
    choose = random.Random(9)
    posts = [choose.choice(GREETINGS) + str(n) + choose.choice("，。！ ") + ANSWER for n in range(500)]
    products = [clean(claims, "a", posts[:200]), clean(claims, "b", [*posts[200:], *articles(1, 20)])]
    assert [len(kept(product)) for product in products] == [1, 20]
    drops = [drop for product in products for drop in product.drops]
    assert sorted(drop.text for drop in drops) == sorted(posts[1:])  # the ledger has each removed post as it came
    assert {drop.reason for drop in drops} == {"near_duplicate"}
    assert {drop.duplicate_of for drop in drops} == set(kept(products[0]))
    assert all(float(drop.detail.split()[1].rstrip(",")) >= 0.8 for drop in drops)
    assert products[0].counts.dropped == {"near_duplicate": 199}
    again = clean(claims, "b", [*posts[200:], *articles(1, 20)])
    assert again.files[".parquet"].read_bytes() == products[1].files[".parquet"].read_bytes()
    assert list(again.drops) == list(products[1].drops)


def test_t10_a_corpus_that_overlaps_an_earlier_one_by_a_third_loses_the_overlap(
    claims: ScopedClaims, clean: Clean
) -> None:
    choose = random.Random(10)
    first, fresh = articles(2, 400), articles(3, 280)
    overlap = [text.replace("。", "！") + "转载" if n % 2 else text for n, text in enumerate(first[100:220])]
    second = fresh + overlap
    choose.shuffle(second)
    earlier = clean(claims, "a", first)
    later = clean(claims, "b", second)
    assert len(kept(earlier)) == 400
    assert {int(id.split("/")[1]) for id in kept(later)} == {second.index(text) for text in fresh}
    assert later.counts.dropped == {"exact_duplicate": 60, "near_duplicate": 60}
    for drop in later.drops:
        original = first[int(drop.duplicate_of.split("/")[1])]
        assert drop.text.rstrip("转载").rstrip("！。") == original.rstrip("。")


def test_real_answers_with_greetings_in_front_stay_once(claims: ScopedClaims, clean: Clean) -> None:
    if not DATA.is_file():
        pytest.skip("the real answers of ../shared/data are not there")
    with DATA.open(encoding="utf-8") as file:
        answers = list(dict.fromkeys(json.loads(line)["answer"] for line in file))
    answers = [answer for answer in answers if len(answer) > 120][:300]
    first = clean(claims, "a", answers)
    again = clean(claims, "b", [f"楼主好，{answer}" for answer in answers])
    assert len(kept(first)) > 200
    assert len(kept(again)) <= 2
    assert len(kept(again)) + sum(again.counts.dropped.values()) == len(answers)


def test_the_threshold_is_the_runs(claims: ScopedClaims, clean: Clean) -> None:
    [text] = articles(4, 1)
    letters = list(text)
    for place in range(10, len(letters), 70):
        letters[place] = "改"
    pair = [text, "".join(letters)]  # an index of about 0.87
    strict = CleaningConfig(near_duplicates=NearDuplicates(threshold=0.95))
    assert len(kept(clean(claims, "a", pair, strict))) == 2
    off = CleaningConfig(near_duplicates=NearDuplicates(enabled=False))
    assert len(kept(clean(claims, "b", [*pair, *pair], off))) == 0  # exact ones still are dropped
    other = [each.replace("。", "新的文章") for each in articles(5, 1)]
    assert len(kept(clean(claims, "c", [*other, other[0] + "。", other[0]], off))) == 2
    assert len(kept(clean(claims, "d", [pair[0] + "新"]))) == 0
    configurations = {CleaningStage(config).configuration for config in (strict, off, CleaningConfig())}
    assert len(configurations) == 3


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"threshold": 0.5}, "0.75"),
        ({"threshold": 1.5}, "1.0"),
        ({"treshold": 0.8}, "did you mean 'threshold'"),
        ({"enabled": "yes"}, "bool"),
    ],
)
def test_a_wrong_key_is_named(keys: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        section({"cleaning": {"near_duplicates": keys}}, "cleaning", CleaningConfig)
