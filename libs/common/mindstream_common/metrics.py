"""Metrics, named ``mindstream_<noun>_<unit>[_total]``, with labels from small fixed sets; and the pages that show them.

Every service serves ``/metrics`` (Prometheus text), ``/healthz`` (the process lives) and ``/readyz`` (it can work now).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from socket import create_server

import uvicorn
from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mindstream_common import logs
from mindstream_common.stage import Counts

DOCUMENTS_IN = Counter("mindstream_documents_in_total", "Documents that a stage has read", ["stage", "domain"])
DOCUMENTS_OUT = Counter("mindstream_documents_out_total", "Documents that a stage has passed on", ["stage", "domain"])
DOCUMENTS_DROPPED = Counter(
    "mindstream_documents_dropped_total", "Documents that a stage has dropped", ["stage", "domain", "reason"]
)
MASKED = Counter("mindstream_masked_total", "Places in texts that were masked, by kind", ["stage", "domain", "kind"])
BYTES_IN = Counter("mindstream_bytes_in_total", "Bytes of UTF-8 text that a stage has read", ["stage", "domain"])
BYTES_OUT = Counter("mindstream_bytes_out_total", "Bytes of UTF-8 text that a stage has passed on", ["stage", "domain"])
SHARDS = Counter(
    "mindstream_shards_total", "Events by how they ended: done, repeated, retried, dead", ["stage", "outcome"]
)
SHARD_SECONDS = Histogram(
    "mindstream_shard_seconds", "Seconds from the delivery of an event to its ack", ["stage"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
)  # fmt: skip
WAITING_SHARDS = Gauge("mindstream_waiting_shards", "Events in the stage's queue that nobody works on yet", ["stage"])
WORKING_SHARDS = Gauge("mindstream_working_shards", "Events that are being worked on", ["stage"])
BACK_PRESSURE = Counter(
    "mindstream_back_pressure_total", "Publishes that the next stage's full stream turned away", ["stage"]
)
BUS_CONNECTED = Gauge("mindstream_bus_connected", "1 while the bus is reachable", ["stage"])

OUTCOMES = ("done", "repeated", "retried", "dead")


def at_zero(stage: str) -> None:
    """Show a stage's counters at 0 from the start: a counter first seen at 1 has no increase."""
    for outcome in OUTCOMES:
        SHARDS.labels(stage, outcome)
    SHARD_SECONDS.labels(stage)
    BACK_PRESSURE.labels(stage)
    WAITING_SHARDS.labels(stage)
    WORKING_SHARDS.labels(stage)
    BUS_CONNECTED.labels(stage)


def count(stage: str, domain: str, counts: Counts) -> None:
    """Add one shard's counts."""
    DOCUMENTS_IN.labels(stage, domain).inc(counts.documents_in)
    DOCUMENTS_OUT.labels(stage, domain).inc(counts.documents_out)
    BYTES_IN.labels(stage, domain).inc(counts.bytes_in)
    BYTES_OUT.labels(stage, domain).inc(counts.bytes_out)
    for reason, number in counts.dropped.items():
        DOCUMENTS_DROPPED.labels(stage, domain, reason).inc(number)
    for name, number in counts.extra.items():
        if name.startswith("masked_"):
            MASKED.labels(stage, domain, name.removeprefix("masked_")).inc(number)


def serve(*, host: str, port: int, ready: Callable[[], str]) -> int:
    """Serve the three pages from a thread of their own, so that they answer while the service works.

    Args:
        port: 0 takes a free one.
        ready: returns ``""`` when the service can work, else the reason why not (shown with status 503).

    Returns:
        The port that is served.
    """

    def healthz(_: Request) -> Response:
        return JSONResponse({"status": "alive"})

    def readyz(_: Request) -> Response:
        reason = ready()
        return JSONResponse({"status": reason or "ready"}, status_code=503 if reason else 200)

    app = Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", _metrics)])
    config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    try:
        # From here on a connection waits; uvicorn needs some milliseconds to take it.
        socket = create_server((host, port), backlog=config.backlog)
    except OSError as error:
        logs.get().error("the port for metrics is taken", host=host, port=port, error=str(error))
        sys.exit(1)  # whoever looks after this process starts it again, with another port
    taken = int(socket.getsockname()[1])
    thread = threading.Thread(
        target=uvicorn.Server(config).run, kwargs={"sockets": [socket]}, daemon=True, name="metrics"
    )
    thread.start()
    logs.get().info("metrics", port=taken)
    return taken


def _metrics(request: Request) -> Response:
    """The registry in the format that the scraper asks for."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(REGISTRY), headers={"content-type": content_type})
