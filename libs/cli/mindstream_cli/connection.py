"""Bus and store of the stack that runs under a state folder, or that the environment names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from mindstream_common import bus, settings
from mindstream_common.bus import NatsBus
from mindstream_common.settings import Settings
from mindstream_common.store import S3Store

from mindstream_cli import servers, stack


@dataclass(frozen=True, slots=True)
class Connection:
    """Both ends, and where they are."""

    bus: NatsBus
    store: S3Store
    settings: Settings


def where(state: Path) -> Settings:
    """Addresses and secrets: of a local stack that runs under ``state``, else of the environment.

    Raises:
        ConfigError: no stack runs there and the environment names none.
    """
    if "MINDSTREAM_NATS_URL" in os.environ and stack.running(state) is None:
        return settings.from_environment()
    stack.need_running(state)
    return settings.from_environment(servers.settings(state))


@contextlib.asynccontextmanager
async def connect(state: Path) -> AsyncIterator[Connection]:
    """Open both; closed at the end."""
    found = where(state)
    store = S3Store.from_settings(found)
    connection = await bus.connect(found.nats_url, name="mindstream-cli", patience=10)
    try:
        yield Connection(connection, store, found)
    finally:
        await connection.close()
        store.close()
