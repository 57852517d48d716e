"""``make bench-dedup``: are near duplicates found, and what does it cost? CPU-seconds throughout, a Valkey of its own.

Precision and recall are of pairs in ``bench_text_5k.jsonl`` against the exact Jaccard index of their 5-gram sets,
computed here from the definition. Speed and memory of the claims are measured with documents that are all kept, the
dearest case. Prints a table and writes ``build/bench/dedup.json``: rows of name, value, unit, target, ok.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
import valkey
from mindstream_cleaning import sketch
from mindstream_cleaning.duplicates import BATCH
from mindstream_cli.servers import local_servers, settings
from mindstream_common.claims import ValkeyClaims
from mindstream_common.signatures import Sketches, similarity

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "bench_text_5k.jsonl"
THRESHOLD = 0.8
DOCUMENTS = 200_000  # claimed for speed and memory
Pair = tuple[int, int]
Row = dict[str, object]


def shingles(text: str) -> set[str]:
    """The 5-grams of a text, from the definition; none for a text that is compared as a whole."""
    kept = "".join(c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c)[0] not in "PZC")
    return {kept[at : at + 5] for at in range(len(kept) - 4)} if len(kept) >= sketch.LEAST else set()


def true_pairs(texts: Sequence[str], least: float) -> dict[Pair, float]:
    """Every pair of an index of at least ``least``. Two such sets share one of their rarest 5-grams (prefix filter)."""
    sets = [shingles(text) for text in texts]
    common = Counter(shingle for found in sets for shingle in found)
    index: dict[str, list[int]] = defaultdict(list)
    pairs = {}
    for number, found in enumerate(sets):
        rare = sorted(found, key=lambda shingle: (common[shingle], shingle))
        prefix = rare[: len(rare) - math.ceil(least * len(rare)) + 1]
        for other in {other for shingle in prefix for other in index[shingle]}:
            both = len(found & sets[other])
            jaccard = both / (len(found) + len(sets[other]) - both)
            if jaccard >= least:
                pairs[other, number] = jaccard
        for shingle in prefix:
            index[shingle].append(number)
    return pairs


def found_pairs(sketches: Sequence[bytes]) -> set[Pair]:
    """The pairs that share a band and whose signatures are similar."""
    by_band: dict[bytes, list[int]] = defaultdict(list)
    pairs: set[Pair] = set()
    batch = Sketches(threshold=THRESHOLD, bands=sketch.BANDS, of=sketches)
    for number in range(len(sketches)):
        for band in batch.bands_of(number):
            pairs |= {(other, number) for other in by_band[band]}
            by_band[band].append(number)
    return {(a, b) for a, b in pairs if similarity(batch.signature(a), batch.signature(b)) >= THRESHOLD}


def row(name: str, value: float, unit: str, least: float | None = None, most: float | None = None) -> Row:
    target = f">= {least:g}" if least is not None else f"<= {most:g}" if most is not None else ""
    ok = (least is None or value >= least) and (most is None or value <= most)
    return {"name": name, "value": round(value, 4), "unit": unit, "target": target, "ok": ok}


def accuracy(texts: Sequence[str], sketches: Sequence[bytes]) -> list[Row]:
    known = true_pairs(texts, 0.6)
    true = {pair for pair, jaccard in known.items() if jaccard >= THRESHOLD}
    found = found_pairs(sketches)
    wrong = [known.get(pair, 0.0) for pair in found - true]
    signatures = [each[8 * sketch.BANDS :] for each in sketches]
    errors = [similarity(signatures[a], signatures[b]) - jaccard for (a, b), jaccard in known.items()]
    return [
        row("true pairs", len(true), "pairs"),
        row("recall", len(true & found) / len(true), "of true pairs", least=0.95),
        row("precision", len(true & found) / len(found), "of found pairs", least=0.95),
        row("least alike of the wrong", min(wrong, default=THRESHOLD), "Jaccard index", least=0.75),
        row("error of the estimate", math.sqrt(sum(e * e for e in errors) / len(errors)), "Jaccard index (rms)"),
    ]


def survivors(texts: Sequence[str], sketches: Sequence[bytes], claims: ValkeyClaims) -> list[Row]:
    """All documents through the claims, in order."""
    kept: list[int] = []
    for start in range(0, len(texts), BATCH):
        of = sketches[start : start + BATCH]
        keys = [blake2b(text.encode(), digest_size=16).digest() for text in texts[start : start + BATCH]]
        owners = [f"{0:032x}/{start + n}" for n in range(len(of))]
        batch = Sketches(threshold=THRESHOLD, bands=sketch.BANDS, of=of)
        answers = claims.claim_similar(f"real/{start}", keys, owners, batch)
        kept += [start + n for n, answer in enumerate(answers) if not answer.owner]
    survived = set(kept)
    pairs = [jaccard for (a, b), jaccard in true_pairs(texts, THRESHOLD).items() if {a, b} <= survived]
    return [
        row("kept", len(kept) / len(texts), "of all documents"),
        row("similar pairs left", len(pairs), "pairs of kept documents"),
        row("most alike of those left", max(pairs, default=0.0), "Jaccard index", most=0.85),
    ]


def cost(claims: ValkeyClaims, client: valkey.Valkey) -> list[Row]:
    """Documents that are all kept."""
    random = np.random.Generator(np.random.Philox(1))
    before, used, own = client.info("memory"), server_cpu(client), 0.0
    waits = []
    for start in range(0, DOCUMENTS, BATCH):
        raw = [random.bytes(16 + 8 * sketch.BANDS + 128) for _ in range(BATCH)]
        of = [each[16 : 16 + 8 * sketch.BANDS] + (600).to_bytes(4, "little") + each[-128:] for each in raw]
        owners = [f"{start // 2048:032x}/{start % 2048 + n}" for n in range(BATCH)]
        batch = Sketches(threshold=THRESHOLD, bands=sketch.BANDS, of=of)
        begun, at = time.process_time(), time.perf_counter()
        answers = claims.claim_similar(f"made{start // 2048}/{start}", [each[:16] for each in raw], owners, batch)
        own, waits = own + time.process_time() - begun, [*waits, time.perf_counter() - at]
        assert not any(answer.owner for answer in answers)
        if start % 2048 == 2048 - BATCH:
            claims.settle(f"made{start // 2048}")
    memory = client.info("memory")
    return [
        row("server", DOCUMENTS / (server_cpu(client) - used), "documents per CPU-second", least=15_000),
        row("client", DOCUMENTS / own, "documents per CPU-second", least=100_000),
        row("round trip of 128 documents, median", 1000 * float(np.median(waits)), "ms"),
        row(
            "memory",
            (memory["used_memory"] - before["used_memory"]) / DOCUMENTS / 1000,
            "GB per million kept",
            most=1.2,
        ),
        row(
            "resident memory",
            (memory["used_memory_rss"] - before["used_memory_rss"]) / DOCUMENTS / 1000,
            "GB per million kept",
        ),
    ]


def server_cpu(client: valkey.Valkey) -> float:
    cpu = client.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


def main() -> int:
    if not DATA.is_file():
        print(f"bench-dedup needs the text {DATA.name} in ../shared/data, and it is not there.")
        return 1
    with DATA.open(encoding="utf-8") as file:
        texts = list(dict.fromkeys(json.loads(line)["text"] for line in file))
    sketch.sketches(texts[:128])  # tables are built once
    begun = time.process_time()
    sketches = sketch.sketches(texts)
    spent = time.process_time() - begun
    rows = [row("sketching", sum(len(text.encode()) for text in texts) / 1e6 / spent, "MB per CPU-second", least=50)]
    rows += accuracy(texts, sketches)
    with tempfile.TemporaryDirectory() as folder:
        server = {server.name: server for server in local_servers(Path(folder))}["valkey"]
        server.start()
        try:
            server.wait_ready()
            url = settings(Path(folder))["MINDSTREAM_VALKEY_URL"]
            with valkey.Valkey.from_url(url) as client:
                rows += survivors(texts, sketches, ValkeyClaims(url, "bench.real"))
                client.flushdb()
                rows += cost(ValkeyClaims(url, "a pipeline"), client)
        finally:
            server.kill()
    for each in rows:
        mark = "" if not each["target"] else "ok" if each["ok"] else "NOT MET"
        print(f"{each['name']:<38} {each['value']:>12} {each['unit']:<26} {each['target']:<10} {mark}")
    out = ROOT / "build" / "bench" / "dedup.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if all(each["ok"] for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
