"""Sketches: a few hundred bytes per document, from which its likeness to another one can be told.

The likeness of two documents is the Jaccard index of their sets of character 5-grams, after NFKC and without white
space, controls and punctuation (for this comparison only: the text itself stays as it is). A sketch has two parts:

* **Bands** say where to look. One hash function throws the 5-grams into ``BANDS * ROWS`` bins, the least of each bin is
  its value, and an empty bin borrows from a bin chosen by a hash of (bin, attempt): one-permutation MinHash with optimal
  densification (Shrivastava 2017, "Optimal Densification for Fast and Accurate Minwise Hashing"). Each band is a hash of
  its ``ROWS`` values; documents of index J share a band with probability 1 - (1 - J^ROWS)^BANDS.
* The **signature** decides. It is an odd sketch (Mitzenmacher, Pagh and Pham 2014, "Efficient Estimation for High
  Similarities using Odd Sketches"): 1024 bits, bit i is the parity of the 5-grams that hash to i. The bits in which two
  of them differ give the number of 5-grams that only one document has. Near 0.8 this is right to 0.01 (standard error)
  where 128 bytes of MinHash are right to 0.035. :mod:`mindstream_common.signatures` describes the layout.

The same text gives the same sketch on every machine. ``VERSION`` names everything whose change would end all matches;
a test holds vectors to it.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
from mindstream_common.signatures import BITS, HALF_FROM, MOST
from numpy.typing import NDArray

NGRAM = 5
LEAST = 50  # characters; below that one changed character already gives an index of 0.8, or less
LONGEST = 1 << 22  # characters; a longer document is compared as a whole only, so that memory stays bounded
BANDS, ROWS = 12, 5
BINS = BANDS * ROWS
VERSION = f"nfkc-n{NGRAM}-oph{BANDS}x{ROWS}-odd{BITS}-1"

_DOCUMENTS = 128  # sketched at once: a document's number takes the top 7 bits of a key, the hash the other 57
_CHARACTERS = 1 << 19  # ... or fewer, when they are long
_HASH_BITS = np.uint64(57)
_HASH = np.uint64((1 << 57) - 1)
_EXPANDS = np.uint32(0xFFFFFFFF)
_ATTEMPTS = 64  # of an empty bin to borrow, before it takes what follows

Hashes = NDArray[np.uint64]


def sketches(texts: Sequence[str]) -> list[bytes]:
    """For each text its bands (8 bytes each) and its signature, or ``b""`` when it is compared as a whole only."""
    found: list[bytes] = []
    for part in _parts(texts):
        found += _sketch(part)
    return found


def _parts(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Neighbours that are sketched together."""
    start, characters = 0, 0
    for end, text in enumerate(texts):
        if end > start and (end - start == _DOCUMENTS or characters + len(text) > _CHARACTERS):
            yield texts[start:end]
            start, characters = end, 0
        characters += min(len(text), LONGEST)
    if start < len(texts):
        yield texts[start:]


def _sketch(texts: Sequence[str]) -> list[bytes]:
    letters, lengths = _letters(texts)
    used = np.flatnonzero((lengths >= LEAST) & (lengths <= LONGEST))
    found = [b""] * len(texts)
    if len(used):
        keys = _shingles(letters, lengths)
        keys = keys[np.isin(keys >> _HASH_BITS, used.astype(np.uint64))] if len(used) < len(texts) else keys
        keys.sort()
        keys = keys[np.concatenate(([True], keys[1:] != keys[:-1]))]
        bands = _bands(keys, len(texts))
        for document, signature in zip(used, _signatures(keys, len(texts), used), strict=True):
            found[document] = bands[document].tobytes() + signature
    return found


def _letters(texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The code points that count, of all texts in a row, and how many each text has."""
    texts = [text if len(text) <= LONGEST else "" for text in texts]
    forms, ends = _forms(texts)
    expand = np.flatnonzero(forms == _EXPANDS)
    if len(expand):
        for text in np.unique(np.searchsorted(ends, expand, side="right")).tolist():
            texts[text] = unicodedata.normalize("NFKC", texts[text])
        forms, ends = _forms(texts)
    counts = forms != 0
    before = np.concatenate(([0], np.cumsum(counts)))[ends]
    return forms[counts], np.diff(before, prepend=0)


def _forms(texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """What each character of all texts counts as, and where each text ends."""
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype="<u4")
    return _table()[codes], np.cumsum([len(text) for text in texts])


@functools.cache
def _table() -> NDArray[np.uint32]:
    """For each code point what it counts as: 0 when it does not, ``_EXPANDS`` when NFKC makes several of it that do."""
    table = np.arange(0x110000, dtype=np.uint32)
    table[0xE0000:] = 0  # tags and private use
    # Planes 2 and 3 are Hanzi; only their compatibility forms change.
    for code in (*range(0x20000), *range(0x2F800, 0x2FA20)):
        form = [c for c in unicodedata.normalize("NFKC", chr(code)) if unicodedata.category(c)[0] not in "PZC"]
        table[code] = ord(form[0]) if len(form) == 1 else _EXPANDS if form else 0
    return table


def _mix(x: Hashes) -> Hashes:
    """The finaliser of splitmix64: every bit of the input changes every bit of the output."""
    x = x ^ (x >> np.uint64(30))
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def _shingles(letters: NDArray[np.uint32], lengths: NDArray[np.int64]) -> Hashes:
    """A key per 5-gram: its document's number, then 57 bits of its hash. In the texts' order, with repetitions."""
    total = len(letters) - NGRAM + 1
    value = letters[NGRAM - 1 :].astype(np.uint64)
    for offset in range(NGRAM - 2, -1, -1):
        value *= np.uint64(0x9E3779B97F4A7C15)
        value += letters[offset : offset + total]
    keys = _mix(value) & _HASH
    keys |= np.repeat(np.arange(len(lengths), dtype=np.uint64) << _HASH_BITS, lengths)[:total]
    inside = np.ones(len(letters), dtype=bool)
    ends = np.cumsum(lengths)
    for offset in range(1, NGRAM):  # 5-grams that begin here reach into the next document
        begins = ends - offset
        inside[begins[begins >= 0]] = False
    shingles: Hashes = keys[inside[:total]]
    return shingles


def _bands(keys: Hashes, documents: int) -> Hashes:
    """The bands of each document, shape [documents, BANDS]. ``keys`` are sorted; rows without any are meaningless."""
    hashes = keys & _HASH
    bins = (keys >> _HASH_BITS) * np.uint64(BINS) + ((hashes >> np.uint64(37)) * np.uint64(BINS) >> np.uint64(20))
    first = np.flatnonzero(np.concatenate(([True], bins[1:] != bins[:-1])))  # sorted: the first of a bin is its least
    values = np.zeros(documents * BINS, dtype=np.uint64)
    values[bins[first]] = hashes[first] | np.uint64(1) << np.uint64(63)
    values = _densified(values.reshape(documents, BINS)).reshape(documents, BANDS, ROWS)
    bands = np.broadcast_to(np.arange(1, BANDS + 1, dtype=np.uint64), (documents, BANDS))
    for row in range(ROWS):
        bands = _mix(bands * np.uint64(0x9E3779B97F4A7C15) + values[:, :, row])
    return bands


@functools.cache
def _probes() -> NDArray[np.int64]:
    """The bins that an empty bin tries to borrow from, in order; shape [BINS, attempts]."""
    numbers = np.arange(1, BINS * _ATTEMPTS + 1, dtype=np.uint64).reshape(BINS, _ATTEMPTS)
    random = (_mix(numbers * np.uint64(0xD1B54A32D192ED03)) % np.uint64(BINS)).astype(np.int64)
    after = (np.arange(BINS)[:, None] + np.arange(1, BINS)[None, :]) % BINS
    return np.concatenate((random, after), axis=1)


def _densified(values: Hashes) -> Hashes:
    """``values`` with each zero replaced by the value of a bin that has one."""
    dense = values.copy()
    documents, bins = np.nonzero(values == 0)
    some = values.any(axis=1)[documents]
    documents, bins = documents[some], bins[some]
    attempt = 0
    while len(documents):
        found = values[documents, _probes()[bins, attempt]]
        dense[documents, bins] = found
        documents, bins = documents[found == 0], bins[found == 0]
        attempt += 1
    return dense


def _signatures(keys: Hashes, documents: int, used: NDArray[np.int64]) -> Iterator[bytes]:
    """The signature of each document that is used."""
    owner = (keys >> _HASH_BITS).astype(np.int64)
    sizes = np.bincount(owner, minlength=documents)
    level = np.maximum(np.ceil(np.log2(np.maximum(sizes, 1) / MOST)), 0).astype(np.uint64)
    whole = _parities(keys, owner, level, documents, BITS)
    near = sizes >= HALF_FROM * (MOST << level.astype(np.int64))  # near the boundary of the next level
    half = _parities(keys[near[owner]], owner[near[owner]], level + np.uint64(1), documents, BITS // 2)
    for document in used.tolist():
        signature = int(sizes[document]).to_bytes(4, "little") + whole[document]
        yield signature + half[document] if near[document] else signature


def _parities(keys: Hashes, owner: NDArray[np.int64], level: Hashes, documents: int, bits: int) -> list[bytes]:
    """The odd sketch of one 5-gram in 2**level of each document."""
    if level.any():
        sampled = (keys >> np.uint64(10)) & ((np.uint64(1) << level) - np.uint64(1))[owner] == 0
        keys, owner = keys[sampled], owner[sampled]
    places = owner * bits
    places += (keys & np.uint64(bits - 1)).view(np.int64)
    parity = np.bincount(places, minlength=documents * bits).astype(np.uint8)
    parity &= 1
    packed = np.packbits(parity).tobytes()
    return [packed[at : at + bits // 8] for at in range(0, len(packed), bits // 8)]
