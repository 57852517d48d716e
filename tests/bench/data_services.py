"""The data plane through its services: a local stack, real files, CPU-seconds and peak memory of every process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from mindstream_cli.audit import Report, audit
from mindstream_cli.connection import connect
from mindstream_cli.ledger import Ledger
from mindstream_cli.stack import Stack
from mindstream_common.events import CatalogShard, decode
from mindstream_common.manifests import Manifest
from mindstream_common.topology import CATALOG
from mindstream_ingest import submit

VOCAB = Path(__file__).parents[3] / "shared" / "data" / "bert_vocab_zh.txt"
SENTENCE = "今天的天气很好，我们去公园散步，看见许多花。\n"
STAGES = ("ingest", "cleaning", "tokenizer", "writer")


class Running:
    """A stack without a trainer."""

    def __init__(self, state: Path, scale: dict[str, int]) -> None:
        run: dict[str, Any] = {"base": {"vocab": str(VOCAB)}}
        self.state = state
        self.stack = Stack(state, run, scale=scale, without=("trainer",))

    def processes(self, kind: str) -> list[psutil.Process]:
        """A service's processes and their workers; ``server`` names the bus, the store and the claims."""
        found = []
        for child in self.stack.children.values():
            if child.kind == kind and child.server.process is not None:
                with contextlib.suppress(psutil.Error):
                    parent = psutil.Process(child.server.process.pid)
                    found += [parent, *parent.children(recursive=True)]
        return found

    def cpu(self, kind: str) -> float:
        """CPU-seconds of a kind's processes up to now."""
        total = 0.0
        for process in self.processes(kind):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def peak(self, kind: str) -> int:
        """The most memory that a service's processes had, in bytes, summed over them (the kernel's high-water marks)."""
        total = 0
        for process in self.processes(kind):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                total += int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
        return total

    def submit(self, path: Path, domain: str) -> float:
        """Hand a file over; returns when that began (monotonic seconds)."""

        async def call() -> float:
            async with connect(self.state) as connection:
                began = time.monotonic()
                found, _ = submit.find([path])
                async for _ in submit.submit(
                    found, domain=domain, text_fields=(), store=connection.store, bus=connection.bus
                ):
                    pass
                return began

        return asyncio.run(call())

    def audit(self) -> Report:
        """Where everything is."""

        async def call() -> Report:
            async with connect(self.state) as connection:
                return await audit(Ledger(connection.store, connection.bus))

        return asyncio.run(call())

    def manifests(self, stage: str) -> list[Manifest]:
        """Everything that a stage has stored."""

        async def call() -> list[Manifest]:
            async with connect(self.state) as connection:
                ledger = Ledger(connection.store, connection.bus)
                await asyncio.to_thread(ledger.refresh_manifests)
                return list(ledger.manifests[stage].values())

        return asyncio.run(call())

    def settle(self, documents: int, seconds: float = 300.0) -> Report:
        """Wait until all documents have come in and none is under way; the audit must balance."""
        deadline = time.monotonic() + seconds
        while True:
            report = self.audit()
            if sum(flow.accepted for flow in report.flows.values()) >= documents and not report.waiting:
                assert not report.problems, report
                assert all(flow.balanced for flow in report.flows.values()), report
                return report
            assert time.monotonic() < deadline, (report, self.stack.failed())
            time.sleep(0.5)

    def catalogued(self, domain: str, seconds: float = 60.0) -> float:
        """Wait for a domain's first shard in the catalog; returns when it was seen (monotonic seconds)."""

        async def call() -> float:
            deadline = time.monotonic() + seconds
            after = 0
            async with connect(self.state) as connection:
                while time.monotonic() < deadline:
                    async for record in connection.bus.read(CATALOG, after=after):
                        after = record.seq
                        event = decode(record.data)
                        if isinstance(event, CatalogShard) and event.domain == domain:
                            return time.monotonic()
                    await asyncio.sleep(0.02)
            raise AssertionError(f"nothing of {domain} was catalogued within {seconds} s: {self.stack.failed()}")

        return asyncio.run(call())


@contextlib.contextmanager
def running(state: Path, **scale: int) -> Iterator[Running]:
    """A stack whose services are ready."""
    found = Running(state, scale)
    try:
        found.stack.start()
        for child in found.stack.children.values():
            if child.kind != "server":
                child.server.wait_ready(120)
        yield found
    finally:
        found.stack.stop(10)


def chain(state: Path, path: Path, documents: int) -> dict[str, Any]:
    """One file through one worker of each stage: CPU-seconds by stage, of the servers, wall seconds, peak memory. What
    a worker loads with its first shard is loaded before."""
    with running(state) as stack:
        warm = state / "warm.txt"
        warm.write_text(SENTENCE, encoding="utf-8")
        stack.submit(warm, "warm")
        stack.settle(1)
        before = {kind: stack.cpu(kind) for kind in (*STAGES, "server")}
        began = stack.submit(path, "bench")
        stack.settle(documents + 1)
        wall = time.monotonic() - began
        cpu = {kind: stack.cpu(kind) - before[kind] for kind in before}
        return {"cpu": cpu, "wall": wall, "peak": {kind: stack.peak(kind) for kind in STAGES}}


def latency(state: Path, source: Path, times: int) -> float:
    """Median seconds from the hand-over of a document to its place in the catalog, nothing else under way."""
    found = []
    with source.open(encoding="utf-8") as file:
        texts = [json.loads(line) for _, line in zip(range(40 * times), file, strict=False)]
    plain = [text["text"] for text in texts if text["tag"] == "orig"][::7][: times + 1]
    with running(state) as stack:
        for number, text in enumerate(plain):
            path = state / f"one-{number}.txt"
            path.write_text(text, encoding="utf-8")
            domain = f"one-{number}"
            began = stack.submit(path, domain)
            found.append(stack.catalogued(domain) - began)
    return statistics.median(found[1:])  # the first one loads what a worker needs


def cleaning_rate(state: Path, path: Path, documents: int, workers: int, copies: int) -> float:
    """Documents per wall second of ``workers`` cleaning workers, with raw shards waiting for them and nothing else but
    the servers running: from the moment each has stored its first clean shard to that of the last one."""
    others = {"tokenizer": 0, "writer": 0}
    with running(state, cleaning=0, **others) as stack:
        for number in range(copies):  # other texts, else they are duplicates of each other
            copy = state / f"copy-{number}.jsonl"
            _shifted(path, copy, number)
            stack.submit(copy, "bench")
        _until(lambda: sum(m.counts.documents_out for m in stack.manifests("ingest")) >= copies * documents)
    with running(state, ingest=0, cleaning=workers, **others) as stack:
        _until(lambda: sum(m.counts.documents_in for m in stack.manifests("cleaning")) >= copies * documents)
        stored = sorted((m.event.created, m.counts.documents_in) for m in stack.manifests("cleaning"))
    return sum(number for _, number in stored[workers:]) / (stored[-1][0] - stored[workers - 1][0])


def _shifted(source: Path, target: Path, number: int) -> None:
    """A copy with other Hanzi."""
    span = 20000
    table = {0x4E00 + point: 0x4E00 + (point + 977 * number) % span for point in range(span)}
    with source.open(encoding="utf-8") as read, target.open("w", encoding="utf-8") as write:
        for line in read:
            text = json.loads(line)["text"].translate(table)
            write.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def _until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not done after {seconds} s"
        time.sleep(1.0)
