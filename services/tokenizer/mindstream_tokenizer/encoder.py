"""Text to token ids, exactly as Hugging Face's BertWordPieceTokenizer, some fifty times faster on Chinese.

That tokenizer takes every Hanzi and every punctuation mark as a word of its own, whatever stands beside it. So their ids
come from a table by code point, built by asking it once; only what lies between them (Latin words, digits, other
scripts) is handed to it, and remembered. One difference is on purpose: ``[MASK]`` in a text is five tokens of text here,
never the special token.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from mindstream_common.errors import ConfigError
from tokenizers import BertWordPieceTokenizer

from mindstream_tokenizer.vocabulary import Vocabulary

Ids = npt.NDArray[np.int32]

OTHER, NOTHING = -1, -2  # in the table: part of a run that the tokenizer must see; no token at all
BLANKS = " \n\t\r\u00a0\u2002\u2003\u3000"
HANZI = (range(0x4E00, 0xA000), range(0x3400, 0x4DC0))
REMEMBERED = 200_000  # runs
PROBE = 400  # characters


@dataclass(frozen=True, slots=True)
class Encoded:
    """Of one text: token ``ids``, and for each token ``ends``, the position in the text (in characters) after the word
    that it belongs to. Both of shape (tokens,)."""

    ids: Ids
    ends: Ids


class Encoder:
    """Encodes batches of texts. Raises ConfigError when the vocabulary cannot spell what it contains."""

    def __init__(self, vocabulary: Vocabulary, lowercase: bool) -> None:
        self._tokenizer = BertWordPieceTokenizer(vocabulary.ids, lowercase=lowercase)
        self._runs: dict[str, list[int]] = {}
        known = vocabulary.ids
        self.unknown, self.cls, self.sep = known["[UNK]"], known["[CLS]"], known["[SEP]"]
        self._table = self._build()
        _probe(self, vocabulary)

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Token ids without special tokens, in the order of ``texts``."""
        joined = "\n".join(texts) + "\n"
        points = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
        found = self._table[points]
        edges = np.diff((found == OTHER).view(np.int8), prepend=0, append=0)
        starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        runs = self._encode_runs([joined[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)])
        sizes = np.fromiter(map(len, runs), np.int64, len(runs))

        count = (found >= 0).astype(np.int64)  # tokens of each character; a run's stand at its first
        count[starts] = sizes
        after = np.cumsum(count)
        ids = np.empty(int(after[-1]), np.int32)
        end = np.arange(1, len(points) + 1)
        end[starts] = stops
        single = found >= 0
        ids[after[single] - 1] = found[single]
        if runs:
            first = np.repeat(after[starts] - sizes - (np.cumsum(sizes) - sizes), sizes)
            ids[first + np.arange(int(sizes.sum()))] = np.fromiter(
                (i for run in runs for i in run), np.int32, int(sizes.sum())
            )
        ends = np.repeat(end, count)
        return _split(texts, ids, ends, after)

    def _encode_runs(self, runs: Sequence[str]) -> list[list[int]]:
        if len(self._runs) > REMEMBERED:
            self._runs.clear()
        missing = list({run: None for run in runs if run not in self._runs})
        if missing:
            self._runs.update(zip(missing, self._ask(missing), strict=True))
        return [self._runs[run] for run in runs]

    def _ask(self, texts: Iterable[str]) -> list[list[int]]:
        return [encoded.ids for encoded in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def _build(self) -> Ids:
        table = np.full(0x110000, OTHER, np.int32)
        alone = [point for span in HANZI for point in span] + [p for p in range(0x21, 0x10000) if _is_punctuation(p)]
        within = self._ask(f"a{chr(point)}a" for point in alone)  # the tokenizer's Unicode may be older than Python's
        for point, ids, around in zip(alone, self._ask(map(chr, alone)), within, strict=True):
            if len(ids) == 1 and len(around) == 3 and around[0] == around[2] and around[1] == ids[0]:
                table[point] = ids[0]
        table[[ord(blank) for blank in BLANKS]] = NOTHING
        return table


def _split(texts: Sequence[str], ids: Ids, ends: npt.NDArray[np.int64], after: npt.NDArray[np.int64]) -> list[Encoded]:
    """Cut what was encoded together into texts again."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts)) + 1  # with the newline between them
    last = np.cumsum(lengths)
    tokens = [0, *after[last - 1].tolist()]
    return [
        Encoded(ids[a:b], (ends[a:b] - start).astype(np.int32))
        for a, b, start in zip(tokens, tokens[1:], (last - lengths).tolist(), strict=False)
    ]


def _is_punctuation(point: int) -> bool:
    """What BERT's pre-tokenizer takes for punctuation: ASCII signs and Unicode's categories P."""
    if point < 0x80:
        return chr(point).isprintable() and not chr(point).isalnum() and point > 0x20
    return unicodedata.category(chr(point)).startswith("P")


def _probe(encoder: Encoder, vocabulary: Vocabulary) -> None:
    """Encode characters of the vocabulary and look the ids up again: a shifted or foreign file fails here, not in training."""
    hanzi = [entry for entry in vocabulary.entries if len(entry) == 1 and any(ord(entry) in span for span in HANZI)]
    probe = "".join(hanzi[:: max(1, len(hanzi) // PROBE)])
    ids = encoder.encode([probe])[0].ids
    back = "".join(vocabulary.entries[id] for id in ids)
    if not probe or back != probe:
        raise ConfigError(
            f"{vocabulary.path}: {len(hanzi)} Hanzi among {len(vocabulary)} entries; the text {probe[:40]!r} comes back as "
            f"{back[:40]!r}. Use the vocab.txt of a Chinese BERT."
        )
