from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mindstream_common import documents
from mindstream_common.claims import MemoryClaims
from mindstream_common.config import section
from mindstream_common.documents import Document
from mindstream_common.errors import ConfigError
from mindstream_common.events import CleanShard, TokenShard
from mindstream_common.stage import Product, Work
from mindstream_tokenizer import shard, vocabulary
from mindstream_tokenizer.config import TokenizerConfig
from mindstream_tokenizer.stage import TokenizerStage

Tokenize = Callable[..., Product]


def rows_of(product: Product) -> list[dict[str, Any]]:
    return [row for path in product.files.values() for row in pq.read_table(path).to_pylist()]


@pytest.fixture
def tokenize(tmp_path: Path, stages: Callable[[TokenizerConfig], TokenizerStage]) -> Tokenize:
    """``tokenize(texts, max_length=16)`` → the one product, balanced; document ids are ``r/<n>``."""
    numbers = itertools.count()

    def run(texts: Sequence[str], **options: Any) -> Product:
        stage = stages(TokenizerConfig(**options))
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        documents.write(
            folder / "in.parquet",
            [Document(id=f"r/{n}", source="s", format="text", text=t) for n, t in enumerate(texts)],
        )
        event = CleanShard(
            id="c" * 32, domain="test", objects=(), created=1.0, root="c" * 32, parents=(), documents=len(texts)
        )
        [product] = stage.run(Work(event=event, files=(folder / "in.parquet",), folder=folder, claims=MemoryClaims()))
        product.counts.check()
        assert product.counts.documents_in == len(texts)
        return product

    return run


def test_k1_three_short_documents_are_three_rows_with_one_cls_each(tokenize: Tokenize, entries: list[str]) -> None:
    rows = rows_of(tokenize(["一丁。", "丂七！", "丄"], max_length=16))
    cls, sep = entries.index("[CLS]"), entries.index("[SEP]")
    assert [row["document"] for row in rows] == ["r/0", "r/1", "r/2"]
    for row in rows:
        assert row["tokens"].index(cls) == 0
        assert row["tokens"].count(cls) == 1
        assert row["tokens"].index(sep) == len(row["tokens"]) - 1
    assert rows[0]["tokens"][1:-1] == [entries.index(c) for c in "一丁。"]


@pytest.mark.parametrize("length", [16, 128, 512])
@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("special", [0, 2])
@pytest.mark.parametrize("end", ["。", ""])
def test_k2_no_token_vanishes_around_the_length(
    tokenize: Tokenize, length: int, more: int, special: int, end: str
) -> None:
    total = length + more - special
    text = ("一丁丂七丄丅丆" * 100)[: total - len(end)] + end
    product = tokenize([text], max_length=length)
    rows = rows_of(product)
    assert product.counts.tokens_in == total
    assert product.counts.tokens_out == total == sum(len(row["tokens"]) - 2 for row in rows)
    assert product.counts.tokens_dropped == 0
    assert len(rows) == (1 if total <= length - 2 else 2)
    assert max(len(row["tokens"]) for row in rows) <= length


def test_t8_two_megabytes_without_punctuation_are_cut_without_loss(tokenize: Tokenize, entries: list[str]) -> None:
    text = "一丁丂七丄丅丆" * 100_000
    product = tokenize([text])
    rows = rows_of(product)
    assert [entries[id] for row in rows for id in row["tokens"][1:-1]] == list(text)
    assert {len(row["tokens"]) for row in rows[:-1]} == {128}


def test_rows_carry_the_smallest_bucket_that_holds_them(tokenize: Tokenize) -> None:
    rows = rows_of(tokenize(["一" * n for n in (1, 30, 31, 62, 63, 126)], buckets=(32, 64, 128)))
    assert [row["length"] for row in rows] == [32, 32, 64, 64, 128, 128]
    assert {row["length"] for row in rows_of(tokenize(["一" * n for n in (1, 62, 63)]))} == {64, 128}
    assert {row["length"] for row in rows_of(tokenize(["一"], max_length=16))} == {16}


def test_a_document_without_tokens_is_a_drop(tokenize: Tokenize) -> None:
    product = tokenize(["\u0301\u0300", "一"])
    [drop] = product.drops
    assert (drop.document, drop.reason, drop.text) == ("r/0", "no_tokens", "\u0301\u0300")
    assert product.counts.dropped == {"no_tokens": 1}
    assert [row["document"] for row in rows_of(product)] == ["r/1"]
    assert tokenize(["\u0301"]).files == {}


def test_unknown_tokens_are_counted(tokenize: Tokenize) -> None:
    assert tokenize(["一龘龘abc", "😀"]).counts.extra == {"unknown_tokens": 3}


def test_held_out_documents_are_whole_and_the_same_wherever_they_come(tokenize: Tokenize) -> None:
    texts = [f"一丁{n}。" * 60 for n in range(300)]
    splits: dict[str, set[str]] = {}
    for row in rows_of(tokenize(texts, held_out=0.2)):
        splits.setdefault(texts[int(row["document"][2:])], set()).add(row["split"])
    assert {len(of) for of in splits.values()} == {1}
    assert 30 < sum(of == {"held_out"} for of in splits.values()) < 90
    for row in rows_of(tokenize(texts[::-1], held_out=0.2)):
        assert splits[texts[::-1][int(row["document"][2:])]] == {row["split"]}
    assert {row["split"] for row in rows_of(tokenize(texts, held_out=0.0))} == {"train"}


def test_fields_make_the_next_event(tokenize: Tokenize, vocab: Path, entries: list[str]) -> None:
    product = tokenize(["一丁。"] * 3)
    event = TokenShard(
        id="0" * 32, domain="d", objects=(), created=0.0, root="0" * 32, parents=(), documents=3, **product.fields
    )
    assert (event.rows, event.tokens, event.vocab_size) == (3, 9, len(entries))
    assert event.tokenizer_sha256 == vocabulary.load(vocab).sha256


def test_the_same_documents_give_the_same_bytes(tokenize: Tokenize) -> None:
    texts = [f"一丁 abc{n}。" * (n % 50) for n in range(600)]
    first, second = (tokenize(texts).files[".parquet"].read_bytes() for _ in range(2))
    assert first == second


def test_the_file_uses_the_smallest_type(tokenize: Tokenize) -> None:
    [path] = tokenize(["一"]).files.values()
    assert str(pq.read_schema(path).field("tokens").type.value_type) == "uint16"


def test_the_vocabulary_is_part_of_the_configuration(tmp_path: Path, vocab: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_bytes(vocab.read_bytes() + "龘\n".encode())
    config = TokenizerConfig()
    names = {
        TokenizerStage(c, v).configuration
        for c, v in ((config, vocab), (config, other), (TokenizerConfig(max_length=64), vocab))
    }
    assert len(names) == 3


@pytest.mark.parametrize("buckets", [[64], [128, 64], [64, 64, 128], [4, 128], [64, 256]])
def test_buckets_that_do_not_fit_are_refused_with_the_numbers(buckets: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"max_length is 128"):
        section({"tokenizer": {"buckets": buckets}}, "tokenizer", TokenizerConfig)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.text(st.sampled_from("一丁。！”\nab 9😀龘\u0301\u3000"), max_size=80), max_size=8),
    length=st.sampled_from([8, 9, 16, 33]),
)
def test_tokens_in_are_tokens_out_for_any_text(tokenize: Tokenize, texts: list[str], length: int) -> None:
    product = tokenize(texts, max_length=length)
    rows = rows_of(product)
    assert product.counts.tokens_in == sum(len(row["tokens"]) - 2 for row in rows) + product.counts.tokens_dropped
    documents = list(dict.fromkeys(row["document"] for row in rows)) + [drop.document for drop in product.drops]
    assert sorted(documents) == [f"r/{n}" for n in range(len(texts))]
    assert all(len(row["tokens"]) <= row["length"] <= length for row in rows)


def pieces(row: dict[str, Any]) -> list[tuple[str, list[int]]]:
    """(document, tokens) of a packed row."""
    found = []
    for part in row["document"].split(" "):
        document, span = part.rsplit("@", 1)
        start, stop = map(int, span.split("-"))
        found.append((document, row["tokens"][start:stop]))
    return found


def test_full_packing_fills_rows_and_names_every_piece(tokenize: Tokenize, entries: list[str]) -> None:
    texts = [f"一丁丂七{n}。" * (1 + n * 7 % 40) + "丅丆万。" * (n % 3) for n in range(200)]
    options = {"max_length": 64, "held_out": 0.2}
    plain, packed = tokenize(texts, **options), tokenize(texts, packing="full", **options)
    assert packed.counts.tokens_in == packed.counts.tokens_out == plain.counts.tokens_out
    tokens: dict[str, list[int]] = {}
    splits: dict[str, set[str]] = {}
    for row in rows_of(plain):
        tokens.setdefault(row["document"], []).extend(row["tokens"][1:-1])
        splits.setdefault(row["document"], set()).add(row["split"])
    found: dict[str, list[int]] = {}
    cls, sep = entries.index("[CLS]"), entries.index("[SEP]")
    for row in rows_of(packed):
        assert row["length"] == 64
        rebuilt = [cls]
        for document, of in pieces(row):
            found.setdefault(document, []).extend(of)
            assert splits[document] == {row["split"]}
            rebuilt += [*of, sep]
        assert rebuilt == row["tokens"]  # one [CLS], a [SEP] behind each document, and nothing else
    assert found == tokens
    assert sum(len(row["tokens"]) for row in rows_of(packed)) > 0.97 * 64 * packed.counts.rows
    assert packed.counts.rows < 0.85 * plain.counts.rows
    again = tokenize(texts, packing="full", **options)
    assert again.files[".parquet"].read_bytes() == packed.files[".parquet"].read_bytes()


@pytest.mark.parametrize("length", [16, 128, 512])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_k2_no_token_vanishes_in_full_rows(tokenize: Tokenize, length: int, more: int) -> None:
    text = "一丁丂七丄丅丆" * 300
    for special in (0, 2, 3):
        total = length + more - special
        product = tokenize(
            [text[:total], "", text[:3], text[: 2 * total]], packing="full", max_length=length, held_out=0
        )
        rows = rows_of(product)
        assert product.counts.tokens_in == product.counts.tokens_out == 3 * total + 3
        assert sum(len(row["tokens"]) - 1 - len(pieces(row)) for row in rows) == 3 * total + 3
        assert max(len(row["tokens"]) for row in rows) <= length
        assert [drop.document for drop in product.drops] == ["r/1"]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary that can spell 使用语言模型."""
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    entries = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"使用语言模型我们的。，",
        "trans",
        "##form",
        "##er",
        *"abc",
    ]
    path.write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")
    return path


def marked(words: Path, folder: Path, texts: Sequence[str], **options: Any) -> tuple[list[dict[str, Any]], Product]:
    stage = TokenizerStage(TokenizerConfig(whole_word=True, held_out=0, **options), words)
    made = [Document(id=f"r/{n}", source="s", format="text", text=t) for n, t in enumerate(texts)]
    documents.write(folder / "in.parquet", made)
    event = CleanShard(id="c" * 32, domain="t", objects=(), created=1.0, root="c" * 32, parents=(), documents=len(made))
    [product] = stage.run(Work(event=event, files=(folder / "in.parquet",), folder=folder, claims=MemoryClaims()))
    return rows_of(product), product


def test_k3_words_are_marked_and_a_broken_segmentation_falls_back_to_characters(words: Path, tmp_path: Path) -> None:
    texts = ["使用语言模型", "使用语言模型👍🏽", "我们使用😀语言模型。", "用transformer，使用模型"]
    rows, product = marked(words, tmp_path, texts)
    assert [row["words"] for row in rows] == [
        [False, False, True, False, True, False, True, False],  # [CLS] 使 用 语 言 模 型 [SEP]
        [False] * 9,  # two code points of jieba's are one token here
        [False, False, True, False, True, False, False, True, False, True, False, False],
        [False, False, False, True, True, False, False, True, False, True, False],  # 用 trans form er ， 使用 模型
    ]
    assert product.counts.extra["whole_word_fallback"] == 1


def test_k3_marks_begin_anew_with_every_row_and_document(words: Path, tmp_path: Path) -> None:
    rows, _ = marked(words, tmp_path, ["我们的使用语言模型" * 3, "使用。"], max_length=8)
    joined = [(id, mark) for row in rows[:-1] for id, mark in zip(row["tokens"][1:-1], row["words"][1:-1], strict=True)]
    assert len(joined) == 27
    assert all(not row["words"][0] and not row["words"][1] and not row["words"][-1] for row in rows)
    (tmp_path / "full").mkdir()
    packed, _ = marked(words, tmp_path / "full", ["使用", "语言模型", "的模型。"], packing="full", max_length=32)
    assert [row["words"] for row in packed] == [
        [False, False, True, False, False, True, False, True, False, False, False, True, False, False]
    ]


def test_marks_change_neither_ids_nor_rows_and_are_off_by_default(words: Path, tmp_path: Path) -> None:
    texts = ["我们使用语言模型。" * 40, "transformer"]
    rows, _ = marked(words, tmp_path, texts)
    stage = TokenizerStage(TokenizerConfig(held_out=0), words)
    event = CleanShard(id="c" * 32, domain="t", objects=(), created=1.0, root="c" * 32, parents=(), documents=2)
    [product] = stage.run(Work(event=event, files=(tmp_path / "in.parquet",), folder=tmp_path, claims=MemoryClaims()))
    assert rows_of(product) == [{k: v for k, v in row.items() if k != "words"} for row in rows]
    assert "whole_word_fallback" not in product.counts.extra


def test_special_tokens_written_out_in_a_document_stay_text(tokenize: Tokenize, entries: list[str]) -> None:
    special = {entries.index(name) for name in ("[CLS]", "[SEP]", "[MASK]", "[PAD]")}
    for packing in ("document", "full"):
        [row] = rows_of(tokenize(["一[MASK]丁[SEP] [CLS][PAD]"], packing=packing, held_out=0))
        assert special & set(row["tokens"][1:-1]) == set()
        assert len(row["tokens"]) > 6


def test_the_largest_document_is_cut_in_bounded_memory(tokenize: Tokenize) -> None:
    """Sixteen million bytes of one letter: a word of a million bytes is an [UNK]."""
    product = tokenize(["a" * 16_000_000, "一丁。"])
    assert product.counts.tokens_in == 16 + 3
    assert product.counts.extra == {"unknown_tokens": 16}


@pytest.mark.parametrize("text", ["一丁ab。丂七\n丄 丅 c1.\n", "一丁ab。丂七cd。", "ab cd 一", "一丁丂七丄丅丆"])
@pytest.mark.parametrize("packing", ["document", "full"])
def test_pieces_of_a_long_text_are_as_the_whole(
    tokenize: Tokenize, text: str, packing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [text * 40, "", "一。", text * 3]
    whole = tokenize(texts, packing=packing, held_out=0, max_length=32)
    monkeypatch.setattr(shard, "PIECE", 64)
    pieces = tokenize(texts, packing=packing, held_out=0, max_length=32)
    tokens, cut = ([id for row in rows_of(p) for id in row["tokens"]] for p in (whole, pieces))
    assert tokens == cut
    assert [row["document"] for row in rows_of(whole)] == [row["document"] for row in rows_of(pieces)]
