"""Posts over a real socket; bus and store in memory."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import zlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from mindstream_common import events
from mindstream_common.bus_memory import MemoryBus
from mindstream_common.errors import Transient
from mindstream_common.events import FileBundle
from mindstream_common.store import MemoryStore
from mindstream_common.topology import FILES
from mindstream_ingest import listen
from mindstream_ingest.config import HttpConfig, IngestConfig
from mindstream_ingest.gather import Gatherer
from mindstream_ingest.http import Documents

TOKEN = "a-token-of-this-test"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Service:
    """The endpoint with its two ends."""

    def __init__(self, **options: Any) -> None:
        values = {"gather_seconds": 0.02, "patience_seconds": 0.2, "seconds": 5.0} | options
        self.http = HttpConfig(port=free_port(), **values)
        self.store, self.bus = MemoryStore(), MemoryBus()
        self.url = f"http://127.0.0.1:{self.http.port}/v1/documents"

    @contextlib.asynccontextmanager
    async def running(self, token: str = TOKEN, queue_events: int = 1000) -> AsyncIterator[httpx.AsyncClient]:
        await self.bus.ensure(queue_events=queue_events)
        serving = asyncio.create_task(listen.serve(IngestConfig(), self.http, token, self.store, self.bus))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            async with httpx.AsyncClient(headers=headers, trust_env=False) as client:
                for _ in range(200):
                    with contextlib.suppress(httpx.ConnectError):
                        await client.get(self.url)
                        break
                    await asyncio.sleep(0.02)
                yield client
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def direct(self) -> AsyncIterator[httpx.AsyncClient]:
        """Without a socket."""
        await self.bus.ensure(queue_events=1000)
        gatherer = Gatherer(self.bus, seconds=self.http.gather_seconds, patience=self.http.patience_seconds)
        app = Documents(IngestConfig(), self.http, TOKEN, self.store, gatherer).app()
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), headers=headers) as client:
            yield client

    async def bundles(self) -> list[FileBundle]:
        found = [events.decode(record.data) async for record in self.bus.read(FILES)]
        assert all(isinstance(event, FileBundle) for event in found)
        return found  # type: ignore[return-value]


async def post(client: httpx.AsyncClient, service: Service, content: Any, kind: str, **options: Any) -> httpx.Response:
    headers = {"Content-Type": kind, **options.pop("headers", {})}
    params = {"domain": "medical", **options.pop("params", {})}
    return await client.post(service.url, content=content, headers=headers, params=params, **options)


@pytest.mark.parametrize(
    ("kind", "body", "ending"),
    [
        ("application/json", '{"text": "高血压"}', "json"),
        ("application/json; charset=utf-8", '[{"text": "高"}, {"ask": "血"}]', "json"),
        ("application/x-ndjson", '{"text": "高"}\n{"text": "血"}\nbroken\n', "jsonl"),
        ("text/plain; charset=UTF-8", "高血压患者", "txt"),
        ("text/html", "<p>高血压</p>", "html"),
        ("text/markdown", "# 高", "md"),
    ],
)
async def test_202_means_stored_and_on_the_bus(kind: str, body: str, ending: str) -> None:
    service = Service()
    async with service.direct() as client:
        answer = await post(client, service, body.encode(), kind)
        assert answer.status_code == 202, answer.text
        [bundle] = await service.bundles()
        [object] = bundle.objects
        assert service.store.objects[object.key] == body.encode()
        assert answer.json() == {"id": object.sha256, "domain": "medical", "bytes": len(body.encode())}
        assert bundle.domain == "medical"
        assert bundle.files[0].name == f"http/{object.sha256[:16]}.{ending}"


@pytest.mark.parametrize(
    ("status", "kind", "body", "options", "words"),
    [
        (400, "application/json", b'{"text": ', {}, "not JSON"),
        (400, "application/json", b'{"text": "\\ud800"}', {}, "not JSON"),
        (400, "application/json", b"[" * 100_000, {}, "not JSON"),
        (422, "application/json", b'{"body": "x"}', {}, "fields found: body"),
        (422, "application/json", b"[1]", {}, "neither an object"),
        (422, "application/json", b'{"ask": "x"}', {"params": {"template": "{ask}{answer}"}}, "'answer' is missing"),
        (400, "application/json", b'{"ask": "x"}', {"params": {"template": "{ask"}}, "no partner"),
        (400, "application/json", b'{"text": "x"}', {"params": {"template": "{a}", "text_field": "b"}}, "one of them"),
        (400, "text/plain", b"", {}, "empty"),
        (400, "text/plain", b" \n", {}, "empty"),
        (400, "text/plain", "高血压患者可以吃党参吗？我们认为很重要。".encode("gbk"), {}, "not UTF-8"),
        (400, "text/plain", b"\0\0\0\0text", {}, "NUL"),
        (415, "text/plain; charset=gbk", b"x", {}, "charset gbk"),
        (415, "application/pdf", b"%PDF", {}, "application/pdf is not read"),
        (415, "text/plain", b"x", {"headers": {"Content-Encoding": "br"}}, "br is not read"),
        (400, "text/plain", b"not gzip at all", {"headers": {"Content-Encoding": "gzip"}}, "not gzip"),
        (400, "text/plain", gzip.compress(b"x" * 99)[:-9], {"headers": {"Content-Encoding": "gzip"}}, "cut off"),
        (400, "text/plain", b"x", {"params": {"domain": "../x"}}, "?domain="),
        (400, "text/plain", b"x", {"params": {"domain": ""}}, "?domain="),
        (400, "text/plain", b"x", {"headers": {"Idempotency-Key": "k" * 256}}, "256 characters"),
    ],
)
async def test_what_is_refused_leaves_nothing_behind(
    status: int, kind: str, body: bytes, options: dict[str, Any], words: str
) -> None:
    service = Service()
    async with service.direct() as client:
        answer = await post(client, service, body, kind, **options)
        assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text
        assert (service.store.objects, await service.bundles()) == ({}, [])


async def test_the_token_is_needed_and_told_to_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    service = Service()
    async with service.running() as client:
        for given in ("", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"):
            answer = await post(client, service, b"x", "text/plain", headers={"Authorization": given})
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert TOKEN not in answer.text
        assert (await post(client, service, b"x", "text/plain")).status_code == 202
    said = capsys.readouterr()
    assert TOKEN not in said.out + said.err


def test_without_a_token_it_listens_on_this_machine_only() -> None:
    assert listen.host(HttpConfig(port=1, host="0.0.0.0"), "") == "127.0.0.1"
    assert listen.host(HttpConfig(port=1, host="example"), "") == "127.0.0.1"
    assert listen.host(HttpConfig(port=1, host="0.0.0.0"), TOKEN) == "0.0.0.0"
    assert listen.host(HttpConfig(port=1, host="127.0.0.2"), "") == "127.0.0.2"


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_long(coded: bool, chunked: bool) -> None:
    service = Service(body_bytes=1000)
    headers = {"Content-Encoding": "gzip"} if coded else {}

    async def chunks(data: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(data), 100):
            yield data[start : start + 100]

    async with service.running() as client:
        for size, status in ((1000, 202), (1001, 413), (40_000_000 if coded else 5000, 413)):
            data = b"x" * size
            data = gzip.compress(data) if coded else data
            answer = await post(client, service, chunks(data) if chunked else data, "text/plain", headers=headers)
            assert answer.status_code == status, (size, answer.text)


async def test_gzip_of_several_members() -> None:
    service = Service()
    async with service.running() as client:
        body = gzip.compress("高".encode()) + gzip.compress("血".encode())
        answer = await post(client, service, body, "text/plain", headers={"Content-Encoding": "gzip"})
        assert (answer.status_code, answer.json()["bytes"]) == (202, 6)
        raw = zlib.compress(b"x")
        assert (await post(client, service, raw, "text/plain", headers={"Content-Encoding": "gzip"})).status_code == 400


async def test_an_idempotency_key_stands_for_one_post() -> None:
    service = Service()
    async with service.running() as client:
        headers = {"Idempotency-Key": "订单-1".encode().hex()}
        first = await post(client, service, b"one", "text/plain", headers=headers)
        again = await post(client, service, b"one", "text/plain", headers=headers)
        assert (first.status_code, again.status_code) == (202, 202)
        assert first.json() == again.json()
        for other in ({"content": b"two"}, {"params": {"domain": "finance"}}, {"kind": "text/markdown"}):
            options: dict[str, Any] = {"content": b"one", "kind": "text/plain", "headers": headers} | other
            answer = await post(client, service, options.pop("content"), options.pop("kind"), **options)
            assert answer.status_code == 409
        keys = [key for key in service.store.objects if key.startswith("files/")]
        assert len(keys) == 1
        assert {bundle.id for bundle in await service.bundles()} == {(await service.bundles())[0].id}


async def test_posts_of_one_moment_share_a_bundle() -> None:
    service = Service(gather_seconds=0.2)
    async with service.running() as client:
        posts = [post(client, service, f"document {n}".encode(), "text/plain") for n in range(20)]
        posts += [post(client, service, b"other", "text/plain", params={"domain": "finance"})]
        assert {answer.status_code for answer in await asyncio.gather(*posts)} == {202}
        found = await service.bundles()
        assert sorted(len(bundle.files) for bundle in found) in ([1, 20], [1, 1, 19])


async def test_a_full_queue_and_an_absent_bus_are_503_and_the_client_may_try_again() -> None:
    service = Service()
    async with service.running(queue_events=1) as client:
        assert (await post(client, service, b"1", "text/plain")).status_code == 202
        answer = await post(client, service, b"2", "text/plain")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        [record] = [record async for record in service.bus.read(FILES)]
        await service.bus.remove(FILES, record.seq)
        assert (await post(client, service, b"2", "text/plain")).status_code == 202


async def test_a_store_that_is_away_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    async with service.running() as client:
        with monkeypatch.context() as patch:
            patch.setattr(service.store, "put_bytes", lambda *_: (_ for _ in ()).throw(Transient("away")))
            answer = await post(client, service, b"1", "text/plain")
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert await service.bundles() == []
        assert (await post(client, service, b"1", "text/plain")).status_code == 202


async def test_bodies_in_memory_are_bounded() -> None:
    service = Service(waiting_bytes=1500, seconds=2.0)
    async with service.running() as client:
        hold = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"x" * 1000
            await hold.wait()
            yield b"y"

        first = asyncio.create_task(post(client, service, slow(), "text/plain"))
        await asyncio.sleep(0.3)
        assert (await post(client, service, b"z" * 600, "text/plain")).status_code == 503
        hold.set()
        assert (await first).status_code == 202
        assert (await post(client, service, b"z" * 600, "text/plain")).status_code == 202  # the room was given back


async def test_slow_clients_are_given_up() -> None:
    service = Service(seconds=0.5)
    head = f"POST /v1/documents?domain=a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
    body = b"Content-Type: text/plain\r\nContent-Length: 10\r\n\r\nabc"
    async with service.running():
        for sent, expected in ((b"", b""), (head, b""), (head + body, b"HTTP/1.1 408")):
            reader, writer = await asyncio.open_connection("127.0.0.1", service.http.port)
            writer.write(sent)
            answer = await asyncio.wait_for(reader.read(), 5)
            assert answer[:12] == expected
            writer.close()
        assert await service.bundles() == []


async def test_a_client_that_goes_away_breaks_nothing() -> None:
    service = Service()
    async with service.running() as client:
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", service.http.port)
            writer.write(
                f"POST /v1/documents?domain=a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
                "Content-Type: text/plain\r\nContent-Length: 100\r\n\r\nabc".encode()
            )
            await writer.drain()
            writer.close()
        assert (await post(client, service, b"1", "text/plain")).status_code == 202


async def test_a_port_that_is_taken_is_waited_for() -> None:
    service = Service()
    with socket.socket() as other:
        other.bind(("127.0.0.1", service.http.port))
        other.listen()
        waiting = asyncio.create_task(listen.serve(IngestConfig(), service.http, TOKEN, service.store, service.bus))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_other_methods_and_paths() -> None:
    service = Service()
    async with service.running() as client:
        assert (await client.get(service.url)).status_code == 405
        assert (await client.post(service.url + "/x")).status_code == 404
