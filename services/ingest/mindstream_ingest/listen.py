"""The HTTP server: its port, its patience with slow clients, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from typing import ClassVar

import uvicorn
from mindstream_common import logs
from mindstream_common.bus import Bus
from mindstream_common.store import Store
from uvicorn.protocols.http.h11_impl import H11Protocol

from mindstream_ingest.config import HttpConfig, IngestConfig
from mindstream_ingest.gather import Gatherer
from mindstream_ingest.http import Documents

CONNECTIONS = 1000
RETRY = 2.0  # seconds between attempts to get the port


async def serve(config: IngestConfig, http: HttpConfig, token: str, store: Store, bus: Bus) -> None:
    """Answer posts until cancelled. A port that is taken is waited for: of several ingest services on a machine one
    listens, and when it goes away another one does."""
    gatherer = Gatherer(bus, seconds=http.gather_seconds, patience=http.patience_seconds)
    app = Documents(config, http, token, store, gatherer).app()
    taken = await _socket(host(http, token), http.port)
    settings = uvicorn.Config(
        app,
        http=_patient(http.seconds),
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=10,
    )
    server = _Server(settings)
    serving = asyncio.create_task(server.serve(sockets=[taken]))
    logs.get().info("listening for posts", host=taken.getsockname()[0], port=taken.getsockname()[1])
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True  # what is in hand is answered
        await serving


def host(http: HttpConfig, token: str) -> str:
    """Where to listen: without a token on this machine only, whatever the run's file says."""
    if token or _is_local(http.host):
        return http.host
    logs.get().warning(
        "MINDSTREAM_INGEST_TOKEN is not set: posts are taken from this machine only", asked=http.host, host="127.0.0.1"
    )
    return "127.0.0.1"


def _is_local(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return False


async def _socket(name: str, port: int) -> socket.socket:
    told = False
    while True:
        family = socket.AF_INET6 if ":" in name else socket.AF_INET
        opened = socket.socket(family, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((name, port))
            opened.listen(2048)  # two may bind with SO_REUSEADDR, but only one listens
            opened.setblocking(False)
            return opened
        except OSError as error:
            opened.close()
            if not told:
                logs.get().warning(
                    "the port for posts cannot be had; it is tried again", host=name, port=port, error=str(error)
                )
                told = True
            await asyncio.sleep(RETRY)


class _Server(uvicorn.Server):
    """Without signal handlers: SIGTERM is the service's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Patient(H11Protocol):
    """Closes a connection whose request's headers do not come in time. Bodies are the application's."""

    seconds: ClassVar[float]
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._late is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._late = self.loop.call_later(self.seconds, self.transport.close)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _patient(seconds: float) -> type[asyncio.Protocol]:
    return type("Patient", (_Patient,), {"seconds": seconds})
