"""Which tokens are hidden from the model: a pure function of (seed, shard, row, epoch), so a row is masked the same
way on every machine, after every restart and in every batch, and differently in each epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mindstream_trainer.vocabulary import Vocabulary


class Masked(NamedTuple):
    """A micro-batch as the model takes it: B rows of T tokens, P places for labels in each row.

    ``input_ids``, ``attention`` int32 [B, T]; ``positions`` int32 [B * P] (flat into B * T), ``labels`` int32 [B * P],
    ``weights`` float32 [B * P] (1 = a label, 0 = the place is empty).
    """

    input_ids: np.ndarray
    attention: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


class Key(NamedTuple):
    """What the mask of a row depends on, besides the seed. Epoch -1 is evaluation's."""

    shard: str
    row: int
    epoch: int


def places(length: int, probability: float) -> int:
    """P: the number of label places in a row of ``length`` tokens."""
    return max(1, round(probability * length))


def mask(
    tokens: Sequence[np.ndarray],
    keys: Sequence[Key],
    *,
    length: int,
    seed: int,
    probability: float,
    vocabulary: Vocabulary,
    words: Sequence[np.ndarray] | None = None,
) -> Masked:
    """Pad rows of ids (1-D, at most ``length``) and choose ``max(1, round(probability * candidates))`` tokens of each;
    of those 80 % become [MASK], 10 % a random ordinary entry, 10 % stay (Devlin et al. 2019, section 3.1).

    Special tokens, unknown ones and padding are never chosen. A row with nothing to choose gets no label: weight 0.

    With ``words`` (bool like ``tokens``: continues the word before it) whole words are chosen (Cui et al. 2021,
    "Pre-Training with Whole Word Masking for Chinese BERT"): in random order, each that still fits into the number
    above; where none does, the first that fits into the label places. A word longer than these is taken by its tokens.
    """
    count, most = len(tokens), places(length, probability)
    ids = np.full((count, length), vocabulary.special["pad"], np.int32)
    attention = np.zeros((count, length), np.int32)
    for i, row in enumerate(tokens):
        ids[i, : len(row)] = row
        attention[i, : len(row)] = 1
    draws = np.stack([_draws(seed, key, length) for key in keys])  # [B, 3, T]
    candidate = (attention == 1) & ~np.isin(ids, list(vocabulary.special.values()))
    if words is None:
        chosen, real = _choose(draws[:, 0], candidate, most, probability)
    else:
        chosen, real = _choose_words(draws[:, 0], candidate, most, probability, words)
    hidden = np.take_along_axis(ids, chosen, 1)
    shown = _replace(
        hidden, np.take_along_axis(draws[:, 1], chosen, 1), np.take_along_axis(draws[:, 2], chosen, 1), vocabulary
    )
    inputs = ids.copy()
    np.put_along_axis(inputs, chosen, np.where(real, shown, hidden), 1)
    flat = chosen + np.arange(count)[:, None] * length
    return Masked(
        inputs,
        attention,
        flat.astype(np.int32).reshape(-1),
        np.where(real, hidden, 0).astype(np.int32).reshape(-1),
        real.astype(np.float32).reshape(-1),
    )


def _draws(seed: int, key: Key, length: int) -> np.ndarray:
    """uint64 [3, length] from a counter-based generator with a key of its own."""
    name = f"mask\0{seed}\0{key.shard}\0{key.row}\0{key.epoch}".encode()
    philox = np.random.Philox(key=int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little"))
    return philox.random_raw(3 * length).reshape(3, length)


def _choose(draw: np.ndarray, candidate: np.ndarray, most: int, probability: float) -> tuple[np.ndarray, np.ndarray]:
    """Positions int64 [B, P], distinct within a row and in order, and which of them are real (bool [B, P])."""
    available = candidate.sum(1)
    # Halves go to the even number, as Python's round does.
    wanted = np.minimum(np.maximum(1, np.rint(probability * available)), np.minimum(most, available)).astype(np.int64)
    order = np.argsort(np.where(candidate, draw >> np.uint64(1), np.uint64(2**64 - 1)), axis=1, kind="stable")[:, :most]
    real = np.arange(most)[None, :] < wanted[:, None]
    rank = np.argsort(
        np.where(real, order, order + draw.shape[1]), axis=1, kind="stable"
    )  # real ones first, by position
    return np.take_along_axis(order, rank, 1), real


def _choose_words(
    draw: np.ndarray, candidate: np.ndarray, most: int, probability: float, words: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`_choose`, but all candidates of a word or none. A word is drawn by its first candidate."""
    every = np.arange(candidate.shape[1])
    chosen = np.tile(every[:most], (len(candidate), 1))
    real = np.zeros((len(candidate), most), bool)
    for i, marks in enumerate(words):
        at = np.flatnonzero(candidate[i])
        if not len(at):
            continue
        word = np.cumsum(~marks)[at]
        first = np.flatnonzero(np.diff(word, prepend=-1))
        sizes = np.diff(first, append=len(at))
        if sizes.max() > most:  # its tokens stand for themselves
            alone = np.repeat(sizes > most, sizes)
            first = np.union1d(first, np.flatnonzero(alone))
            sizes = np.diff(first, append=len(at))
        wanted = min(max(1, round(probability * len(at))), most)
        order = np.argsort(draw[i, at[first]], kind="stable")
        taken = order[_fit(sizes[order].tolist(), wanted)]
        found = np.sort(np.concatenate([at[first[k] : first[k] + sizes[k]] for k in taken]))
        chosen[i] = np.concatenate([found, np.setdiff1d(every, found)])[:most]  # distinct: empty places too
        real[i, : len(found)] = True
    return chosen, real


def _fit(sizes: list[int], wanted: int) -> list[int]:
    """Which of words in their order are taken: each that still fits; the first one where none does."""
    taken, total = [], 0
    for number, size in enumerate(sizes):
        if total + size <= wanted:
            taken.append(number)
            total += size
            if total == wanted:
                break
    return taken or [0]


def _replace(hidden: np.ndarray, kind: np.ndarray, other: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    share = (kind >> np.uint64(11)) * 2.0**-53
    random = vocabulary.ordinary[(other % np.uint64(len(vocabulary.ordinary))).astype(np.int64)]
    return np.where(share < 0.8, vocabulary.special["mask"], np.where(share < 0.9, random, hidden)).astype(np.int32)
