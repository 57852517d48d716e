"""What the services need of a bus: the fake and the real one pass the same tests."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mindstream_cli.servers import Server, running, settings
from mindstream_common.bus import Bus, StreamFull, connect
from mindstream_common.bus_memory import MemoryBus
from mindstream_common.errors import ConfigError, Fenced, Poison, Transient
from mindstream_common.topology import CATALOG, FILES, JOURNAL, RAW


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.servers)])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    """A bus whose streams exist and are empty."""
    made: Any
    if request.param == "memory":
        made = MemoryBus()
        await made.ensure(queue_events=100)
    else:
        made = await connect(request.getfixturevalue("nats_url"), name="test", patience=5)
        await made.ensure(queue_events=100)
        for name in ("FILES", "RAW", "CATALOG", "JOURNAL"):
            await made._stream.purge_stream(name)
    yield made
    await made.close()


def new_id() -> str:
    """A message id that no other test uses."""
    return uuid.uuid4().hex


async def test_a_message_is_delivered_until_it_is_acked(bus: Bus) -> None:
    queue = await bus.queue(RAW, "cleaning", ack_wait=0.6)
    await bus.publish("raw.medical", b"one", id=new_id())
    first = await queue.fetch()
    assert first is not None
    assert (first.data, first.subject, first.attempt) == (b"one", "raw.medical", 1)
    assert (await queue.waiting()).working == 1
    await asyncio.sleep(0.8)
    second = await queue.fetch()
    assert second is not None
    assert (second.data, second.seq, second.attempt) == (b"one", first.seq, 2)
    await second.ack()
    assert await queue.fetch() is None
    assert [r async for r in bus.read(RAW)] == []


async def test_in_progress_keeps_a_delivery(bus: Bus) -> None:
    queue = await bus.queue(RAW, "cleaning", ack_wait=0.9)
    await bus.publish("raw.a", b"x", id=new_id())
    delivery = await queue.fetch()
    assert delivery is not None
    for _ in range(4):
        await asyncio.sleep(0.4)
        await delivery.in_progress()
    await delivery.ack()
    assert await queue.fetch() is None


async def test_nak_brings_it_back(bus: Bus) -> None:
    queue = await bus.queue(RAW, "cleaning", ack_wait=30)
    await bus.publish("raw.a", b"x", id=new_id())
    delivery = await queue.fetch()
    assert delivery is not None
    await delivery.nak(0.2)
    again = await queue.fetch()
    assert again is not None
    assert again.attempt == 2
    await again.ack()


async def test_the_same_id_is_stored_once(bus: Bus) -> None:
    id = new_id()
    first = await bus.publish("catalog.a", b"x", id=id)
    assert await bus.publish("catalog.a", b"x", id=id) == first
    assert [r.data async for r in bus.read(CATALOG)] == [b"x"]


async def test_expect_lets_one_writer_win(bus: Bus) -> None:
    subject = f"journal.{new_id()}"
    last = await bus.publish(subject, b"1", id=new_id(), expect=0)
    assert await bus.last(JOURNAL, subject) == last
    await bus.publish(subject, b"2", id=new_id(), expect=last)
    with pytest.raises(Fenced):
        await bus.publish(subject, b"3", id=new_id(), expect=last)
    assert [r.data async for r in bus.read(JOURNAL, subject=subject)] == [b"1", b"2"]


async def test_a_full_queue_turns_away_and_takes_again(bus: Bus) -> None:
    await bus.ensure(queue_events=3)
    for n in range(3):
        await bus.publish("files.a", b"%d" % n, id=new_id())
    with pytest.raises(StreamFull):
        await bus.publish("files.a", b"4", id=new_id())
    queue = await bus.queue(FILES, "ingest", ack_wait=30)
    delivery = await queue.fetch()
    assert delivery is not None
    await delivery.ack()
    await bus.publish("files.a", b"4", id=new_id())
    await bus.ensure(queue_events=100)


async def test_read_goes_on_after_a_sequence_and_remove_forgets(bus: Bus) -> None:
    seqs = [await bus.publish(f"catalog.{d}", d.encode(), id=new_id()) for d in "abc"]
    assert [r.data async for r in bus.read(CATALOG, after=seqs[0])] == [b"b", b"c"]
    assert [r.data async for r in bus.read(CATALOG, subject="catalog.b")] == [b"b"]
    await bus.remove(CATALOG, seqs[1])
    await bus.remove(CATALOG, seqs[1])
    assert [r.seq async for r in bus.read(CATALOG)] == [seqs[0], seqs[2]]


@pytest.mark.servers
async def test_a_durable_with_another_ack_wait_is_brought_to_the_one_asked_for(nats_url: str) -> None:
    bus = await connect(nats_url, name="test", patience=5)
    try:
        await bus.ensure(queue_events=100)
        await bus.queue(RAW, "cleaning", ack_wait=5)
        await bus.queue(RAW, "cleaning", ack_wait=7)
        info = await bus._stream.consumer_info("RAW", "cleaning")
        assert info.config.ack_wait == 7
    finally:
        await bus.close()


@pytest.mark.servers
async def test_another_consumer_in_the_way_is_an_error_that_says_what_to_do(nats_url: str) -> None:
    bus = await connect(nats_url, name="test", patience=5)
    try:
        await bus.ensure(queue_events=100)
        await bus.queue(RAW, "cleaning", ack_wait=5)
        with pytest.raises(ConfigError, match="nats consumer rm RAW other"):
            await bus.queue(RAW, "other", ack_wait=5)
    finally:
        await bus.close()


@pytest.mark.servers
async def test_wrong_credentials_are_said_at_once(nats_url: str) -> None:
    with pytest.raises(ConfigError, match="refuses these credentials"):
        await connect("nats://nobody:wrong@" + nats_url.rsplit("@", 1)[-1], name="test", patience=5)


async def test_no_server_is_transient() -> None:
    with pytest.raises(Transient, match="no bus at"):
        await connect("nats://127.0.0.1:1", name="test", patience=0.5)


@pytest.mark.servers
async def test_work_goes_on_by_itself_after_the_server_was_killed(tmp_path: Any) -> None:
    """Between two messages and during a fetch."""
    with running(tmp_path) as servers:
        bus = await connect(settings(tmp_path)["MINDSTREAM_NATS_URL"], name="test", patience=5)
        try:
            await bus.ensure(queue_events=100)
            queue = await bus.queue(RAW, "cleaning", ack_wait=2)
            await bus.publish("raw.a", b"before", id="before")
            fetching = asyncio.create_task(drain(queue, 2))
            await asyncio.sleep(0.3)
            await asyncio.to_thread(restart, servers["nats"])
            while True:
                try:
                    await bus.publish("raw.a", b"after", id="after")
                    break
                except Transient:
                    await asyncio.sleep(0.1)
            assert set(await asyncio.wait_for(fetching, 15)) == {b"before", b"after"}
        finally:
            await bus.close()


async def drain(queue: Any, number: int) -> list[bytes]:
    """Fetch and ack until ``number`` different messages were seen."""
    seen: list[bytes] = []
    while len(set(seen)) < number:
        try:
            delivery = await queue.fetch()
            if delivery is not None:
                await delivery.ack()
                seen.append(delivery.data)
        except Transient:
            await asyncio.sleep(0.1)
    return seen


def restart(server: Server) -> None:
    """kill -9 and start again."""
    server.kill()
    server.start()
    server.wait_ready()


@pytest.mark.servers
async def test_a_message_that_is_too_large_is_not_waited_for(nats_url: str) -> None:
    bus = await connect(nats_url, name="test", patience=5)
    try:
        await bus.ensure(queue_events=100)
        with pytest.raises(Poison, match="at most 1,048,576"):
            await bus.publish("catalog.a", b"x" * 1_048_577, id=new_id())
    finally:
        await bus.close()
