"""The local servers: they start fast, survive restarts, die with their parent, and keep their secrets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import nats
import psutil
import pytest
import valkey
from mindstream_cli import servers as module
from mindstream_cli.child import Server, ServerFailed, start_all
from mindstream_cli.servers import (
    choose_ports,
    free,
    load,
    local_servers,
    running,
    settings,
)
from mindstream_common.errors import ConfigError
from mindstream_common.store import S3Store

pytestmark = pytest.mark.servers


def test_a_restart_keeps_ports_credentials_and_data(tmp_path: Path) -> None:
    state = tmp_path / "with space 空"
    started = time.monotonic()
    with running(state):
        assert time.monotonic() - started < 4
        before = settings(state)
        write(before)
    with running(state):
        assert settings(state) == before
        assert read(before) == (b"bytes", b"value", 1)


def test_a_taken_port_is_chosen_anew_and_the_data_stays(tmp_path: Path) -> None:
    with running(tmp_path):
        before = settings(tmp_path)
        write(before)
    saved = load(tmp_path)
    assert saved is not None
    with contextlib.ExitStack() as stack:
        for name in ("s3", "master", "nats", "valkey"):
            taken = stack.enter_context(socket.socket())
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", saved.ports[name]))
            taken.listen()
        with running(tmp_path):
            after = settings(tmp_path)
            assert after["MINDSTREAM_S3_ENDPOINT"] != before["MINDSTREAM_S3_ENDPOINT"]
            assert after["MINDSTREAM_S3_SECRET_KEY"] == before["MINDSTREAM_S3_SECRET_KEY"]
            assert read(after) == (b"bytes", b"value", 1)
            write(after)


def write(environment: dict[str, str]) -> None:
    with contextlib.closing(S3Store.from_environment(environment)) as store:
        store.put_bytes("k", b"bytes")
    with valkey.Valkey.from_url(environment["MINDSTREAM_VALKEY_URL"]) as client:
        client.set("k", "value")

    async def publish() -> None:
        async with await nats.connect(environment["MINDSTREAM_NATS_URL"]) as connection:
            js = connection.jetstream()
            await js.add_stream(name="RAW", subjects=["raw.>"])
            await js.publish("raw.medical", b"event", headers={"Nats-Msg-Id": "1"})

    asyncio.run(publish())


def read(environment: dict[str, str]) -> tuple[bytes, object, int]:
    with contextlib.closing(S3Store.from_environment(environment)) as store:
        data = store.get_bytes("k")
    with valkey.Valkey.from_url(environment["MINDSTREAM_VALKEY_URL"]) as client:
        value = client.get("k")

    async def count() -> int:
        async with await nats.connect(environment["MINDSTREAM_NATS_URL"]) as connection:
            return (await connection.jetstream().stream_info("RAW")).state.messages

    return data, value, asyncio.run(count())


def test_only_this_machine_and_only_with_the_credentials(
    servers: dict[str, Server], environment: dict[str, str]
) -> None:
    for server in servers.values():
        assert server.process is not None
        listening = [c for c in psutil.Process(server.process.pid).net_connections("inet") if c.status == "LISTEN"]
        assert listening
        assert {c.laddr.ip for c in listening} == {"127.0.0.1"}

    host, port = environment["MINDSTREAM_NATS_URL"].rpartition("@")[2].split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"CONNECT {}\r\nPING\r\n")
        with connection.makefile("rb") as answers:
            assert b"'Authorization Violation'" in answers.read()


def test_secrets_are_readable_by_their_owner_only(servers: dict[str, Server], state: Path) -> None:
    for path in (state / "servers.json", state / "nats" / "nats.conf", state / "valkey" / "valkey.conf"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    saved = load(state)
    assert saved is not None
    secrets = {saved.nats_password, saved.s3_secret_key, saved.valkey_password}  # an access key is a name, not a secret
    assert min(map(len, secrets)) >= 16
    for server in servers.values():
        assert server.process is not None
        assert not secrets & set(" ".join(psutil.Process(server.process.pid).cmdline()).split())
        assert not any(secret in server.log.read_text() for secret in secrets)


PARENT = """
import os, sys, threading, time
from pathlib import Path
from mindstream_cli.child import start_all
from mindstream_cli.servers import local_servers
servers = local_servers(Path(sys.argv[1]))
thread = threading.Thread(target=start_all, args=(servers,))
thread.start()
thread.join()  # the thread that started them is gone: they must stay
time.sleep(0.3)
assert all(server.alive() for server in servers)
print(*(server.process.pid for server in servers), flush=True)
time.sleep(60)
"""


@pytest.mark.chaos
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with a parent that was killed with -9")
def test_kill_9_of_the_parent_leaves_no_child_and_the_folder_can_be_used_at_once(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(children) == 3
        with pytest.raises(ConfigError, match="is in use"):
            local_servers(tmp_path)
        parent.send_signal(signal.SIGKILL)
    with running(tmp_path):
        assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


def test_a_server_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    script = "import sys; print('the disk is full'); sys.exit(3)"
    server = Server(
        name="broken",
        argv=[sys.executable, "-c", script],
        ready=lambda: True,
        log=tmp_path / "logs" / "broken.log",
        folder=tmp_path / "broken",
    )
    server.log.parent.mkdir()
    server.log.write_text("a line of an earlier start\n")
    server.start()
    assert server.process is not None
    server.process.wait()
    with pytest.raises(ServerFailed, match=r"(?s)broken ended with exit code 3.*the disk is full") as error:
        server.wait_ready()
    assert "earlier start" not in str(error.value)


def test_a_server_that_never_answers_is_given_up_with_its_reason(tmp_path: Path) -> None:
    def ready() -> bool:
        raise OSError("connection refused by test")

    server = Server(
        name="mute",
        argv=[
            sys.executable,
            "-c",
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)",
        ],
        ready=ready,
        log=tmp_path / "mute.log",
        folder=tmp_path / "mute",
    )
    server.start()
    with pytest.raises(ServerFailed, match=r"mute was not ready after 0.5 s: connection refused by test"):
        server.wait_ready(0.5)
    server.stop(timeout=0.1)  # it ignores SIGTERM
    assert not server.alive()


def test_a_program_that_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no-such-server is not installed.*mindstream-cli\[local\]"):
        module.program("no-such-server")
    server = Server(name="x", argv=[str(tmp_path / "x")], ready=lambda: True, log=tmp_path / "l", folder=tmp_path / "f")
    with pytest.raises(ServerFailed, match="x cannot be started"):
        server.start()
    assert not server.alive()


def test_ports_that_are_fixed_taken_or_unknown(tmp_path: Path) -> None:
    chosen = choose_ports({}, {})
    assert len(set(chosen.values())) == len(chosen)
    assert all(free(chosen[name] + 10000) for name in module.WEED_PORTS)
    assert choose_ports(chosen, {}) == chosen
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", chosen["s3"] + 10000))
        taken.listen()
        assert choose_ports(chosen, {})["s3"] != chosen["s3"]
        with pytest.raises(ConfigError, match=f"port {chosen['s3']} .*for s3 is taken"):
            choose_ports({}, {"s3": chosen["s3"]})
    with pytest.raises(ConfigError, match="unknown ports"):
        local_servers(tmp_path, s4=1)


@pytest.mark.parametrize("content", ["", "{}", '{"ports": {"nats": "x"}}', json.dumps({"unknown": 1})])
def test_a_damaged_servers_file_says_what_to_do(tmp_path: Path, content: str) -> None:
    (tmp_path / "servers.json").write_text(content)
    with pytest.raises(ConfigError, match=r"servers.json cannot be read.*Delete the file"):
        settings(tmp_path)


def test_settings_of_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mindstream up"):
        settings(tmp_path)


def test_start_all_stops_the_others_when_one_fails(tmp_path: Path) -> None:
    good, bad = (
        Server(
            name=name,
            argv=[sys.executable, "-c", f"import time; time.sleep({seconds})"],
            ready=lambda: True,
            log=tmp_path / name,
            folder=tmp_path / f"{name}.d",
        )
        for name, seconds in (("good", 60), ("bad", 0))
    )
    bad.ready = lambda: False
    with pytest.raises(ServerFailed, match="bad ended"):
        start_all([good, bad])
    assert not good.alive()
    assert good.process is not None
    assert not psutil.pid_exists(good.process.pid) or os.name != "posix"
