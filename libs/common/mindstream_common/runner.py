"""The runner: everything around a stage. It pulls, keeps the delivery alive, publishes, acks, retries, drains and counts.

The order of effects is the same for every stage: read event → verify → work → objects → manifest → publish (id from the
*input*) → ack. Each step may happen twice and the result is the same as once. Work and store are the worker process's
(:mod:`mindstream_common.worker`); this is the side that talks to the bus.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mindstream_common import events, logs, metrics
from mindstream_common.bus import MAX_PAYLOAD, Bus, Delivery, Queue, StreamFull
from mindstream_common.claims import ValkeyClaims, namespace
from mindstream_common.config import Section
from mindstream_common.errors import ConfigError, MindStreamError, Poison, Transient
from mindstream_common.events import DeadLetter, StageEvent
from mindstream_common.manifests import Manifest
from mindstream_common.settings import Settings
from mindstream_common.stage import Declaration
from mindstream_common.topology import STREAM_OF, subject_of
from mindstream_common.worker import Died, Done, Factory, Failed, Ready, Stored, Worker


class PipelineConfig(Section, frozen=True, kw_only=True):
    """Section ``pipeline``: what holds for every stage.

    A delivery that is not answered within ``ack_wait_seconds`` goes to another worker; the runner renews it three times
    as often while it works. ``max_attempts`` failures send an event to the dead letters. ``queue_events`` bounds each
    work queue: a full one pushes back to the stage before it. ``generation`` is raised to forget all texts that were
    seen: dedup claims have no expiry.
    """

    name: str = "default"
    generation: Annotated[int, Meta(ge=0)] = 0
    ack_wait_seconds: Annotated[float, Meta(ge=1, le=3600)] = 30.0
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] = 5
    retry_seconds: Annotated[float, Meta(gt=0, le=3600)] = 1.0  # doubled with every attempt, up to a minute
    drain_seconds: Annotated[float, Meta(ge=0, le=3600)] = 20.0
    queue_events: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000


class _Retry(Exception):
    """Hand the delivery back and count an attempt."""

    def __init__(self, kind: str, error: str) -> None:
        super().__init__(error)
        self.kind = kind


class Runner:
    """Runs one stage until it is told to drain. ``slots`` is how many shards it works on at the same time."""

    def __init__(
        self,
        declaration: Declaration,
        factory: Factory,
        *,
        bus: Bus,
        settings: Settings,
        pipeline: PipelineConfig,
        scratch: Path,
        slots: int = 1,
    ) -> None:
        self._declaration = declaration
        self._stage = declaration.name
        self._bus = bus
        self._settings = settings
        self._pipeline = pipeline
        self._scratch = scratch
        self._namespace = namespace(pipeline.name, pipeline.generation, declaration)
        self._workers = [
            Worker(declaration, factory, settings, self._namespace, scratch / f"slot-{slot}") for slot in range(slots)
        ]
        self._draining = asyncio.Event()
        self._not_ready = "starting"
        self._log = logs.get(stage=self._stage)

    @property
    def not_ready(self) -> str:
        """Why this service cannot work now, or ``""``."""
        return self._not_ready

    def drain(self) -> None:
        """Take no new work; what is in hand is finished or handed back. Safe to call from a signal handler."""
        self._draining.set()

    async def run(self) -> None:
        """Work until drained.

        Raises:
            ConfigError: the stage cannot be built, or the consumer cannot be had.
        """
        metrics.at_zero(self._stage)
        shutil.rmtree(self._scratch, ignore_errors=True)
        stream = STREAM_OF[self._declaration.takes]
        queue = await self._patiently(
            lambda: self._bus.queue(stream, self._stage, ack_wait=self._pipeline.ack_wait_seconds)
        )
        for worker in self._workers:
            await self._start(worker)
        self._not_ready = ""
        self._log.info("ready", slots=len(self._workers))
        watch = asyncio.create_task(self._watch(queue))
        try:
            await self._work_until_drained(queue)
        finally:
            watch.cancel()
            for worker in self._workers:
                worker.kill()
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._log.info("drained")

    async def _work_until_drained(self, queue: Queue) -> None:
        slots = [asyncio.create_task(self._slot(queue, worker)) for worker in self._workers]
        draining = asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait({draining, *slots}, return_when=asyncio.FIRST_COMPLETED)
            if self._draining.is_set():
                self._not_ready = "draining"
                await asyncio.wait(slots, timeout=self._pipeline.drain_seconds)
                for worker in self._workers:
                    worker.kill()  # what is not finished by now is handed back
            await asyncio.gather(*slots)
        finally:
            for task in (draining, *slots):
                task.cancel()

    async def _slot(self, queue: Queue, worker: Worker) -> None:
        while not self._draining.is_set():
            try:
                delivery = await queue.fetch()
            except Transient as error:
                self._log.warning("no work can be fetched", error=str(error))
                await asyncio.sleep(0.5)
                continue
            if delivery is not None:
                await self._handle(delivery, worker)

    async def _handle(self, delivery: Delivery, worker: Worker) -> None:
        """One delivery, from its arrival to its ack, nak or dead letter."""
        started = time.monotonic()
        heartbeat = asyncio.create_task(self._keep(delivery))
        log = self._log.bind(seq=delivery.seq, attempt=delivery.attempt)
        metrics.WORKING_SHARDS.labels(self._stage).inc()
        try:
            outcome = await self._attempt(delivery, worker, log)
            metrics.SHARDS.labels(self._stage, outcome).inc()
            metrics.SHARD_SECONDS.labels(self._stage).observe(time.monotonic() - started)
        except Transient as error:  # the bus went away before the answer: it is delivered again
            log.warning("no answer could be given", error=str(error))
        finally:
            metrics.WORKING_SHARDS.labels(self._stage).dec()
            heartbeat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await heartbeat

    async def _attempt(self, delivery: Delivery, worker: Worker, log: Any) -> str:
        try:
            event = events.decode(delivery.data)
            if delivery.attempt > self._pipeline.max_attempts:
                raise Poison(f"delivered {delivery.attempt - 1} times without an answer: the worker died each time")
            log = log.bind(shard=event.id, domain=event.domain)
            repeated = await self._work(event, worker, log)
        except Poison as error:
            kind = "died" if delivery.attempt > self._pipeline.max_attempts else "poison"
            await self._bury(delivery, kind, str(error), log)
            return "dead"
        except _Retry as error:
            if self._draining.is_set():
                await delivery.nak(0)
                log.info("handed back")
                return "retried"
            if delivery.attempt >= self._pipeline.max_attempts:
                await self._bury(delivery, error.kind, str(error), log)
                return "dead"
            delay = min(60.0, self._pipeline.retry_seconds * 2 ** (delivery.attempt - 1))
            log.warning("failed; it is tried again", seconds=delay, error=str(error)[-2000:])
            await delivery.nak(delay)
            return "retried"
        await self._ack(delivery)
        return "repeated" if repeated else "done"

    async def _work(self, event: StageEvent, worker: Worker, log: Any) -> bool:
        """Give the event to the worker and publish each part that it has stored; True when all was there already."""
        backoff = 0.5
        while True:
            try:
                return await self._once(event, worker, log)
            except Transient as error:
                if self._draining.is_set():
                    raise _Retry("failed", str(error)) from error
                log.warning("not now; trying again", seconds=backoff, error=str(error))
                await asyncio.sleep(backoff)
                backoff = min(15.0, backoff * 2)
            except Died as error:
                if not self._draining.is_set():
                    await self._start(worker)
                raise _Retry("died", str(error)) from error

    async def _once(self, event: StageEvent, worker: Worker, log: Any) -> bool:
        began = time.monotonic()
        worker.send(event)
        repeated = True
        while True:
            match await asyncio.to_thread(worker.receive):
                case Stored(manifest, was_there):
                    await self._publish(manifest, event)
                    repeated = repeated and was_there
                    if not was_there:
                        metrics.count(self._stage, event.domain, manifest.counts)
                    log.info(
                        "stored" if not was_there else "was there",
                        out=manifest.event.id,
                        documents_in=manifest.counts.documents_in,
                        documents_out=manifest.counts.documents_out,
                        dropped=manifest.counts.dropped,
                        seconds=round(time.monotonic() - began, 3),
                    )
                case Done():
                    return repeated
                case Failed("transient" | "config", error):
                    # A refused key or a wrong address is not the shard's fault: it waits until a person has mended it.
                    raise Transient(error)
                case Failed("poison", error):
                    raise Poison(error)
                case Failed(_, error):
                    raise _Retry("failed", error)

    async def _publish(self, manifest: Manifest, input: StageEvent) -> None:
        for number, dead in enumerate(manifest.dead):
            letter = self._letter(f"files.{input.domain}", events.encode(dead.bundle), "poison", dead.error, 1)
            await self._send(f"dead.{self._stage}.{input.domain}", letter, f"dead:{manifest.event.id}:{number}")
        if manifest.publishes:
            await self._send(
                subject_of(manifest.event), events.encode(manifest.event), f"{self._stage}:{input.id}:{manifest.part}"
            )

    async def _bury(self, delivery: Delivery, kind: str, error: str, log: Any) -> None:
        """Claims back, dead letter written, and only then out of the queue."""
        domain = delivery.subject.split(".", 1)[1]
        if self._declaration.claims:
            with contextlib.suppress(MindStreamError):
                await self._patiently(lambda: self._release(events.decode(delivery.data).id))
        letter = self._letter(delivery.subject, delivery.data, kind, error, delivery.attempt)
        # The id names the delivery's place in the queue: the same event may die again after a retry.
        await self._send(f"dead.{self._stage}.{domain}", letter, f"dead:{self._stage}:{delivery.seq}")
        await self._ack(delivery)
        log.error("dead letter", kind=kind, error=error[-2000:])

    async def _ack(self, delivery: Delivery) -> None:
        """Out of the queue. A server that was restarted may have forgotten the delivery and never answers: then the
        event comes again, and what was made of it is found in the store.

        Raises:
            Transient: no answer after some tries.
        """
        for tries_left in (2, 1, 0):
            try:
                await delivery.ack()
                return
            except Transient:
                if not tries_left:
                    raise

    async def _release(self, scope: str) -> None:
        def release() -> None:
            with contextlib.closing(ValkeyClaims(self._settings.valkey_url, self._namespace)) as claims:
                claims.release(scope)

        await asyncio.to_thread(release)

    def _letter(self, subject: str, data: bytes, kind: Any, error: str, attempts: int) -> bytes:
        try:
            msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            data = msgspec.json.encode(data.decode("utf-8", "backslashreplace"))
        domain = subject.split(".", 1)[1]
        room = max(200, (MAX_PAYLOAD - len(data) - 2000) // 4)  # a character is up to four bytes
        letter = DeadLetter(
            stage=self._stage,
            domain=domain,
            subject=subject,
            event=msgspec.Raw(data),
            kind=kind,
            error=error[-min(16_000, room) :],
            attempts=attempts,
            at=time.time(),
        )
        return events.encode(letter)

    async def _send(self, subject: str, data: bytes, id: str) -> None:
        await self._patiently(lambda: self._bus.publish(subject, data, id=id))

    async def _patiently(self, call: Any) -> Any:
        """Repeat a call for as long as its failure is one that passes by itself."""
        backoff = 0.2
        while True:
            try:
                return await call()
            except Transient as error:
                if isinstance(error, StreamFull):
                    metrics.BACK_PRESSURE.labels(self._stage).inc()
                if self._draining.is_set():
                    raise
                self._log.warning("waiting", error=str(error))
                await asyncio.sleep(backoff)
                backoff = min(5.0, backoff * 1.6)

    async def _start(self, worker: Worker) -> None:
        """Start a worker's process and wait until its stage is built."""
        backoff = 0.5
        while not self._draining.is_set():
            worker.start()
            try:
                match await asyncio.to_thread(worker.receive):
                    case Ready():
                        return
                    case Failed("transient", error):
                        self._log.warning("the worker waits", error=error)
                    case Failed(_, error):
                        raise ConfigError(error)
            except Died as error:
                self._log.warning("the worker's process died at its start", error=str(error))
            await asyncio.sleep(backoff)
            backoff = min(15.0, backoff * 2)

    async def _keep(self, delivery: Delivery) -> None:
        """Tell the bus, three times in each ``ack_wait``, that the delivery is still being worked on."""
        while True:
            await asyncio.sleep(self._pipeline.ack_wait_seconds / 3)
            with contextlib.suppress(Transient):
                await delivery.in_progress()

    async def _watch(self, queue: Queue) -> None:
        while True:
            try:
                waiting = await queue.waiting()
                metrics.WAITING_SHARDS.labels(self._stage).set(waiting.pending)
                metrics.BUS_CONNECTED.labels(self._stage).set(1)
                self._not_ready = "" if not self._draining.is_set() else "draining"
            except Transient as error:
                metrics.BUS_CONNECTED.labels(self._stage).set(0)
                self._not_ready = str(error)
            await asyncio.sleep(2.0)
