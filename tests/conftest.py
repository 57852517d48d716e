"""One set of real servers per test run, started when the first test asks for them.

Tests that kill or restart a server start a set of their own (:func:`mindstream_cli.servers.running`).
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from mindstream_cli.child import Server
from mindstream_cli.servers import running, settings
from mindstream_common.claims import ValkeyClaims
from mindstream_common.store import S3Store

# On CI the same examples every time: new ones are looked for at the desk.
hypothesis.settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of the servers."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def servers(state: Path) -> Iterator[dict[str, Server]]:
    """nats, weed and valkey by name, ready, on free ports of 127.0.0.1."""
    with running(state) as by_name:
        yield by_name


@pytest.fixture
def environment(servers: dict[str, Server], state: Path) -> dict[str, str]:
    """The MINDSTREAM_* variables of the servers, with a bucket of this test's own (not made yet)."""
    return {**settings(state), "MINDSTREAM_S3_BUCKET": f"test-{uuid.uuid4().hex[:16]}"}


@pytest.fixture
def nats_url(environment: dict[str, str]) -> str:
    """Where nats-server listens. All tests share its JetStream: use stream names or domains of your own."""
    return environment["MINDSTREAM_NATS_URL"]


@pytest.fixture
def store(environment: dict[str, str]) -> Iterator[S3Store]:
    """The object store, in a bucket of this test's own."""
    with contextlib.closing(S3Store.from_environment(environment)) as opened:
        yield opened


@pytest.fixture
def claims(environment: dict[str, str]) -> Iterator[ValkeyClaims]:
    """Dedup claims, in a namespace of this test's own."""
    opened = ValkeyClaims(environment["MINDSTREAM_VALKEY_URL"], f"test-{uuid.uuid4().hex[:16]}")
    with contextlib.closing(opened):
        yield opened
