"""The bus: shard events over NATS JetStream. Events only; text never travels here.

What nats-py does that surprises, and what is done about it:

* ``publish_async`` never resolves on an error reply: every publish is awaited.
* ``pull_subscribe`` on an existing durable ignores the configuration silently: ``add_consumer``, compare what the server
  answers, then bind.
* a fetch that is in flight when the server dies is dead until its own timeout: fetches last a second.
* a publish that timed out may still be delivered later: every one carries a ``Nats-Msg-Id``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import nats
import nats.errors
import nats.js.errors
from nats.js import api

from mindstream_common import logs
from mindstream_common.errors import ConfigError, Fenced, Poison, Transient
from mindstream_common.topology import STREAMS, Stream

FETCH_SECONDS = 1.0
REQUEST_SECONDS = 5.0
MAX_PAYLOAD = 1_048_576  # bytes; NATS's own limit, and that of the servers that we start
_STREAM_FULL = {10077, 10047, 10023}  # max messages, no storage, insufficient resources
_WRONG_LAST_SEQUENCE = {10071, 10164}


class TooLarge(Poison):
    """A message that the bus will never take."""


class StreamFull(Transient):
    """The next stage's stream is full: back-pressure, not an error."""


@dataclass(frozen=True, slots=True)
class Record:
    """A stored message: its sequence in the stream, its subject, its bytes."""

    seq: int
    subject: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Waiting:
    """What lies in a work queue: not yet handed out, and handed out but not yet answered."""

    pending: int
    working: int


class Delivery(Protocol):
    """A message in a worker's hands."""

    data: bytes
    subject: str
    seq: int
    attempt: int  # 1 for the first delivery

    async def ack(self) -> None: ...
    async def nak(self, delay: float) -> None: ...
    async def in_progress(self) -> None: ...


class Queue(Protocol):
    """A durable consumer of a work queue."""

    async def fetch(self) -> Delivery | None: ...
    async def waiting(self) -> Waiting: ...


class Bus(Protocol):
    """What the services need of a bus. Errors: ``Transient`` (server away, stream full), ``Fenced`` (sequence)."""

    async def ensure(self, *, queue_events: int) -> None: ...
    async def queue(self, stream: Stream, durable: str, *, ack_wait: float) -> Queue: ...
    async def publish(self, subject: str, data: bytes, *, id: str, expect: int | None = None) -> int: ...
    def read(self, stream: Stream, *, after: int = 0, subject: str | None = None) -> AsyncIterator[Record]: ...
    async def last(self, stream: Stream, subject: str) -> int: ...
    async def remove(self, stream: Stream, seq: int) -> None: ...
    async def close(self) -> None: ...


class NatsDelivery:
    """A JetStream message."""

    def __init__(self, message: Any) -> None:
        self._message = message
        self.data: bytes = message.data
        self.subject: str = message.subject
        self.seq: int = message.metadata.sequence.stream
        self.attempt: int = message.metadata.num_delivered

    async def ack(self) -> None:
        """Take the message out of the queue, and wait until the server has said so."""
        await _call(self._message.ack_sync(timeout=REQUEST_SECONDS))

    async def nak(self, delay: float) -> None:
        """Hand it back; it is delivered again after ``delay`` seconds."""
        await _call(self._message.nak(delay=delay))

    async def in_progress(self) -> None:
        """Start ``ack_wait`` anew."""
        await _call(self._message.in_progress())


class NatsQueue:
    """A bound pull consumer."""

    def __init__(self, subscription: Any) -> None:
        self._subscription = subscription

    async def fetch(self) -> NatsDelivery | None:
        """One message, or None when there is none within a second (also while the server is away)."""
        try:
            return NatsDelivery((await self._subscription.fetch(1, timeout=FETCH_SECONDS))[0])
        except (nats.errors.TimeoutError, TimeoutError):
            return None
        except nats.errors.Error as error:
            raise Transient(f"the bus does not hand out work: {error!r}") from error

    async def waiting(self) -> Waiting:
        """How much lies in the queue."""
        info = await _call(self._subscription.consumer_info())
        return Waiting(pending=info.num_pending or 0, working=info.num_ack_pending or 0)


class NatsBus:
    """The real one. Make it with :func:`connect`."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._before_close: Callable[[], None] = lambda: None
        self._stream = client.jetstream(timeout=REQUEST_SECONDS)

    @property
    def connected(self) -> bool:
        """Whether the server is reachable at this moment."""
        return bool(self._client.is_connected)

    async def ensure(self, *, queue_events: int) -> None:
        """Make the streams, or bring existing ones to this configuration. Safe to repeat, safe in parallel."""
        for stream in STREAMS:
            config = _stream_config(stream, queue_events)
            try:
                await _call(self._stream.add_stream(config))
            except _AlreadyExists:
                await _call(self._stream.update_stream(config))

    async def queue(self, stream: Stream, durable: str, *, ack_wait: float) -> NatsQueue:
        """Make or update the durable consumer, check that the server took what was asked for, and bind to it.

        Raises:
            ConfigError: the durable exists with a configuration that the server does not change.
        """
        wanted = api.ConsumerConfig(
            durable_name=durable,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=ack_wait,
            max_deliver=-1,
            max_ack_pending=10_000,
            filter_subject=f"{stream.subject}.>",
        )
        try:
            info = await _call(self._stream.add_consumer(stream.name, wanted))
        except _Refused as error:
            raise ConfigError(
                f"the consumer {durable!r} of stream {stream.name} cannot be made or updated: {error}. "
                f"Another consumer with another filter stands in the way: remove it with "
                f"`nats consumer rm {stream.name} {durable}` and start again (no message is lost by that)."
            ) from error
        for name in ("ack_wait", "filter_subject", "max_deliver"):
            if getattr(info.config, name) != getattr(wanted, name):
                raise ConfigError(
                    f"the consumer {durable!r} of stream {stream.name} has {name} {getattr(info.config, name)!r} and the "
                    f"server did not change it to {getattr(wanted, name)!r}: remove it with `nats consumer rm "
                    f"{stream.name} {durable}` and start again."
                )
        return NatsQueue(await _call(self._stream.pull_subscribe_bind(durable, stream.name)))

    async def publish(self, subject: str, data: bytes, *, id: str, expect: int | None = None) -> int:
        """Publish and wait for the server's word; returns the sequence.

        ``id`` goes into ``Nats-Msg-Id``. ``expect``: the last sequence of this subject must be this one.

        Raises:
            StreamFull: the stream takes no more for now.
            Fenced: the subject's last sequence is another: someone else wrote.
            Transient: the server is away.
        """
        headers = {api.Header.MSG_ID.value: id}
        if expect is not None:
            headers[api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value] = str(expect)
        ack = await _call(self._stream.publish(subject, data, headers=headers, timeout=REQUEST_SECONDS))
        if expect is not None and ack.duplicate:
            raise Fenced(f"{subject}: a record with id {id!r} was written before")
        return int(ack.seq)

    async def read(self, stream: Stream, *, after: int = 0, subject: str | None = None) -> AsyncIterator[Record]:
        """Every stored message after sequence ``after``, in order, without a consumer; ends at the last one."""
        wanted = subject or f"{stream.subject}.>"
        while True:
            try:
                found = await _call(
                    self._stream.get_msg(stream.name, seq=after + 1, subject=wanted, direct=True, next=True)
                )
            except _Missing:
                return
            yield Record(seq=found.seq, subject=found.subject, data=found.data or b"")
            after = found.seq

    async def last(self, stream: Stream, subject: str) -> int:
        """The sequence of the subject's last message; 0 when there is none."""
        try:
            return int((await _call(self._stream.get_msg(stream.name, subject=subject))).seq)
        except _Missing:
            return 0

    async def remove(self, stream: Stream, seq: int) -> None:
        """Delete a stored message; nothing happens when it is gone already."""
        try:
            await _call(self._stream.delete_msg(stream.name, seq))
        except (_Missing, _Refused):
            return

    async def waiting(self, stream: str, durable: str) -> Waiting:
        """How much lies in the queue of a durable consumer; nothing when there is none yet."""
        try:
            info = await _call(self._stream.consumer_info(stream, durable))
        except _Missing:
            return Waiting(pending=0, working=0)
        return Waiting(pending=info.num_pending or 0, working=info.num_ack_pending or 0)

    async def close(self) -> None:
        """Close the connection."""
        self._before_close()
        await self._client.close()


class _Missing(Exception):
    pass


class _AlreadyExists(Exception):
    pass


class _Refused(Exception):
    pass


async def _call(awaitable: Any) -> Any:
    """Translate nats-py's errors into ours."""
    try:
        return await awaitable
    except nats.js.errors.NotFoundError as error:
        raise _Missing(str(error)) from error
    except nats.js.errors.NoStreamResponseError as error:
        raise Transient("the bus has no stream that listens to this subject (yet)") from error
    except nats.js.errors.ServiceUnavailableError as error:
        raise _full_or_away(error) from error
    except nats.js.errors.APIError as error:
        if error.err_code in _STREAM_FULL:
            raise StreamFull(f"the stream is full: {error.description}") from error
        if error.err_code in _WRONG_LAST_SEQUENCE:
            raise Fenced(f"somebody else wrote to this subject: {error.description}") from error
        if error.err_code == 10058:
            raise _AlreadyExists from error
        raise _Refused(f"{error.description} (code {error.err_code})") from error
    except nats.errors.MaxPayloadError as error:
        raise TooLarge(f"the bus takes messages of at most {MAX_PAYLOAD:,} bytes") from error
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise Transient(f"the bus does not answer: {error!r}") from error


def _full_or_away(error: Any) -> Transient:
    if error.err_code in _STREAM_FULL:
        return StreamFull(f"the stream is full: {error.description}")
    return Transient(f"the bus is not ready: {error.description}")


def _stream_config(stream: Stream, queue_events: int) -> api.StreamConfig:
    if stream.work_queue:
        return api.StreamConfig(
            name=stream.name,
            subjects=[f"{stream.subject}.>"],
            retention=api.RetentionPolicy.WORK_QUEUE,
            max_msgs=queue_events,
            discard=api.DiscardPolicy.NEW,
            duplicate_window=120.0,
            allow_direct=True,
        )
    return api.StreamConfig(
        name=stream.name,
        subjects=[f"{stream.subject}.>"],
        retention=api.RetentionPolicy.LIMITS,
        discard=api.DiscardPolicy.NEW,
        duplicate_window=120.0,
        allow_direct=True,
    )


async def connect(url: str, *, name: str, patience: float | None = None) -> NatsBus:
    """Connect, and stay connected for ever: a server that goes away is waited for.

    Args:
        url: ``nats://user:password@host:port``.
        name: what the server shows as this connection's name.
        patience: seconds to wait for the first connection; None waits for ever.

    Raises:
        ConfigError: the server refuses these credentials.
        Transient: no server within ``patience``.
    """
    log = logs.get()
    client = nats.NATS()
    refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    seen = ""
    closing = False

    def before_close() -> None:
        nonlocal closing
        closing = True

    async def on_error(error: Exception) -> None:
        nonlocal seen
        if "authorization violation" in str(error).lower() and not refused.done():
            refused.set_result(None)
        if seen != repr(error):  # the same words once, however often the server is tried
            seen = repr(error)
            log.warning("the bus reports an error", error=seen)

    async def on_disconnect() -> None:
        if not closing:
            log.warning("the bus is away; waiting for it")

    async def on_reconnect() -> None:
        nonlocal seen
        seen = ""
        log.info("the bus is back")

    attempt = asyncio.ensure_future(
        client.connect(
            url,
            name=name,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.5,
            connect_timeout=2,
            ping_interval=5,
            max_outstanding_pings=2,
            error_cb=on_error,
            disconnected_cb=on_disconnect,
            reconnected_cb=on_reconnect,
        )
    )
    await asyncio.wait({attempt, refused}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    if attempt.done():
        refused.cancel()
        attempt.result()
        bus = NatsBus(client)
        bus._before_close = before_close
        return bus
    attempt.cancel()
    await asyncio.gather(attempt, return_exceptions=True)
    await client.close()
    address = url.rsplit("@", 1)[-1]
    if refused.done():
        raise ConfigError(f"the bus at {address} refuses these credentials: check MINDSTREAM_NATS_URL.")
    refused.cancel()
    raise Transient(f"no bus at {address} within {patience} s: {seen or 'no answer'}")
