"""A bus in memory, for tests that need no server. It passes the same contract tests as the real one."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from mindstream_common.bus import FETCH_SECONDS, Record, StreamFull, Waiting
from mindstream_common.errors import Fenced, Transient
from mindstream_common.topology import STREAMS, Stream


@dataclass
class _Stored:
    stream: Stream
    records: dict[int, Record] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    seq: int = 0
    limit: int = 0


class MemoryBus:
    """Streams in dictionaries. One event loop only."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stored] = {}
        self._queues: list[MemoryQueue] = []

    async def ensure(self, *, queue_events: int) -> None:
        """Make the streams."""
        for stream in STREAMS:
            stored = self._streams.setdefault(stream.name, _Stored(stream))
            stored.limit = queue_events if stream.work_queue else 0

    async def queue(self, stream: Stream, durable: str, *, ack_wait: float) -> MemoryQueue:
        """The durable consumer; a second call gives another hand on the same queue."""
        for queue in self._queues:
            if (queue.stream, queue.durable) == (stream, durable):
                queue.ack_wait = ack_wait
                return queue
        queue = MemoryQueue(self._streams[stream.name], durable, ack_wait)
        self._queues.append(queue)
        return queue

    async def publish(self, subject: str, data: bytes, *, id: str, expect: int | None = None) -> int:
        """Store a message, once per ``id``."""
        stored = self._by_subject(subject)
        if id in stored.ids:
            if expect is not None:
                raise Fenced(f"{subject}: a record with id {id!r} was written before")
            return stored.ids[id]
        if expect is not None and (last := self._last(stored, subject)) != expect:
            raise Fenced(f"{subject}: last sequence is {last}, not {expect}")
        if stored.limit and len(stored.records) >= stored.limit:
            raise StreamFull(f"stream {stored.stream.name} holds {stored.limit} messages")
        stored.seq += 1
        stored.records[stored.seq] = Record(seq=stored.seq, subject=subject, data=data)
        stored.ids[id] = stored.seq
        return stored.seq

    async def read(self, stream: Stream, *, after: int = 0, subject: str | None = None) -> AsyncIterator[Record]:
        """Every stored message after ``after``, in order."""
        for seq in sorted(self._streams[stream.name].records):
            record = self._streams[stream.name].records.get(seq)
            if record is not None and seq > after and subject in (None, f"{stream.subject}.>", record.subject):
                yield record

    async def last(self, stream: Stream, subject: str) -> int:
        """The sequence of the subject's last message, or 0."""
        return self._last(self._streams[stream.name], subject)

    async def remove(self, stream: Stream, seq: int) -> None:
        """Delete a stored message."""
        self._streams[stream.name].records.pop(seq, None)

    async def close(self) -> None:
        """Nothing to close."""

    def _by_subject(self, subject: str) -> _Stored:
        for stored in self._streams.values():
            if stored.stream.subject == subject.split(".", 1)[0]:
                return stored
        raise Transient(f"no stream listens to {subject}")

    @staticmethod
    def _last(stored: _Stored, subject: str) -> int:
        return max((r.seq for r in stored.records.values() if r.subject == subject), default=0)


class MemoryQueue:
    """A work queue's consumer."""

    def __init__(self, stored: _Stored, durable: str, ack_wait: float) -> None:
        self._stored = stored
        self.stream = stored.stream
        self.durable = durable
        self.ack_wait = ack_wait
        self.due: dict[int, float] = {}  # handed out: when it is delivered again
        self.attempts: dict[int, int] = {}

    async def fetch(self) -> MemoryDelivery | None:
        """One message, or None within a second."""
        until = time.monotonic() + FETCH_SECONDS
        while time.monotonic() < until:
            ready = deque(s for s in sorted(self._stored.records) if self.due.get(s, 0.0) <= time.monotonic())
            if ready:
                seq = ready[0]
                self.due[seq] = time.monotonic() + self.ack_wait
                self.attempts[seq] = self.attempts.get(seq, 0) + 1
                return MemoryDelivery(self, self._stored.records[seq], self.attempts[seq])
            await asyncio.sleep(0.01)
        return None

    async def waiting(self) -> Waiting:
        """Not yet handed out, and handed out."""
        working = sum(1 for s in self.due if s in self._stored.records)
        return Waiting(pending=len(self._stored.records) - working, working=working)

    def finish(self, seq: int) -> None:
        """Acked: out of the queue."""
        self._stored.records.pop(seq, None)
        self.due.pop(seq, None)


class MemoryDelivery:
    """A message in hand."""

    def __init__(self, queue: MemoryQueue, record: Record, attempt: int) -> None:
        self._queue = queue
        self.data = record.data
        self.subject = record.subject
        self.seq = record.seq
        self.attempt = attempt

    async def ack(self) -> None:
        """Take it out of the queue."""
        self._queue.finish(self.seq)

    async def nak(self, delay: float) -> None:
        """Deliver it again after ``delay`` seconds."""
        self._queue.due[self.seq] = time.monotonic() + delay

    async def in_progress(self) -> None:
        """Start ``ack_wait`` anew."""
        self._queue.due[self.seq] = time.monotonic() + self._queue.ack_wait
