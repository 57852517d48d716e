"""Folders and S3 prefixes that the real service looks at: each state of each object is taken once."""

from __future__ import annotations

import contextlib
import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from ingest_stack import config, text
from local import Local, local
from mindstream_cli.audit import Report
from mindstream_cli.audit_report import balanced
from mindstream_cli.servers import settings
from mindstream_common.bus_memory import MemoryBus
from mindstream_common.errors import ConfigError, Transient
from mindstream_common.settings import from_environment
from mindstream_common.store import MemoryStore, S3Store
from mindstream_common.topology import FILES
from mindstream_ingest.config import SourceConfig
from mindstream_ingest.sources import Looker

pytestmark = [pytest.mark.servers]


def jsonl(*numbers: int) -> bytes:
    return "\n".join(json.dumps({"text": text(number)}) for number in numbers).encode()


def streams_are_there(stack: Local) -> bool:
    """The services make them when they start."""
    try:
        return bool(stack.audit())
    except Transient:
        return False


def test_folders_and_prefixes_are_taken_once_and_changes_again(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    sources = [
        {"folder": str(inbox), "domain": "finance", "poll_seconds": 0.3},
        {"s3": "inbox/medical/", "domain": "medical", "poll_seconds": 0.3},
        {"s3": "s3://other/news/", "domain": "news", "poll_seconds": 0.3, "template": "{text}"},
    ]
    with local(tmp_path / "state", config(tmp_path, sources=sources), without=("trainer",)) as stack:
        environment = settings(stack.state)
        ours = S3Store.from_environment(environment)
        other = S3Store.from_environment(environment | {"MINDSTREAM_S3_BUCKET": "other"})
        with contextlib.closing(ours), contextlib.closing(other):
            (inbox / "a.jsonl").write_bytes(jsonl(*range(10)))
            ours.put_bytes("inbox/medical/b.jsonl.gz", gzip.compress(jsonl(*range(10, 20)), mtime=0))
            ours.put_bytes("inbox/medical/picture.png", b"no")
            other.put_bytes("news/c.json", jsonl(*range(20, 30)))
            other.put_bytes("elsewhere/d.jsonl", jsonl(99))
            report = until(stack, 30)
            assert {domain: flow.accepted for domain, flow in report.flows.items()} == dict.fromkeys(
                ("finance", "medical", "news"), 10
            )
            stack.kill("ingest")  # it remembers what it has taken
            ours.put_bytes("inbox/medical/b.jsonl.gz", gzip.compress(jsonl(*range(30, 35)), mtime=0))  # changed
            ours.put_bytes("inbox/medical/sub/e.txt", text(35).encode())
            (inbox / "a.jsonl").write_bytes(jsonl(36, 37))
            report = until(stack, 30 + 5 + 1 + 2)
            time.sleep(2.0)  # and nothing comes twice
            report = until(stack, 38)
        assert balanced(report), report
        assert report.dead_letters == 0
        log = (tmp_path / "state" / "logs" / "ingest.log").read_text(encoding="utf-8")
        assert "inbox/medical/picture.png is left out" in log
        lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
        assert sum(line["files"] for line in lines if line["event"] == "taken") == 6, log


def until(stack: Local, documents: int) -> Report:
    stack.until(lambda: streams_are_there(stack))
    report = stack.settled(documents, seconds=40)
    assert sum(flow.accepted for flow in report.flows.values()) == documents
    return report


async def events(bus: MemoryBus) -> int:
    return len([record async for record in bus.read(FILES)])


async def test_what_was_taken_is_remembered_in_the_store(environment: dict[str, str], store: S3Store) -> None:
    """A second service, or the same one after a restart, uploads nothing again."""
    bus = MemoryBus()
    await bus.ensure(queue_events=100)
    source = SourceConfig(domain="a", s3="in/")
    found: dict[str, Any] = {"settings": from_environment(environment), "store": store, "bus": bus}
    store.put_bytes("in/a.txt", b"one")
    store.put_bytes("in/.hidden.txt", b"hidden")
    looker = Looker(source, **found)
    assert [await looker.look() for _ in range(2)] == [1, 0]
    assert await Looker(source, **found).look() == 0
    store.put_bytes("in/a.txt", b"two")
    store.put_bytes("in/b.txt", b"one")  # the content is known to ingest, not to the looker
    assert [await looker.look() for _ in range(2)] == [2, 0]
    assert await events(bus) == 2
    for key, _ in store.list("sources/"):
        store.delete(key)
    assert await Looker(source, **found).look() == 2  # forgotten: taken again, and ingest knows the content


async def test_a_bucket_that_does_not_exist_is_told_and_waited_for(
    environment: dict[str, str], store: S3Store, capsys: pytest.CaptureFixture[str]
) -> None:
    looker = Looker(
        SourceConfig(domain="a", s3="s3://nowhere-at-all/x/"),
        settings=from_environment(environment),
        store=store,
        bus=MemoryBus(),
    )
    with pytest.raises(ConfigError, match="s3://nowhere-at-all/x/: NoSuchBucket"):
        await looker.look()


@pytest.mark.parametrize("place", ["", "files/", "shards/raw/", "s", "s3://test/", "runs/x/"])
def test_what_the_services_write_is_no_source(place: str) -> None:
    from mindstream_ingest.bucket import split

    with pytest.raises(ConfigError, match="name another prefix"):
        split(place, "test")
    assert split("s3://elsewhere/files/", "test") == ("elsewhere", "files/")


async def test_a_folder_is_read_by_the_service_itself(tmp_path: Path) -> None:
    bus, store = MemoryBus(), MemoryStore()
    await bus.ensure(queue_events=100)
    inbox = tmp_path / "inbox"
    settings_: Any = None
    looker = Looker(SourceConfig(domain="a", folder=str(inbox)), settings_, store, bus)
    assert await looker.look() == 0  # not there yet
    inbox.mkdir()
    (inbox / "a.txt").write_text("a")
    assert looker._watcher is not None
    looker._watcher._settle = 0.0
    assert [await looker.look() for _ in range(3)] == [0, 1, 0]
    again = Looker(SourceConfig(domain="a", folder=str(inbox)), settings_, store, bus)
    assert again._watcher is not None
    again._watcher._settle = 0.0
    assert [await again.look() for _ in range(3)] == [0, 0, 0]
    assert await events(bus) == 1
