"""Calls that are repeated while the bus or the store is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from mindstream_common import logs
from mindstream_common.errors import Transient

T = TypeVar("T")


async def patiently(call: Callable[[], T]) -> T:
    """Call in a thread; repeat for as long as the failure is one that passes by itself."""
    backoff = 0.5
    while True:
        try:
            return await asyncio.to_thread(call)
        except Transient as error:
            logs.get().warning("the store is away; trying again", error=str(error))
            await asyncio.sleep(backoff)
            backoff = min(15.0, backoff * 2)
