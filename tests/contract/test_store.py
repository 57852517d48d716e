"""What every object store must do: the same tests for the fake and for a real S3 server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mindstream_cli.servers import free, running, settings
from mindstream_common.errors import ConfigError, Poison, Transient
from mindstream_common.events import Object
from mindstream_common.ids import sha256_bytes
from mindstream_common.store import PART, MemoryStore, NotFound, S3Store, Store


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.servers)])
def any_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
    else:
        yield request.getfixturevalue("store")


def test_what_is_put_is_what_is_got(any_store: Store, tmp_path: Path) -> None:
    data = "高血压患者可以吃党参吗？".encode() * 1000
    (tmp_path / "in").write_bytes(data)
    by_file = any_store.put_file("shards/raw/medical/a.parquet", tmp_path / "in")
    by_bytes = any_store.put_bytes("shards/raw/medical/b 甲+%.parquet", data)
    assert by_file == Object(key="shards/raw/medical/a.parquet", size=len(data), sha256=sha256_bytes(data))
    for object in (by_file, by_bytes):
        any_store.get_file(object, tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == data == any_store.get_bytes(object.key)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


def test_an_empty_object_and_one_of_several_parts(any_store: Store, tmp_path: Path) -> None:
    for size in (0, PART + 12345):
        (tmp_path / "in").write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
        object = any_store.put_file(f"sizes/{size}", tmp_path / "in")
        any_store.get_file(object, tmp_path / "out")
        assert object.size == size == (tmp_path / "out").stat().st_size


@pytest.mark.parametrize(("wrong", "names"), [({"sha256": "0" * 64}, "0" * 64), ({"size": 4}, "expected 4 bytes")])
def test_other_bytes_than_named_are_poison_and_leave_no_file(
    any_store: Store, tmp_path: Path, wrong: dict[str, str | int], names: str
) -> None:
    object = any_store.put_bytes("k/1", b"hello")
    (tmp_path / "out").write_bytes(b"before")
    expected = Object(**{"key": object.key, "size": object.size, "sha256": object.sha256, **wrong})  # type: ignore[arg-type]
    with pytest.raises(Poison, match=names) as error:
        any_store.get_file(expected, tmp_path / "out")
    assert "k/1" in str(error.value)
    assert object.sha256 in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_bytes() == b"before"


def test_what_is_not_there(any_store: Store, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no/such"):
        any_store.get_bytes("no/such")
    with pytest.raises(NotFound, match="no/such"):
        any_store.get_file(Object(key="no/such", size=0, sha256=sha256_bytes(b"")), tmp_path / "out")
    assert not any_store.exists("no/such")
    any_store.delete("no/such")
    assert list(tmp_path.iterdir()) == []


def test_put_replaces_and_delete_can_be_repeated(any_store: Store) -> None:
    any_store.put_bytes("k", b"one")
    any_store.put_bytes("k", b"two")
    assert any_store.get_bytes("k") == b"two"
    assert any_store.exists("k")
    any_store.delete("k")
    any_store.delete("k")
    assert not any_store.exists("k")


def test_list_goes_deep_and_keeps_to_the_prefix(any_store: Store) -> None:
    keys = {f"shards/raw/medical/{n:04}.parquet": n % 7 for n in range(1100)}
    keys |= {"shards/raw/finance/x.parquet": 3, "shards/rawer/y": 1, "drops/z": 2}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda item: any_store.put_bytes(item[0], b"x" * item[1]), keys.items()))
    for prefix in ("", "shards/raw", "shards/raw/", "shards/raw/medical/00", "nothing/"):
        assert dict(any_store.list(prefix)) == {k: v for k, v in keys.items() if k.startswith(prefix)}


def test_of_sixteen_exactly_one_puts_what_was_absent(any_store: Store) -> None:
    for round in range(3):
        start = threading.Barrier(16)

        def attempt(n: int, key: str = f"first/{round}", start: threading.Barrier = start) -> bool:
            start.wait()
            while True:
                with contextlib.suppress(Transient):
                    return any_store.put_if_absent(key, f"winner {n}".encode())

        with ThreadPoolExecutor(16) as pool:
            won = list(pool.map(attempt, range(16)))
        assert won.count(True) == 1
        assert any_store.get_bytes(f"first/{round}") == f"winner {won.index(True)}".encode()
        assert not any_store.put_if_absent(f"first/{round}", b"late")


@pytest.mark.servers
@pytest.mark.parametrize("name", ["MINDSTREAM_S3_ACCESS_KEY", "MINDSTREAM_S3_SECRET_KEY"])
def test_a_wrong_key_is_said_in_words(environment: dict[str, str], name: str) -> None:
    with contextlib.closing(S3Store.from_environment({**environment, name: "wrong"})) as store:
        for call in (store.get_bytes, store.exists, store.delete, lambda key: store.put_if_absent(key, b"x")):
            with pytest.raises(ConfigError, match="Set MINDSTREAM_S3_ACCESS_KEY and MINDSTREAM_S3_SECRET_KEY") as error:
                call("k")
            assert environment["MINDSTREAM_S3_BUCKET"] in str(error.value)
            assert environment["MINDSTREAM_S3_SECRET_KEY"] not in str(error.value)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "ftp://host", "http://host/path", ""])
def test_a_wrong_address_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="MINDSTREAM_S3_ENDPOINT"):
        S3Store(endpoint=endpoint, access_key="a", secret_key="b", bucket="bucket", region="us-east-1")


def test_a_wrong_bucket_name_is_refused() -> None:
    store = S3Store(endpoint="http://127.0.0.1:1", access_key="a", secret_key="b", bucket="B_", region="us-east-1")
    with contextlib.closing(store), pytest.raises(ConfigError, match="MINDSTREAM_S3_BUCKET is 'B_'"):
        store.exists("k")


def test_a_store_that_is_away_is_transient_at_once(tmp_path: Path) -> None:
    port = next(p for p in range(22500, 23000) if free(p))
    store = S3Store(endpoint=f"http://127.0.0.1:{port}", access_key="a", secret_key="b", bucket="bucket", region="r-1")
    with contextlib.closing(store), pytest.raises(Transient, match=r"does not answer.*refused"):
        store.put_bytes("k", b"x")


@pytest.mark.servers
@pytest.mark.chaos
def test_kill_9_of_the_store_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Eight threads write while the server is killed and started three times; every write that returned is whole."""
    acknowledged: dict[str, Object] = {}
    transient = 0
    done = threading.Event()
    with running(tmp_path) as servers:
        store = S3Store.from_environment(settings(tmp_path))

        def write(thread: int) -> None:
            nonlocal transient
            n = 0
            while not done.is_set():
                key, data = f"load/{thread}/{n}", f"{thread} {n} ".encode() * 5000
                try:
                    acknowledged[key] = store.put_bytes(key, data)
                    n += 1
                except Transient:
                    transient += 1
                    done.wait(0.02)

        with contextlib.closing(store), ThreadPoolExecutor(8) as pool:
            writers = [pool.submit(write, thread) for thread in range(8)]
            try:
                for _ in range(3):
                    done.wait(0.5)
                    before = len(acknowledged)
                    servers["weed"].kill()
                    servers["weed"].start()
                    servers["weed"].wait_ready()
                    assert before > 0
            finally:
                done.wait(0.3)
                done.set()
            for writer in writers:
                writer.result()
            assert transient > 0
            for object in acknowledged.values():
                store.get_file(object, tmp_path / "out")
            assert {key for key, _ in store.list("load/")} >= set(acknowledged)
