"""Near duplicates: of similar documents exactly one survives, whatever races, crashes or dies."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b

import pytest
import valkey
from mindstream_cleaning import sketch
from mindstream_common import forget
from mindstream_common.claims import BAND_OWNERS, MemoryClaims, ScopedClaims, ValkeyClaims, namespace, tag
from mindstream_common.errors import InputError
from mindstream_common.events import CleanShard, RawShard
from mindstream_common.signatures import Sketches, similarity
from mindstream_common.stage import Declaration, Holder

THRESHOLD = 0.8
HANZI = [chr(code) for code in range(0x4E00, 0x4E00 + 3000)]


def key(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=16).digest()


def changed(text: str, edits: int, choose: random.Random) -> str:
    """The text with some characters replaced."""
    letters = list(text)
    for place in choose.sample(range(len(letters)), edits):
        letters[place] = choose.choice(HANZI)
    return "".join(letters)


def made(choose: random.Random, length: int = 200) -> str:
    return "".join(choose.choices(HANZI, k=length))


def claim(claims: ScopedClaims, batch: str, texts: list[str], threshold: float = THRESHOLD) -> list[Holder]:
    owners = [f"{batch.split('/')[0]}/{int(batch.split('/')[1]) + row}" for row in range(len(texts))]
    sketches = Sketches(threshold=threshold, bands=sketch.BANDS, of=sketch.sketches(texts))
    return claims.claim_similar(batch, [key(text) for text in texts], owners, sketches)


def owners_of(holders: list[Holder]) -> list[str]:
    return [holder.owner for holder in holders]


@pytest.fixture(params=["memory", pytest.param("valkey", marks=pytest.mark.servers)])
def any_claims(request: pytest.FixtureRequest) -> Iterator[ScopedClaims]:
    if request.param == "memory":
        yield MemoryClaims()
    else:
        yield request.getfixturevalue("claims")


def test_a_similar_document_is_a_near_duplicate_and_an_equal_one_an_exact_one(any_claims: ScopedClaims) -> None:
    choose = random.Random(1)
    text, other = made(choose), made(choose)
    near = changed(text, 2, choose)
    assert owners_of(claim(any_claims, "s1/0", [text, near, text, other])) == ["", "s1/0", "s1/0", ""]
    found = claim(any_claims, "s2/0", [text, near, other[:150] + made(choose, 80)])
    assert found[0] == Holder("s1/0", exact=True, similarity=1.0)
    assert found[1].owner == "s1/0"
    assert not found[1].exact
    assert 0.85 < found[1].similarity < 0.95  # 10 of 196 5-grams were replaced by others: 186 / 206
    assert found[2] == Holder()


def test_a_dropped_document_is_never_the_reason_for_another(any_claims: ScopedClaims) -> None:
    """A chain: b is like a, c is like b, c is not like a. b is dropped, so c stays."""
    choose = random.Random(2)
    a = made(choose)
    b = changed(a, 3, choose)
    c = changed(b, 3, choose)
    signatures = [each[8 * sketch.BANDS :] for each in sketch.sketches([a, b, c])]
    assert similarity(signatures[0], signatures[1]) > THRESHOLD < similarity(signatures[1], signatures[2])
    assert similarity(signatures[0], signatures[2]) < THRESHOLD
    assert owners_of(claim(any_claims, "s1/0", [a, b, c])) == ["", "s1/0", ""]


def test_a_redelivery_gets_its_answers_again_and_a_new_version_of_a_document_is_not_its_duplicate(
    any_claims: ScopedClaims,
) -> None:
    choose = random.Random(3)
    text = made(choose)
    assert owners_of(claim(any_claims, "s1/0", [text])) == [""]
    near = claim(any_claims, "s2/0", [changed(text, 1, choose)])
    assert near[0].owner == "s1/0"
    any_claims.settle("s1")
    assert claim(any_claims, "s1/0", [text]) == [Holder()]
    assert owners_of(claim(any_claims, "s1/0", [changed(text, 1, choose)])) == [""]  # cleaned in another way now
    assert owners_of(claim(any_claims, "s3/0", [text, changed(text, 1, choose)])) == ["s1/0", "s1/0"]


def test_release_gives_back_signatures_and_bands(any_claims: ScopedClaims) -> None:
    choose = random.Random(4)
    text, other = made(choose), made(choose)
    claim(any_claims, "s1/0", [text, other])
    claim(any_claims, "s2/0", [changed(text, 1, choose)])
    assert any_claims.release("s2") == 0  # it was dropped: it held nothing
    assert any_claims.release("s1") == 2
    near = changed(text, 1, choose)
    assert owners_of(claim(any_claims, "s3/0", [near])) == [""]
    assert owners_of(claim(any_claims, "s1/0", [text, other])) == ["s3/0", ""]
    assert any_claims.release("s1") == 1
    any_claims.settle("s3")
    assert any_claims.release("s3") == 0
    assert owners_of(claim(any_claims, "s4/0", [text, changed(other, 1, choose)])) == ["s3/0", ""]


def test_a_band_holds_four_documents_and_release_makes_room(any_claims: ScopedClaims) -> None:
    """Six documents that share every band but are not alike: the fifth is in none of them."""
    choose = random.Random(5)
    made_sketches = sketch.sketches([made(choose) for _ in range(6)])
    bands = made_sketches[0][: 8 * sketch.BANDS]
    of = [bands + each[8 * sketch.BANDS :] for each in made_sketches]

    def ask(batch: str, row: int, version: str = "") -> str:
        sketches = Sketches(threshold=THRESHOLD, bands=sketch.BANDS, of=[of[row]])
        return any_claims.claim_similar(batch, [key(f"{row}{version}")], [batch], sketches)[0].owner

    assert [ask(f"s{row}/0", row) for row in range(5)] == [""] * 5
    assert ask("t0/0", 3, "again") == "s3/0"
    assert ask("t1/0", 4, "again") == ""  # not found: the bands were full
    assert any_claims.release("s0") == 1
    assert ask("t2/0", 5) == ""
    assert ask("t3/0", 5, "again") == "t2/0"


def test_documents_without_a_sketch_are_compared_as_a_whole(any_claims: ScopedClaims) -> None:
    assert owners_of(claim(any_claims, "s1/0", ["短文一篇", "短文一篇。", "短文一篇"])) == ["", "", "s1/0"]
    assert any_claims.claim("s2/0", [key("短文一篇")], ["s2/0"]) == ["s1/0"]


@pytest.mark.parametrize("lengths", [(900, 1000), (1000, 1150), (1900, 2100), (4000, 4300), (86, 90)])
def test_documents_on_both_sides_of_a_level_are_compared(any_claims: ScopedClaims, lengths: tuple[int, int]) -> None:
    """Signatures of more than 1024 5-grams are sampled; a pair may lie on two levels, in either order."""
    choose = random.Random(6)
    long = made(choose, lengths[1])
    short = changed(long, 1, choose)[: lengths[0]]
    assert owners_of(claim(any_claims, "s1/0", [short])) == [""]
    assert owners_of(claim(any_claims, "s2/0", [long])) == ["s1/0"]
    long, short = short, made(choose, lengths[1])
    assert owners_of(claim(any_claims, "s3/0", [short])) == [""]
    assert owners_of(claim(any_claims, "s4/0", [changed(short, 1, choose)[: lengths[0]]])) == ["s3/0"]


@pytest.mark.parametrize("broken", [b"\1" * 95, b"\1" * 96, bytes(96 + 131), bytes(96 + 133)])
def test_a_broken_sketch_is_refused(any_claims: ScopedClaims, broken: bytes) -> None:
    with pytest.raises(ValueError, match="bands and a signature"):
        any_claims.claim_similar("s/0", [key("a")], ["s/0"], Sketches(threshold=0.8, bands=12, of=[broken]))
    with pytest.raises(ValueError, match="2 sketches"):
        any_claims.claim_similar("s/0", [key("a")], ["s/0"], Sketches(threshold=0.8, bands=12, of=[b"", b""]))


@pytest.mark.servers
@pytest.mark.parametrize("seed", range(3))
def test_the_fake_and_the_real_one_never_differ(claims: ValkeyClaims, seed: int) -> None:
    choose, fake = random.Random(seed), MemoryClaims()
    families = [made(choose, choose.choice([60, 200, 1050, 2100])) for _ in range(6)]
    for _ in range(300):
        scope = f"s{choose.randrange(5)}"
        action = choose.choices(["claim", "release", "settle"], [8, 2, 1])[0]
        if action == "claim":
            batch = f"{scope}/{choose.randrange(4)}"
            rows = random.Random(f"{batch} {seed}")  # the same batch is asked again and again
            texts = [rows.choice(families) for _ in range(6)]
            texts = [changed(text, int(len(text) * rows.choice([0, 0.01, 0.02, 0.03, 0.1])), rows) for text in texts]
            assert claim(claims, batch, texts) == claim(fake, batch, texts)
        elif action == "release":
            assert claims.release(scope) == fake.release(scope)
        else:
            claims.settle(scope)
            fake.settle(scope)


@dataclass
class World:
    """Shards of documents that are alike in families, and everything that was answered about them."""

    shards: dict[str, list[list[str]]]  # name → batches of texts
    locks: dict[str, threading.RLock]
    answers: dict[str, list[Holder]] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)  # documents whose claims were given back

    @classmethod
    def made(cls, seed: int, shards: int, batches: int = 3, rows: int = 20) -> World:
        choose = random.Random(seed)
        families = [made(choose, choose.choice([60, 120, 300])) for _ in range(shards * 2)]

        def text() -> str:
            family = choose.choice(families)
            edits = int(len(family) * choose.choice([0, 0, 0.01, 0.02, 0.03, 0.05]))
            return made(choose, choose.choice([0, 3, 8])) + changed(family, edits, choose)

        names = [f"s{number}" for number in range(shards)]
        texts = {name: [[text() for _ in range(rows)] for _ in range(batches)] for name in names}
        return cls(texts, {name: threading.RLock() for name in names})

    def deliver(self, claims: ScopedClaims, shard: str, choose: random.Random, last: bool = False) -> None:
        """One delivery: it may stop after any call, whose answer is then lost; or end in the dead letters."""
        fate = "stored" if last else choose.choice(["stored", "crash", "crash", "dead"])
        stop = choose.randrange(len(self.shards[shard]))
        # A shard is released only when nobody else works on it; all else may overlap.
        with self.locks[shard] if fate == "dead" else contextlib.nullcontext():
            for number, texts in enumerate(self.shards[shard]):
                got = claim(claims, f"{shard}/{number * len(texts)}", texts)
                if fate != "stored" and number == stop:
                    break
                if fate != "dead":
                    assert self.answers.setdefault(f"{shard}/{number}", got) == got
            if fate == "stored":
                claims.settle(shard)
            if fate == "dead":
                self.bury(claims, shard)

    def bury(self, claims: ScopedClaims, shard: str) -> None:
        if claims.release(shard):
            self.released |= {f"{shard}/{row}" for row in range(sum(map(len, self.shards[shard])))}
            for number in range(len(self.shards[shard])):
                self.answers.pop(f"{shard}/{number}", None)

    def check(self) -> int:
        """The invariant; returns the number of dropped documents."""
        of, kept, dropped = {}, set(), {}
        for shard, batches in self.shards.items():
            for row, text in enumerate(itertools.chain(*batches)):
                of[f"{shard}/{row}"] = text
            answers = itertools.chain(*(self.answers[f"{shard}/{n}"] for n in range(len(batches))))
            for row, answer in enumerate(answers):
                if answer.owner:
                    dropped[f"{shard}/{row}"] = answer
                else:
                    kept.add(f"{shard}/{row}")
        sketches = dict(zip(of, sketch.sketches(list(of.values())), strict=True))
        self.check_kept(kept, of, sketches)
        for document, answer in dropped.items():
            assert answer.owner in kept or answer.owner in self.released, (document, answer)
            if answer.exact:
                assert of[document] == of[answer.owner]
            else:
                index = similarity(*(sketches[name][8 * sketch.BANDS :] for name in (document, answer.owner)))
                assert index >= THRESHOLD
                assert index == pytest.approx(answer.similarity, abs=2e-4)
        return len(dropped)

    def check_kept(self, kept: set[str], of: dict[str, str], sketches: dict[str, bytes]) -> None:
        assert len({of[name] for name in kept}) == len(kept)
        by_band: dict[bytes, list[str]] = defaultdict(list)
        for name in sorted(kept):
            for at in range(0, 8 * sketch.BANDS if sketches[name] else 0, 8):
                by_band[sketches[name][at : at + 8]].append(name)
        pairs = set()
        for names in by_band.values():
            if len(names) <= BAND_OWNERS:
                pairs |= set(itertools.combinations(names, 2))
        assert pairs  # documents that share a band and are not alike: the signature decided
        for one, other in pairs:
            assert similarity(sketches[one][8 * sketch.BANDS :], sketches[other][8 * sketch.BANDS :]) < THRESHOLD


def storm(world: World, workers: list[ScopedClaims], seed: int) -> int:
    """Several workers deliver every shard some times, in any order; at last each is delivered to its end, twice."""
    choose = random.Random(seed)
    deliveries = [shard for shard in world.shards for _ in range(3)]
    choose.shuffle(deliveries)
    for last in (False, True):
        queue = list(enumerate(deliveries if not last else [*world.shards, *world.shards]))

        def work(claims: ScopedClaims, queue: list[tuple[int, str]] = queue, last: bool = last) -> None:
            while True:
                try:
                    number, shard = queue.pop()
                except IndexError:
                    return
                mine = random.Random(f"{seed} {number}")
                if last or mine.random() < 0.7:
                    with world.locks[shard]:
                        world.deliver(claims, shard, mine, last)
                else:  # delivered twice at the same time: the first worker was only slow
                    with world.locks[shard], ThreadPoolExecutor(2) as pair:
                        both = [pair.submit(world.deliver, claims, shard, random.Random(0), True) for _ in range(2)]
                        [each.result() for each in both]

        with ThreadPoolExecutor(len(workers)) as pool:
            [each.result() for each in [pool.submit(work, claims) for claims in workers]]
    return world.check()


@pytest.mark.parametrize("seed", range(3))
def test_one_of_similar_documents_survives_whatever_happens(
    any_claims: ScopedClaims, request: pytest.FixtureRequest, seed: int
) -> None:
    with contextlib.ExitStack() as stack:
        workers = [any_claims] * 4
        if isinstance(any_claims, ValkeyClaims):
            workers += other_clients(request, any_claims, stack)
        dropped = storm(World.made(seed, shards=30), workers, seed)
    assert dropped > 700


@pytest.mark.soak
@pytest.mark.servers
def test_one_survives_in_a_long_storm(claims: ValkeyClaims, request: pytest.FixtureRequest) -> None:
    with contextlib.ExitStack() as stack:
        workers = [claims, *other_clients(request, claims, stack)]
        assert storm(World.made(99, shards=400, rows=100), workers, 99) > 50_000


def other_clients(
    request: pytest.FixtureRequest, claims: ValkeyClaims, stack: contextlib.ExitStack
) -> list[ScopedClaims]:
    """Three more workers of the same namespace, each with connections of its own."""
    url = request.getfixturevalue("environment")["MINDSTREAM_VALKEY_URL"]
    return [stack.enter_context(contextlib.closing(ValkeyClaims(url, claims.namespace))) for _ in range(3)]


def test_a_namespace_says_what_the_claims_rest_on() -> None:
    plain = Declaration(name="ingest", takes=RawShard, makes=CleanShard, claims=True)
    rests = Declaration(name="cleaning", takes=RawShard, makes=CleanShard, claims=True, claims_version=sketch.VERSION)
    assert namespace("p", 0, plain) == "p"
    assert namespace("p", 2, plain) == "p.2"
    names = {namespace(pipeline, generation, rests) for pipeline in "pq" for generation in (0, 1)}
    assert len({tag(name) for name in names}) == 4
    assert namespace("p", 1, rests) == f"p cleaning {sketch.VERSION} generation 1"
    assert {len(tag(name)) for name in names} == {10}  # every key repeats it


@pytest.mark.servers
def test_namespaces_are_listed_and_forgotten(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    url, unique = environment["MINDSTREAM_VALKEY_URL"], environment["MINDSTREAM_S3_BUCKET"]
    old, new = f"{unique} generation 0", f"{unique} generation 1"
    with contextlib.closing(ValkeyClaims(url, old)) as one, contextlib.closing(ValkeyClaims(url, new)) as two:
        texts = [made(random.Random(n), 60) for n in range(300)]
        claim(one, "s/0", texts)
        claim(two, "s/0", texts[:1])
        digits = {words: found for found, _, words in (line.partition("  ") for line in forget.main([]).splitlines())}
        assert {old, new} <= digits.keys()
        with valkey.Valkey.from_url(url) as client:
            mine = sum(1 for _ in client.scan_iter(f"{tag(old)}:*", count=1000))
            assert mine > 300 * sketch.BANDS
            assert forget.main([digits[old]]) == f"deleted {mine} keys of {digits[old]}"
            assert not list(client.scan_iter(f"{tag(old)}:*", count=1000))
        assert owners_of(claim(one, "t/0", texts[:2])) == ["", ""]
        assert owners_of(claim(two, "t/0", texts[:1])) == ["s/0"]
        with pytest.raises(InputError, match=f"no namespace is called 'nobody'. Those that there are: .*{digits[new]}"):
            forget.main(["nobody"])
