"""The runner around a stage, with the real bus, store and claims."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import stages
from mindstream_cli.servers import Server, running, settings
from mindstream_common import documents, manifests
from mindstream_common.bus import NatsBus, connect
from mindstream_common.claims import ValkeyClaims
from mindstream_common.documents import Document
from mindstream_common.events import CleanShard, DeadLetter, RawShard, decode_dead, encode
from mindstream_common.runner import PipelineConfig, Runner
from mindstream_common.settings import Settings, from_environment
from mindstream_common.store import S3Store
from mindstream_common.topology import CLEAN, DEAD, RAW, STREAMS, shard_key

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Server], Settings]]:
    """Servers of this module's own: some tests restart them."""
    state = tmp_path_factory.mktemp("runner")
    with running(state) as servers:
        yield servers, from_environment(settings(state))


@pytest.fixture
def where(stack: tuple[dict[str, Server], Settings]) -> Settings:
    """Where the servers are."""
    return stack[1]


@pytest.fixture
async def bus(where: Settings) -> AsyncIterator[NatsBus]:
    """A bus with empty streams."""
    bus = await connect(where.nats_url, name="test", patience=5)
    await bus.ensure(queue_events=1000)
    for stream in STREAMS:
        await bus._stream.purge_stream(stream.name)
    with contextlib.suppress(Exception):
        await bus._stream.delete_consumer("RAW", "cleaning")
    yield bus
    await bus.close()


@pytest.fixture
def store(where: Settings) -> Iterator[S3Store]:
    """The object store."""
    store = S3Store.from_settings(where)
    yield store
    store.close()


def raw_shard(store: S3Store, tmp_path: Path, domain: str) -> RawShard:
    """A stored raw shard of two documents, and its event."""
    id = uuid.uuid4().hex
    path = tmp_path / f"{id}.parquet"
    texts = ["党参可以泡水喝吗？", "可以。"]
    found = [Document(id=f"{id}/{n}", source="a.txt", format="text", text=text) for n, text in enumerate(texts)]
    documents.write(path, found)
    object = store.put_file(shard_key(RawShard, domain, id, ".parquet"), path)
    return RawShard(id=id, domain=domain, objects=(object,), created=0.0, root=id, parents=("f" * 32,), documents=2)


async def submit(bus: NatsBus, shard: RawShard) -> None:
    """Into the queue."""
    await bus.publish(f"raw.{shard.domain}", encode(shard), id=uuid.uuid4().hex)


@contextlib.asynccontextmanager
async def working(
    bus: NatsBus,
    where: Settings,
    tmp_path: Path,
    *,
    slots: int = 1,
    seconds: float = 0.0,
    configuration: str = "copy-1",
    **pipeline: float,
) -> AsyncIterator[Runner]:
    """A runner at work; drained at the end."""
    config = PipelineConfig(**{"ack_wait_seconds": 5.0, "retry_seconds": 0.05, "drain_seconds": 5.0, **pipeline})  # type: ignore[arg-type]
    factory = partial(stages.Copy, seconds, tmp_path / "runs.txt", configuration)
    runner = Runner(
        stages.DECLARATION,
        factory,
        bus=bus,
        settings=where,
        pipeline=config,
        scratch=tmp_path / f"scratch-{uuid.uuid4().hex}",
        slots=slots,
    )
    task = asyncio.create_task(runner.run())
    try:
        yield runner
    finally:
        runner.drain()
        await asyncio.wait_for(task, 20)


async def until(condition: object, seconds: float = 30.0) -> None:
    """Wait until an async callable returns something true."""
    async with asyncio.timeout(seconds):
        while not await condition():  # type: ignore[operator]
            await asyncio.sleep(0.05)


async def published(bus: NatsBus) -> list[str]:
    """Parents of the events in CLEAN."""
    return [manifest.decode() async for manifest in _clean_parents(bus)]


async def _clean_parents(bus: NatsBus) -> AsyncIterator[bytes]:
    from mindstream_common.events import decode

    async for record in bus.read(CLEAN):
        event = decode(record.data)
        assert isinstance(event, CleanShard)
        yield event.parents[0].encode()


async def letters(bus: NatsBus) -> list[DeadLetter]:
    """What lies in DEAD."""
    return [decode_dead(record.data) async for record in bus.read(DEAD)]


async def queue_is_empty(bus: NatsBus) -> bool:
    """Whether RAW holds nothing."""
    return not [record async for record in bus.read(RAW)]


def runs(tmp_path: Path) -> list[str]:
    """Which shards the stage has worked on, in order."""
    path = tmp_path / "runs.txt"
    return path.read_text().split() if path.exists() else []


async def test_long_work_is_delivered_once(bus: NatsBus, where: Settings, store: S3Store, tmp_path: Path) -> None:
    """Three shards, two slots, each twice as long as ack_wait (B1)."""
    shards = [raw_shard(store, tmp_path, "slow") for _ in range(3)]
    for shard in shards:
        await submit(bus, shard)
    async with working(bus, where, tmp_path, slots=2, seconds=3.0, ack_wait_seconds=1.5):
        await until(lambda: queue_is_empty(bus))
    assert sorted(runs(tmp_path)) == sorted(shard.id for shard in shards)
    assert sorted(await published(bus)) == sorted(shard.id for shard in shards)


async def test_work_goes_on_after_every_server_was_killed(
    bus: NatsBus, where: Settings, store: S3Store, tmp_path: Path, stack: tuple[dict[str, Server], Settings]
) -> None:
    """Between two shards and while it waits for the next (B2)."""
    async with working(bus, where, tmp_path, ack_wait_seconds=2.0):
        for name in ("nats", "weed", "valkey"):
            shard = raw_shard(store, tmp_path, "plain")
            await submit(bus, shard)
            server = stack[0][name]
            server.kill()
            await asyncio.sleep(0.5)
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(server.wait_ready)
            await until(lambda: queue_is_empty(bus), 20)
        await until(lambda: _has(bus, 3))


async def _has(bus: NatsBus, number: int) -> bool:
    try:
        return len(await published(bus)) == number
    except Exception:
        return False


@pytest.mark.parametrize(
    ("domain", "kind", "word"), [("failing", "failed", "cannot be done"), ("dying", "died", "SIGKILL")]
)
async def test_what_fails_five_times_ends_in_the_dead_letters(
    bus: NatsBus, where: Settings, store: S3Store, tmp_path: Path, domain: str, kind: str, word: str
) -> None:
    """A handler that raises, and one that kills its process (B4); the next shard is worked on all the same."""
    bad, good = raw_shard(store, tmp_path, domain), raw_shard(store, tmp_path, "plain")
    await submit(bus, bad)
    await submit(bus, good)
    async with working(bus, where, tmp_path):
        await until(lambda: queue_is_empty(bus))
    [letter] = await letters(bus)
    assert (letter.stage, letter.domain, letter.kind, letter.attempts) == ("cleaning", domain, kind, 5)
    assert word in letter.error
    assert runs(tmp_path).count(bad.id) == 5
    assert await published(bus) == [good.id]


async def test_a_dead_shard_gives_its_claims_back_and_can_be_retried(
    bus: NatsBus, where: Settings, store: S3Store, tmp_path: Path
) -> None:
    bad = raw_shard(store, tmp_path, "poison")
    await submit(bus, bad)
    async with working(bus, where, tmp_path):
        await until(lambda: queue_is_empty(bus))
        [letter] = await letters(bus)
        assert (letter.kind, letter.attempts) == ("poison", 1)
        with contextlib.closing(ValkeyClaims(where.valkey_url, "default")) as claims:
            assert claims.claim("other/0", [bytes.fromhex(bad.id)], ["other"]) == [""]
            claims.release("other")
        await bus.publish(letter.subject, bytes(letter.event), id=uuid.uuid4().hex)
        await until(lambda: _dead(bus, 2))


async def _dead(bus: NatsBus, number: int) -> bool:
    return len(await letters(bus)) == number


async def test_bytes_that_are_no_event_are_poison(bus: NatsBus, where: Settings, tmp_path: Path) -> None:
    await bus.publish("raw.medical", b"\xff not json", id=uuid.uuid4().hex)
    async with working(bus, where, tmp_path):
        await until(lambda: queue_is_empty(bus))
    [letter] = await letters(bus)
    assert letter.kind == "poison"
    assert "not an event" in letter.error


async def test_a_changed_object_is_poison(bus: NatsBus, where: Settings, store: S3Store, tmp_path: Path) -> None:
    shard = raw_shard(store, tmp_path, "plain")
    store.put_bytes(shard.objects[0].key, b"other bytes")
    await submit(bus, shard)
    async with working(bus, where, tmp_path):
        await until(lambda: queue_is_empty(bus))
    [letter] = await letters(bus)
    assert letter.kind == "poison"
    assert "sha256" in letter.error


async def test_sigterm_in_the_middle_finishes_the_shard(
    bus: NatsBus, where: Settings, store: S3Store, tmp_path: Path
) -> None:
    """Time enough: it is finished, once (B5)."""
    shard = raw_shard(store, tmp_path, "slow")
    await submit(bus, shard)
    async with working(bus, where, tmp_path, seconds=2.0):
        await until(lambda: _started(tmp_path, 1))
    assert await queue_is_empty(bus)
    assert await published(bus) == [shard.id]
    assert runs(tmp_path) == [shard.id]


async def test_sigterm_hands_back_what_takes_too_long(
    bus: NatsBus, where: Settings, store: S3Store, tmp_path: Path
) -> None:
    """No time: it is handed back, and the next worker makes the one output (B5)."""
    shard = raw_shard(store, tmp_path, "slow")
    await submit(bus, shard)
    async with working(bus, where, tmp_path, seconds=60.0, drain_seconds=0.3):
        await until(lambda: _started(tmp_path, 1))
    assert await published(bus) == []
    async with working(bus, where, tmp_path, seconds=0.0, ack_wait_seconds=60.0):
        await until(lambda: queue_is_empty(bus), 5)  # long before ack_wait
    assert await published(bus) == [shard.id]


async def _started(tmp_path: Path, number: int) -> bool:
    return len(runs(tmp_path)) == number


async def test_a_redelivered_shard_is_published_from_its_manifest(
    bus: NatsBus, where: Settings, store: S3Store, tmp_path: Path
) -> None:
    shard = raw_shard(store, tmp_path, "plain")
    await submit(bus, shard)
    async with working(bus, where, tmp_path):
        await until(lambda: queue_is_empty(bus))
        await submit(bus, shard)
        await until(lambda: queue_is_empty(bus))
    assert runs(tmp_path) == [shard.id]
    made = manifests.find(store, CleanShard, "plain", manifests.slot("cleaning", shard.id, 0))
    assert made is not None
    assert made.counts.documents_out == 2
    assert made.event.root == shard.id  # type: ignore[union-attr]
    assert set(await published(bus)) == {shard.id}


async def test_another_configuration_makes_nothing_twice(
    bus: NatsBus, where: Settings, store: S3Store, tmp_path: Path
) -> None:
    """A worker with another configuration gets a shard again that was done before: it publishes what is there."""
    shard = raw_shard(store, tmp_path, "plain")
    await submit(bus, shard)
    async with working(bus, where, tmp_path):
        await until(lambda: queue_is_empty(bus))
    await submit(bus, shard)
    async with working(bus, where, tmp_path, configuration="copy-2"):
        await until(lambda: queue_is_empty(bus))
    assert runs(tmp_path) == [shard.id]
    assert set(await published(bus)) == {shard.id}
