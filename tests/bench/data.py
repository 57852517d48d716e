"""``make bench-data``: how fast is the data plane? CPU-seconds throughout; the processes are run in turn, so that what
else the machine does is shared out. Prints a table and writes ``build/bench/data.json``: rows of name, value, unit,
target, ok (null where there is no target, or the machine was not fit to say).

    python data.py [--rounds N] [--without services,datatrove]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import data_services as services

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DATA = ROOT.parent / "shared" / "data"
VOCAB = DATA / "bert_vocab_zh.txt"
FILES = {"text": DATA / "bench_text_5k.jsonl", "pages": DATA / "bench_page_5k.jsonl"}
DOCUMENTS = 5000
PEER = ROOT / "build" / "datatrove-venv"
PEER_PACKAGES = ["datatrove[processing,io]==0.10.1", "spacy", "ftfy", "jieba", "lxml_html_clean"]
PEER_DOCUMENTS = {"text": 800, "pages": 400}
DATA_PLANE = ("ingest", "cleaning", "tokenizer")
GIB = 1 << 30
Row = dict[str, Any]


def child(*arguments: str, python: Path | None = None) -> dict[str, Any]:
    """Run a script of this folder on one thread; what it prints last is JSON."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "GLOG_v": "3"}
    command = [str(python or sys.executable), *arguments]
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.strip().rsplit("\n", 1)[-1]))


def peer() -> Path | None:
    """datatrove's own environment, set up with pip when it is absent. None: it cannot be."""
    python = PEER / "bin" / "python"
    if not (PEER / ".installed").exists():
        print(f"Setting up {PEER.name} (900 MB, once) ...", flush=True)
        base = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PEER_PACKAGES]
        for command in ([sys.executable, "-m", "venv", str(PEER)], [str(python), *base]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"datatrove is absent, nothing is compared with it: {done.stderr.strip()[-300:]}", flush=True)
                return None
        (PEER / ".installed").touch()
    return python


def row(
    name: str, value: float, unit: str, target: float | None = None, *, most: bool = False, fit: bool = True
) -> Row:
    """``most``: the target is an upper bound."""
    ok = None if target is None or not fit else bool(value <= target if most else value >= target)
    print(
        f"  {name:58} {value:10.2f} {unit:10} {'' if target is None else f'{chr(0x2264 if most else 0x2265)} {target:g}':9} {({True: 'ok', False: 'NOT MET', None: ''})[ok]}",
        flush=True,
    )
    return {"name": name, "value": round(value, 4), "unit": unit, "target": target, "ok": ok}


def in_process(rounds: int, python: Path | None) -> tuple[list[Row], dict[str, float]]:
    """Whole data plane on both files, tokenizing alone, datatrove; and MB per CPU-second with the writer."""
    ours: dict[str, list[dict[str, Any]]] = {kind: [] for kind in FILES}
    theirs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in FILES}
    for _ in range(rounds):
        for kind, path in FILES.items():
            ours[kind].append(child("data_chain.py", str(path), "2"))
            if python is not None:
                arguments = (str(path), str(VOCAB), str(PEER_DOCUMENTS[kind]))
                theirs[kind].append(child("data_datatrove.py", *arguments, python=python))
    rows, whole = [], {}
    for kind, runs in ours.items():
        size = runs[0]["bytes"] / 1e6
        each = [one for run in runs for one in run["runs"]]
        seconds = statistics.median(sum(one[stage] for stage in DATA_PLANE) for one in each)
        rows.append(row(f"data plane, {kind}, one process", size / seconds, "MB/CPU-s", 6))
        for stage in (*DATA_PLANE, "writer"):
            own = statistics.median(one[stage] for one in each)
            rows.append(
                row(f"  of it {stage}" if stage != "writer" else "  and writer (MindRecord)", size / own, "MB/CPU-s")
            )
        whole[kind] = size / statistics.median(sum(one[stage] for stage in (*DATA_PLANE, "writer")) for one in each)
        rows.append(
            row(f"data plane, {kind}, peak memory", max(run["peak_rss"] for run in runs) / GIB, "GiB", 1, most=True)
        )
        if theirs[kind]:
            other = statistics.median(run["bytes"] / 1e6 / run["seconds"] for run in theirs[kind])
            rows.append(row(f"datatrove 0.10.1 (cmn_Hani), {kind}", other, "MB/CPU-s"))
            target = {"text": 30, "pages": 20}[kind]
            rows.append(row(f"data plane, {kind}, against datatrove", size / seconds / other, "times", target))
    if python is not None:
        found = child("data_datatrove.py", str(FILES["text"]), str(VOCAB), "400", "repetition", python=python)
        rows.append(
            row("datatrove with its repetition filter, text", found["bytes"] / 1e6 / found["seconds"], "MB/CPU-s")
        )
    return rows, whole


def tokens() -> list[Row]:
    """Tokenizing alone."""
    found = child("data_tokens.py")
    return [
        row("tokenizing alone", found["ours"], "MB/CPU-s"),
        row("tokenizers.encode_batch", found["encode_batch"], "MB/CPU-s"),
        row("tokenizing alone against encode_batch", found["ours"] / found["encode_batch"], "times", 40),
        row(
            f"texts with other ids, of {found['texts']} ({found['bytes'] / 1e6:.0f} MB)",
            found["differing"],
            "texts",
            0,
            most=True,
        ),
    ]


def through_services(whole: dict[str, float]) -> list[Row]:
    """The same through bus, store and MindRecord, a worker for each stage; two cleaning workers; an idle stack."""
    rows = []
    for kind, path in FILES.items():
        with tempfile.TemporaryDirectory() as state:
            found = services.chain(Path(state), path, DOCUMENTS)
        size = sum(len(json.loads(line)["text"].encode()) for line in path.open("rb")) / 1e6
        seconds = sum(found["cpu"][stage] for stage in services.STAGES)
        rows.append(row(f"four services, {kind}", size / seconds, "MB/CPU-s"))
        rows.append(row(f"four services, {kind}, against one process", size / seconds / whole[kind], "times", 0.5))
        with_servers = size / (seconds + found["cpu"]["server"]) / whole[kind]
        rows.append(row(f"  the same with bus, store and claims, {kind}", with_servers, "times", 0.5))
        rows += [row(f"  of it {stage}, {kind}", found["cpu"][stage], "CPU-s") for stage in services.STAGES]
        rows.append(row(f"  bus, store and claims beside them, {kind}", found["cpu"]["server"], "CPU-s"))
        rows.append(row(f"  wall time, {kind}", found["wall"], "s"))
        rows += [
            row(f"  peak memory of {stage}, {kind}", found["peak"][stage] / GIB, "GiB", 1, most=True)
            for stage in services.STAGES
        ]
    with tempfile.TemporaryDirectory() as state:
        rows.append(
            row(
                "document arrives to catalog, idle stack, median",
                services.latency(Path(state), FILES["text"], 7),
                "s",
                3,
                most=True,
            )
        )
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    fit = cores >= 4 or load < 0.5
    rates = {1: 0.0, 2: 0.0}
    for workers in (1, 2, 1, 2):  # the better of two, in turn
        with tempfile.TemporaryDirectory() as state:
            found_rate = services.cleaning_rate(Path(state), FILES["pages"], DOCUMENTS, workers, 6)
        rates[workers] = max(rates[workers], found_rate)
    rows.append(
        row(
            f"two cleaning workers against one (load {load:.1f} on {cores} cores)",
            rates[2] / rates[1],
            "times",
            1.8,
            fit=fit,
        )
    )
    return rows


def main() -> int:
    """Returns 1 when a target is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", default="", help="services, datatrove, or both with a comma")
    arguments = parser.parse_args()
    if not DATA.is_dir():
        print(f"{DATA} is not there: the benchmark reads its texts from it.")
        return 0
    left = arguments.without.split(",")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    rows, whole = in_process(arguments.rounds, None if "datatrove" in left else peer())
    rows += tokens()
    if "services" not in left:
        rows += through_services(whole)
    target = ROOT / "build" / "bench" / "data.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written: {target.relative_to(ROOT)}")
    return int(any(one["ok"] is False for one in rows))


if __name__ == "__main__":
    sys.exit(main())
