"""Tokenizers of other kinds, small ones, made as their models' are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindstream_common import documents
from mindstream_common.claims import MemoryClaims
from mindstream_common.documents import Document
from mindstream_common.errors import ConfigError
from mindstream_common.events import CleanShard
from mindstream_common.stage import Product, Work
from mindstream_tokenizer.config import TokenizerConfig
from mindstream_tokenizer.jsonfile import JsonEncoder
from mindstream_tokenizer.stage import TokenizerStage
from mindstream_writer.__main__ import build as build_writer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = [
    "我们使用语言模型。天气很好！",
    "a language model learns 3.14 things.",
    "你好<|endoftext|>，</s> [MASK] 😀👍🏽",
] * 5
KINDS = ["qwen", "llama", "glm", "bert"]


def _qwen() -> Tokenizer:
    """Byte-level BPE, no template."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    made.add_special_tokens([AddedToken("<|endoftext|>", special=True), AddedToken("<|im_end|>", special=True)])
    return made


def _llama() -> Tokenizer:
    """BPE with byte fallback, <s> before a text."""
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    made.train_from_iterator(
        TEXTS[:2], trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    return made


def _glm() -> Tokenizer:
    """Byte-level BPE, two tokens before a text."""
    made = _qwen()
    made.add_special_tokens(["[gMASK]", "<sop>"])
    pairs = [(name, made.token_to_id(name)) for name in ("[gMASK]", "<sop>")]
    made.post_processor = processors.TemplateProcessing(single="[gMASK] <sop> $A", special_tokens=pairs)
    return made


def _bert() -> Tokenizer:
    """WordPiece with BERT's template."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    )
    pairs = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=pairs)
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tokenizer.json of each kind."""
    made = {"qwen": _qwen, "llama": _llama, "glm": _glm, "bert": _bert}
    found = {}
    for kind, build in made.items():
        found[kind] = tmp_path_factory.mktemp(kind) / "tokenizer.json"
        build().save(str(found[kind]))
    return found


def tokenize(folder: Path, path: Path, texts: list[str], **options: object) -> tuple[Product, list[dict[str, object]]]:
    import pyarrow.parquet as pq

    stage = TokenizerStage(TokenizerConfig(held_out=0, **options), path)  # type: ignore[arg-type]
    made = [Document(id=f"r/{n}", source="s", format="text", text=t) for n, t in enumerate(texts)]
    documents.write(folder / "in.parquet", made)
    event = CleanShard(id="c" * 32, domain="t", objects=(), created=1.0, root="c" * 32, parents=(), documents=len(made))
    [product] = stage.run(Work(event=event, files=(folder / "in.parquet",), folder=folder, claims=MemoryClaims()))
    product.counts.check()
    return product, pq.read_table(product.files[".parquet"]).to_pylist()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_the_librarys_and_its_template_frames_the_rows(
    kind: str, files: dict[str, Path], tmp_path: Path
) -> None:
    theirs = Tokenizer.from_file(str(files[kind]))
    theirs.encode_special_tokens = True
    begin = {"qwen": [], "llama": ["<s>"], "glm": ["[gMASK]", "<sop>"], "bert": ["[CLS]"]}[kind]
    end = {"llama": "</s>", "bert": "[SEP]"}.get(kind, "<|endoftext|>")
    product, rows = tokenize(tmp_path, files[kind], TEXTS, max_length=512)
    assert len(rows) == len(TEXTS)
    for text, row in zip(TEXTS, rows, strict=True):
        plain = theirs.encode(text, add_special_tokens=False).ids
        assert row["tokens"] == [*map(theirs.token_to_id, begin), *plain, theirs.token_to_id(end)]
        assert theirs.token_to_id(end) not in plain  # written out in a text, it is text
    assert product.counts.tokens_out == sum(len(theirs.encode(t, add_special_tokens=False).ids) for t in TEXTS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("packing", ["document", "full"])
def test_no_token_vanishes_and_rows_fit(kind: str, packing: str, files: dict[str, Path], tmp_path: Path) -> None:
    product, rows = tokenize(tmp_path, files[kind], [t * 9 for t in TEXTS], max_length=48, packing=packing)
    assert product.counts.tokens_in == product.counts.tokens_out > 0
    assert max(len(row["tokens"]) for row in rows) <= 48  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.text(max_size=30), max_size=4))
def test_hostile_text(kind: str, files: dict[str, Path], texts: list[str]) -> None:
    theirs = Tokenizer.from_file(str(files[kind]))
    theirs.encode_special_tokens = True
    batch = JsonEncoder(files[kind]).encode([text.encode() for text in texts], positions=True)
    assert batch.begins is not None
    assert batch.ends is not None
    for n, text in enumerate(texts):
        of = slice(batch.tokens[n], batch.tokens[n + 1])
        assert batch.ids[of].tolist() == theirs.encode(text, add_special_tokens=False).ids
    assert (batch.begins < batch.ends).all()
    assert (np.diff(batch.done, prepend=0) >= 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.mindspore
def test_the_writer_takes_what_it_makes(kind: str, files: dict[str, Path], tmp_path: Path) -> None:
    from mindstream_common.events import TokenShard

    for packing in ("document", "full"):
        folder = tmp_path / packing
        folder.mkdir()
        product, _ = tokenize(folder, files[kind], [t * 9 for t in TEXTS], max_length=48, packing=packing)
        event = TokenShard(
            id="d" * 32, domain="t", objects=(), created=1.0, root="c" * 32, parents=(), documents=15, **product.fields
        )
        writer = build_writer({"base": {"vocab": str(files[kind])}})()
        work = Work(event=event, files=tuple(product.files.values()), folder=folder, claims=MemoryClaims())
        [written] = writer.run(work)
        assert written.counts.tokens_out == product.counts.tokens_out


def test_what_ends_a_document_can_be_named(files: dict[str, Path]) -> None:
    found = JsonEncoder(files["qwen"], "<|im_end|>")
    assert found.end == (Tokenizer.from_file(str(files["qwen"])).token_to_id("<|im_end|>"),)
    with pytest.raises(ConfigError, match=r"has no <stop> to end a document with.*tokenizer\.end_token"):
        JsonEncoder(files["qwen"], "<stop>")


@pytest.mark.parametrize("spoil", [lambda data: data[:100], lambda data: b"{}", lambda data: b"\xff"])
def test_a_file_that_is_no_tokenizer_is_refused(
    spoil: Callable[[bytes], bytes], files: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(spoil(files["qwen"].read_bytes()))
    with pytest.raises(ConfigError, match=r"cannot read the tokenizer .*tokenizer\.json"):
        TokenizerStage(TokenizerConfig(), path)


def test_a_row_must_have_room_for_text(tmp_path: Path) -> None:
    made = _bert()
    many = " ".join(["[CLS]"] * 8)
    pairs = [("[CLS]", made.token_to_id("[CLS]"))]
    made.post_processor = processors.TemplateProcessing(single=f"{many} $A", special_tokens=pairs)
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"max_length is 8, and .* puts 8 special tokens before a text"):
        TokenizerStage(TokenizerConfig(max_length=8), tmp_path / "tokenizer.json")
