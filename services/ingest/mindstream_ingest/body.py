"""The body of a request: decompressed, within limits on its size and on all bodies that are in memory at one time."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterable

from mindstream_common.errors import MindStreamError


class Refused(MindStreamError):
    """A request that is answered with ``status`` and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Room:
    """Bytes that bodies may take in memory, all together."""

    def __init__(self, size: int) -> None:
        self._left = size

    def take(self, size: int) -> None:
        """Raises Refused (503) when there is no room now."""
        if size > self._left:
            raise Refused(503, "too many requests at once; send it again in a moment")
        self._left -= size

    def give(self, size: int) -> None:
        """Free what was taken."""
        self._left += size


class Body:
    """One body. ``with`` gives its room back."""

    def __init__(self, room: Room, limit: int, coding: str) -> None:
        """Raises Refused (415) when ``coding`` is neither ``gzip`` nor ``identity``."""
        if coding not in ("", "identity", "gzip"):
            raise Refused(415, f"Content-Encoding {coding} is not read: send gzip, or none")
        self._room = room
        self._limit = limit
        self._decoder = zlib.decompressobj(31) if coding == "gzip" else None
        self._taken = 0
        self._data = bytearray()

    def __enter__(self) -> Body:
        return self

    def __exit__(self, *_: object) -> None:
        self._room.give(self._taken)

    async def read(self, chunks: AsyncIterable[bytes]) -> bytes:
        """All of it, decompressed.

        Raises:
            Refused: 413 too long, 400 broken gzip, 503 no room.
        """
        async for chunk in chunks:
            self._feed(chunk)
        if self._decoder is not None and not self._decoder.eof:
            raise Refused(400, "the gzip body is cut off")
        data = bytes(self._data)
        self._data.clear()
        return data

    def _feed(self, chunk: bytes) -> None:
        while chunk:
            data, chunk = self._decoded(chunk)
            if len(self._data) + len(data) > self._limit:
                raise Refused(413, f"the body has more than {self._limit} bytes (ingest.http.body_bytes): split it")
            self._room.take(len(data))
            self._taken += len(data)
            self._data += data

    def _decoded(self, chunk: bytes) -> tuple[bytes, bytes]:
        """Some bytes, and what of the chunk is left."""
        if self._decoder is None:
            return chunk, b""
        try:
            if self._decoder.eof:
                self._decoder = zlib.decompressobj(31)  # gzip allows several members
            data = self._decoder.decompress(chunk, self._limit - len(self._data) + 1)
        except zlib.error as error:
            raise Refused(400, f"the body is not gzip: {error}") from error
        return data, self._decoder.unused_data or self._decoder.unconsumed_tail
