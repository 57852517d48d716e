"""What claims must do: the same tests for the fake and for a real Valkey."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

import pytest
import valkey
from mindstream_cli.child import Server
from mindstream_cli.servers import free, local_servers, settings
from mindstream_common.claims import MemoryClaims, ScopedClaims, ValkeyClaims
from mindstream_common.errors import ConfigError, Transient


def key(text: object) -> bytes:
    return blake2b(str(text).encode(), digest_size=16).digest()


@pytest.fixture(params=["memory", pytest.param("valkey", marks=pytest.mark.servers)])
def any_claims(request: pytest.FixtureRequest) -> Iterator[ScopedClaims]:
    if request.param == "memory":
        yield MemoryClaims()
    else:
        yield request.getfixturevalue("claims")


def test_the_first_owner_wins_in_order(any_claims: ScopedClaims) -> None:
    a, b = key("a"), key("b")
    assert any_claims.claim("s1/0", [a, b, a], ["s1/0", "s1/1", "s1/2"]) == ["", "", "s1/0"]
    assert any_claims.claim("s2/0", [b, key("c")], ["s2/0", "s2/1"]) == ["s1/1", ""]
    assert any_claims.claim("s1/9", [b, a], ["s1/1", "s1/2"]) == [
        "",
        "s1/0",
    ]  # held by the one who asks: still the first
    assert any_claims.claim("s1/empty", [], []) == []


def test_a_batch_that_is_delivered_again_gets_the_same_answers(any_claims: ScopedClaims) -> None:
    batch = ("s1/0", [key("a"), key("b")], ["s1/0", "s1/1"])
    assert any_claims.claim("s0/0", [key("a")], ["s0/0"]) == [""]
    assert any_claims.claim(*batch) == ["s0/0", ""]
    assert any_claims.release("s0") == 1
    assert any_claims.claim(*batch) == ["s0/0", ""]  # although "a" is free now: the same input, the same output
    any_claims.settle("s1")
    assert any_claims.claim(*batch) == ["s0/0", ""]


def test_other_content_under_the_same_name_is_asked_afresh(any_claims: ScopedClaims) -> None:
    assert any_claims.claim("s1/0", [key("a")], ["s1/0"]) == [""]
    assert any_claims.claim("s1/0", [key("a")], ["s1/7"]) == ["s1/0"]
    assert any_claims.claim("s1/0", [key("b")], ["s1/0"]) == [""]


def test_release_gives_back_what_the_scope_took_and_nothing_else(any_claims: ScopedClaims) -> None:
    any_claims.claim("s1/0", [key("a"), key("b")], ["s1/0", "s1/1"])
    any_claims.claim("s2/0", [key("b"), key("c")], ["s2/0", "s2/1"])
    assert any_claims.release("s2") == 1  # "c"; "b" is s1's
    assert any_claims.release("s2") == 0
    assert any_claims.claim("s3/0", [key("b"), key("c")], ["s3/0", "s3/1"]) == ["s1/1", ""]
    assert any_claims.release("s1") == 2
    assert any_claims.claim("s1/0", [key("a"), key("b")], ["s1/0", "s1/1"]) == ["", ""]  # a retry asks afresh
    assert any_claims.claim("s2/0", [key("b"), key("c")], ["s2/0", "s2/1"]) == ["s1/1", "s3/1"]


def test_release_leaves_what_another_holds_by_now(any_claims: ScopedClaims) -> None:
    """A shard was released and asked once more while another took its key in between; then it dies again."""
    any_claims.claim("s1/0", [key("a"), key("b")], ["s1/0", "s1/1"])
    any_claims.release("s1")
    any_claims.claim("s2/0", [key("a")], ["s2/0"])
    assert any_claims.claim("s1/0", [key("a"), key("b")], ["s1/0", "s1/1"]) == ["s2/0", ""]
    assert any_claims.release("s1") == 1
    assert any_claims.claim("s3/0", [key("a"), key("b")], ["s3/0", "s3/1"]) == ["s2/0", ""]


def test_after_settle_nothing_is_given_back(any_claims: ScopedClaims) -> None:
    any_claims.claim("s1/0", [key("a")], ["s1/0"])
    any_claims.settle("s1")
    any_claims.settle("s1")
    any_claims.settle("never-seen")
    assert any_claims.release("s1") == 0
    assert any_claims.claim("s1/0", [key("a")], ["s1/0"]) == [""]
    assert any_claims.release("s1") == 0
    assert any_claims.claim("s2/0", [key("a")], ["s2/0"]) == ["s1/0"]


def test_a_batch_of_many_with_names_of_any_kind(any_claims: ScopedClaims) -> None:
    owners = [f"分片/{n}\x00 é" for n in range(9000)]
    keys = [key(n // 3) for n in range(9000)]
    expected = [owners[n - n % 3] if n % 3 else "" for n in range(9000)]
    assert any_claims.claim("分片/0", keys, owners) == expected
    assert any_claims.claim("分片/0", keys, owners) == expected
    assert any_claims.release("分片") == 3000


@pytest.mark.parametrize(
    ("keys", "owners", "says"),
    [
        ([b"short"], ["o"], "5 bytes of 16"),
        ([key(1)], [""], "owner is ''"),
        ([key(1)], ["a", "b"], "1 keys but 2 owners"),
    ],
)
def test_wrong_arguments_are_refused(any_claims: ScopedClaims, keys: list[bytes], owners: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        any_claims.claim("s/0", keys, owners)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_order_one_owner_survives_and_is_every_reason(any_claims: ScopedClaims, seed: int) -> None:
    """Workers race over shards that overlap, are delivered up to three times, and stop half-way."""
    choose = random.Random(seed)
    batches = {
        f"s{shard}/{start}": [(key(choose.randrange(200)), f"s{shard}/{start + row}") for row in range(25)]
        for shard in range(10)
        for start in (0, 25, 50)
    }
    deliveries = [(f"s{shard}", choose.choice([25, 50, 75, 75])) for shard in range(10) for _ in range(2)]
    choose.shuffle(deliveries)
    deliveries += [(f"s{shard}", 75) for shard in choose.sample(range(10), 10)]
    answers: dict[str, set[tuple[str, ...]]] = defaultdict(set)

    def deliver(delivery: tuple[str, int]) -> None:
        shard, until = delivery
        for start in range(0, until, 25):
            rows = batches[f"{shard}/{start}"]
            got = any_claims.claim(f"{shard}/{start}", [k for k, _ in rows], [owner for _, owner in rows])
            answers[f"{shard}/{start}"].add(tuple(got))
        if until == 75:
            any_claims.settle(shard)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(deliver, deliveries))
    assert answers.keys() == batches.keys()
    assert all(len(distinct) == 1 for distinct in answers.values())
    kept, reasons = defaultdict(list), defaultdict(set)
    for batch, rows in batches.items():
        for (k, owner), answer in zip(rows, min(answers[batch]), strict=True):
            (reasons[k].add(answer) if answer else kept[k].append(owner))
    assert all(len(owners) == 1 for owners in kept.values())
    assert all(reasons[k] == set(kept[k]) for k in reasons)
    assert kept.keys() == {k for rows in batches.values() for k, _ in rows}


@pytest.mark.servers
@pytest.mark.parametrize("seed", range(3))
def test_the_fake_and_the_real_one_never_differ(claims: ValkeyClaims, seed: int) -> None:
    choose, fake = random.Random(seed), MemoryClaims()
    for _ in range(400):
        scope = f"s{choose.randrange(4)}"
        action = choose.choices(["claim", "release", "settle"], [8, 2, 1])[0]
        if action == "claim":
            start = choose.randrange(5)
            rows = random.Random(f"{scope} {start}")  # the same batch is asked again and again
            keys = [key(rows.randrange(40)) for _ in range(6)]
            owners = [f"{scope}/{start + row}" for row in range(6)]
            assert claims.claim(f"{scope}/{start}", keys, owners) == fake.claim(f"{scope}/{start}", keys, owners)
        elif action == "release":
            assert claims.release(scope) == fake.release(scope)
        else:
            claims.settle(scope)
            fake.settle(scope)


@pytest.mark.servers
def test_namespaces_do_not_meet_and_every_key_has_the_hash_tag(environment: dict[str, str]) -> None:
    url = environment["MINDSTREAM_VALKEY_URL"]
    with contextlib.closing(ValkeyClaims(url, "one:v1")) as one, contextlib.closing(ValkeyClaims(url, "two:v1")) as two:
        assert one.claim("s1/0", [key("a")], ["s1/0"]) == [""]
        assert two.claim("s2/0", [key("a")], ["s2/0"]) == [""]
    with valkey.Valkey.from_url(url) as client:
        keys = list(client.scan_iter("*one:v1*"))
        assert len(keys) == 3
        assert all(k.startswith(b"{one:v1}:") for k in keys)
        ttls = {k[8:11]: client.ttl(k) for k in keys}
        assert ttls[b":c:"] == ttls[b":s:"] == -1
        assert 7 * 24 * 3600 - 60 < ttls[b":a:"] <= 7 * 24 * 3600


@pytest.mark.parametrize("namespace", ["", "a{b", "a}b"])
def test_a_namespace_that_breaks_the_hash_tag_is_refused(namespace: str) -> None:
    with pytest.raises(ConfigError, match="namespace"):
        ValkeyClaims("valkey://127.0.0.1:1/0", namespace)


def test_a_wrong_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="MINDSTREAM_VALKEY_URL"):
        ValkeyClaims("127.0.0.1:6379", "n")


def test_a_server_that_is_away_is_transient() -> None:
    port = next(p for p in range(22500, 23000) if free(p))
    claims = ValkeyClaims(f"valkey://127.0.0.1:{port}/0", "n")
    with contextlib.closing(claims), pytest.raises(Transient, match=f"127.0.0.1:{port} does not answer"):
        claims.settle("s")


@pytest.mark.servers
def test_a_wrong_password_is_said_in_words(environment: dict[str, str]) -> None:
    host = environment["MINDSTREAM_VALKEY_URL"].rpartition("@")[2]
    for url in (f"valkey://:wrong@{host}", f"valkey://{host}"):
        claims = ValkeyClaims(url, "n")
        with contextlib.closing(claims), pytest.raises(ConfigError, match="Set the user and password in MINDSTREAM"):
            claims.settle("s")


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A Valkey that the test may kill."""
    server = {server.name: server for server in local_servers(tmp_path)}["valkey"]
    server.start()
    server.wait_ready()
    yield server
    server.kill()


@pytest.fixture
def own_url(own_server: Server, tmp_path: Path) -> str:
    return settings(tmp_path)["MINDSTREAM_VALKEY_URL"]


def restart(server: Server) -> None:
    server.kill()
    server.start()
    server.wait_ready()


@pytest.mark.servers
@pytest.mark.chaos
def test_claims_functions_and_answers_survive_kill_9(own_server: Server, own_url: str) -> None:
    with contextlib.closing(ValkeyClaims(own_url, "n")) as claims, valkey.Valkey.from_url(own_url) as client:
        claims.claim("s1/0", [key("a"), key("b")], ["s1/0", "s1/1"])
        assert claims.claim("s2/0", [key("b"), key("c")], ["s2/0", "s2/1"]) == ["s1/1", ""]
        restart(own_server)
        assert len(client.function_list()) == 1  # kept in the append-only file: nothing was called since the start
        assert claims.claim("s2/0", [key("b"), key("c")], ["s2/0", "s2/1"]) == ["s1/1", ""]
        assert claims.claim("s3/0", [key("a"), key("c")], ["s3/0", "s3/1"]) == ["s1/0", "s2/1"]
        restart(own_server)
        assert claims.release("s1") == 2  # what the scope took is remembered too


@pytest.mark.servers
@pytest.mark.chaos
def test_kill_9_under_load_changes_no_answer(own_server: Server, own_url: str) -> None:
    answers: dict[str, list[str]] = {}
    done = threading.Event()

    def work(worker: int) -> int:
        choose, transient, n = random.Random(worker), 0, 0
        with contextlib.closing(ValkeyClaims(own_url, "n")) as claims:
            while not done.is_set():
                batch = f"s{worker}/{n}"
                keys = [key(choose.randrange(5000)) for _ in range(20)]
                owners = [f"s{worker}/{n}.{row}" for row in range(20)]
                while batch not in answers and not done.is_set():
                    try:
                        answers[batch] = claims.claim(batch, keys, owners)
                        content[batch] = keys, owners
                    except Transient:
                        transient += 1
                        done.wait(0.01)
                n += 1
        return transient

    content: dict[str, tuple[list[bytes], list[str]]] = {}
    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(work, worker) for worker in range(4)]
        try:
            for _ in range(4):
                done.wait(0.2)
                restart(own_server)
            done.wait(0.2)
        finally:
            done.set()
        assert sum(worker.result() for worker in workers) > 0
    kept = defaultdict(list)
    with contextlib.closing(ValkeyClaims(own_url, "n")) as claims:
        for batch, (keys, owners) in content.items():
            assert claims.claim(batch, keys, owners) == answers[batch]
            for k, owner, answer in zip(keys, owners, answers[batch], strict=True):
                if not answer:
                    kept[k].append(owner)
    assert len(kept) > 100
    assert all(len(owners) == 1 for owners in kept.values())


@pytest.mark.servers
def test_an_emptied_server_gets_the_functions_again(own_url: str) -> None:
    with contextlib.closing(ValkeyClaims(own_url, "n")) as claims, valkey.Valkey.from_url(own_url) as client:
        claims.claim("s1/0", [key("a")], ["s1/0"])
        client.function_flush()
        assert claims.claim("s2/0", [key("a")], ["s2/0"]) == ["s1/0"]


@pytest.mark.servers
def test_each_namespace_lives_on_one_node_of_a_cluster(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        urls, nodes = [], []
        for name in ("one", "two"):
            server = {server.name: server for server in local_servers(tmp_path / name)}["valkey"]
            server.argv = [*server.argv, "--cluster-enabled", "yes", "--requirepass", "same"]
            server.start()
            stack.callback(server.kill)
            host = settings(tmp_path / name)["MINDSTREAM_VALKEY_URL"].rpartition("@")[2]
            urls.append(f"valkey://:same@{host}")
            nodes.append(stack.enter_context(valkey.Valkey.from_url(urls[-1])))
        claims = ValkeyClaims(urls[0], "before")
        with contextlib.closing(claims):
            until(lambda: nodes[0].ping() and nodes[1].ping())
            with pytest.raises(Transient, match=r"cannot take claims now: CLUSTERDOWN|does not answer"):
                claims.settle("s")  # nobody has any slots yet
        nodes[0].execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
        nodes[1].execute_command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
        nodes[0].execute_command("CLUSTER", "MEET", "127.0.0.1", urls[1].rpartition(":")[2].split("/")[0])
        until(lambda: all("cluster_state:ok" in str(node.execute_command("CLUSTER", "INFO")) for node in nodes))
        for namespace in ("a", "b", "c", "d"):
            claims = stack.enter_context(contextlib.closing(ValkeyClaims(urls[0], namespace)))
            assert claims.claim("s1/0", [key(1), key(2), key(1)], ["s1/0", "s1/1", "s1/2"]) == ["", "", "s1/0"]
            assert claims.claim("s2/0", [key(1)], ["s2/0"]) == ["s1/0"]
            assert claims.release("s1") == 2
        assert all(node.dbsize() > 0 for node in nodes)


def until(true: Callable[[], object], seconds: float = 20) -> None:
    """Wait until a condition holds; errors of a server that is not there yet mean that it does not."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(valkey.ValkeyError):
            if true():
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def full(client: valkey.Valkey) -> None:
    client.config_set("maxmemory", 1)


def replica(client: valkey.Valkey) -> None:
    client.replicaof("127.0.0.1", 1)


@pytest.mark.servers
@pytest.mark.parametrize("break_it", [full, replica])
def test_a_server_that_takes_no_writes_is_transient(own_url: str, break_it: Callable[[valkey.Valkey], None]) -> None:
    with contextlib.closing(ValkeyClaims(own_url, "n")) as claims, valkey.Valkey.from_url(own_url) as client:
        claims.claim("s1/0", [key("a")], ["s1/0"])
        break_it(client)
        with pytest.raises(Transient, match="cannot take claims now"):
            claims.claim("s2/0", [key("b")], ["s2/0"])


@pytest.mark.servers
def test_the_function_refuses_broken_records_before_it_writes(own_url: str) -> None:
    with contextlib.closing(ValkeyClaims(own_url, "n")) as claims, valkey.Valkey.from_url(own_url) as client:
        claims.settle("s")
        for head, owner, record, says in (
            ((0.8, 0), "s/1", b"short", "16 bytes"),
            ((0.8, 12), "s/1", key("a") + bytes(96), "signature"),
            ((0.8, 0), "s/1", key("a") + bytes(132), "signature"),
            ((0.8, 0), "", key("a"), "owner"),
            ((0.8, 0), "\0", key("a"), "owner"),
            (("much", 12), "s/1", key("a"), "threshold"),
            ((0.8, 32), "s/1", key("a"), "bands"),
        ):
            arguments = ("s", "s/0:x", 60, *head, "s/0", key("ok"), owner, record)
            with pytest.raises(valkey.ResponseError, match=says):
                client.fcall("mindstream_claim_v2", 1, "{n}", *arguments)
        assert client.dbsize() == 0
