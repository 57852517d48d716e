"""A conditional write whose writer is killed in the middle leaves nothing: half an object would win for ever."""

from __future__ import annotations

import socket
import time
from typing import Any
from urllib.parse import urlsplit

import pytest
from mindstream_common.store import S3Store

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("sent", [0, 1, 500])
def test_a_writer_that_is_killed_in_the_middle_leaves_nothing(
    store: S3Store, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    data, key = b"x" * 1000, f"killed-{sent}"
    asked: dict[str, Any] = {}

    class Killed(Exception):
        pass

    def request(method: str, url: str, *, body: bytes, headers: dict[str, str], retries: bool) -> Any:
        asked.update(method=method, url=url, headers=headers)
        raise Killed

    store.put_bytes("other", b"")  # the bucket is there
    with monkeypatch.context() as patch:
        patch.setattr(store._pool, "request", request)
        with pytest.raises(Killed):
            store.put_if_absent(key, data)
    url = urlsplit(asked["url"])
    lines = [
        f"{asked['method']} {url.path}?{url.query} HTTP/1.1",
        f"Host: {url.netloc}",
        f"Content-Length: {len(data)}",
    ]
    lines += [f"{name}: {value}" for name, value in asked["headers"].items()]
    with socket.create_connection((url.hostname or "", url.port or 80)) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + data[:sent])
    for _ in range(20):
        time.sleep(0.02)
        assert not store.exists(key)
    assert store.put_if_absent(key, data)
    assert store.get_bytes(key) == data
