"""The process in which a stage's work runs, so that the service's event loop stays free for heartbeats.

It does everything that touches the object store, in the order that makes every step repeatable:
look for manifests → download and verify → work → write objects → write manifest. Publishing and acking are the parent's.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mindstream_common import events, logs, manifests
from mindstream_common.claims import ValkeyClaims
from mindstream_common.errors import ConfigError, MindStreamError, Poison, Transient
from mindstream_common.events import Event, Object, StageEvent
from mindstream_common.ids import shard_id
from mindstream_common.manifests import DeadFile, Manifest
from mindstream_common.process import die_with_parent
from mindstream_common.settings import Settings
from mindstream_common.stage import Claims, Counts, Declaration, Drop, Holder, Product, Stage, Work
from mindstream_common.store import S3Store, Store
from mindstream_common.topology import drops_key, manifest_key, shard_key

Factory = Callable[[], Stage[Any]]


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The stage is built."""


class Stored(msgspec.Struct, frozen=True, tag="stored"):
    """A part is in the store; ``repeated`` when an earlier delivery had put it there."""

    manifest: Manifest
    repeated: bool


class Done(msgspec.Struct, frozen=True, tag="done"):
    """All parts are stored."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The work did not succeed: try the same again soon, dead letter now, or count an attempt."""

    kind: Literal["transient", "poison", "failed", "config"]
    error: str


Message = Ready | Stored | Done | Failed
_decoder = msgspec.json.Decoder(Message)


class Died(Exception):
    """The process ended in the middle of its work."""


class Worker:
    """The parent's side: start the process, give it an event, read what it says."""

    def __init__(
        self, declaration: Declaration, factory: Factory, settings: Settings, namespace: str, scratch: Path
    ) -> None:
        self._arguments = (declaration, factory, settings, namespace, scratch)
        self._name = declaration.name
        self._process: Any = None
        self._connection: Connection | None = None
        self._reaping = threading.Lock()

    def start(self) -> None:
        """Start the process (or a new one, after the last has died). Call it from the main thread."""
        self.kill()
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(
            target=main, args=(theirs, *self._arguments), name=f"{self._name}-worker", daemon=True
        )
        self._process.start()
        theirs.close()
        self._connection = ours

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.is_alive()

    @property
    def pid(self) -> int:
        """The process's id."""
        return int(self._process.pid)

    def send(self, event: Event) -> None:
        """Hand over an event. Raises :class:`Died`."""
        try:
            self._open().send_bytes(events.encode(event))
        except OSError as error:
            raise Died(self._ending()) from error

    def receive(self) -> Message:
        """The next thing that the process says; blocks. Raises :class:`Died`."""
        try:
            return _decoder.decode(self._open().recv_bytes())
        except (EOFError, OSError) as error:
            raise Died(self._ending()) from error

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            with self._reaping:
                self._process.join()
                self._process.close()
                self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> Connection:
        if self._connection is None:
            raise Died("the work's process was ended")
        return self._connection

    def _ending(self) -> str:
        with self._reaping:  # receive() runs in a thread, kill() in another
            if self._process is None:
                return "the work's process was ended"
            self._process.join(1.0)
            code = self._process.exitcode
        if code is not None and code < 0:
            return f"the work's process was ended by signal {-code} ({signal.Signals(-code).name})"
        return f"the work's process ended with exit code {code}"


def main(
    connection: Connection,
    declaration: Declaration,
    factory: Factory,
    settings: Settings,
    namespace: str,
    scratch: Path,
) -> None:
    """What runs in the process."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logs.configure(service=declaration.name)

    def say(message: Message) -> None:
        connection.send_bytes(msgspec.json.encode(message))

    with contextlib.ExitStack() as stack:
        try:
            stage = factory()
            store = S3Store.from_settings(settings)
            claims: Claims | None = None
            if declaration.claims:
                claims = stack.enter_context(contextlib.closing(ValkeyClaims(settings.valkey_url, namespace)))
        except Exception as error:
            say(Failed(kind=_kind(error), error=_words(error)))
            return
        say(Ready())
        workshop = Workshop(declaration, stage, store, claims, scratch)
        while True:
            try:
                data = connection.recv_bytes()
            except (EOFError, OSError):
                return
            try:
                for stored in workshop.work(events.decode(data)):
                    say(stored)
                say(Done())
            except Exception as error:
                say(Failed(kind=_kind(error), error=_words(error)))


def _kind(error: Exception) -> Literal["transient", "poison", "failed", "config"]:
    if isinstance(error, Transient):
        return "transient"
    if isinstance(error, Poison):
        return "poison"
    return "config" if isinstance(error, ConfigError) else "failed"


def _words(error: Exception) -> str:
    if isinstance(error, MindStreamError):
        return str(error)
    return "".join(traceback.format_exception(error))[-8000:]


class Workshop:
    """From an event to stored shards: everything of the order of effects that is not the bus's."""

    def __init__(
        self, declaration: Declaration, stage: Stage[Any], store: Store, claims: Claims | None, scratch: Path
    ) -> None:
        self._declaration = declaration
        self._stage = stage
        self._store = store
        self._claims = claims or NoClaims()
        self._scratch = scratch

    def work(self, event: StageEvent) -> Iterator[Stored]:
        """Yield each part as soon as its manifest is stored."""
        if not isinstance(event, self._declaration.takes):
            raise Poison(
                f"{self._declaration.name} takes {self._declaration.takes.__name__}, this is a {type(event).__name__}"
            )
        known = list(manifests.parts(self._store, self._declaration.name, self._declaration.makes, event))
        for manifest in known:
            yield Stored(manifest, repeated=True)
        if not (known and known[-1].last):
            yield from self._make(event, tuple(manifest.counts for manifest in known))
        if isinstance(self._claims, ValkeyClaims):
            self._claims.settle(event.id)

    def _make(self, event: StageEvent, known: tuple[Counts, ...]) -> Iterator[Stored]:
        shutil.rmtree(self._scratch, ignore_errors=True)
        inputs, outputs = self._scratch / "in", self._scratch / "out"
        inputs.mkdir(parents=True)
        outputs.mkdir()
        paths = []
        for number, object in enumerate(event.objects):
            path = inputs / f"{number}{''.join(Path(object.key).suffixes[-2:])}"
            self._store.get_file(object, path)
            paths.append(path)
        work = Work(event=event, files=tuple(paths), folder=outputs, claims=self._claims, known=known)
        for part, product, last in _with_last(self._stage.run(work)):
            if part >= len(known):
                manifest, repeated = self._store_part(event, part, product, last)
                yield Stored(manifest, repeated=repeated)
            for path in product.files.values():
                path.unlink()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _store_part(self, event: StageEvent, part: int, product: Product, last: bool) -> tuple[Manifest, bool]:
        declaration, configuration = self._declaration, self._stage.configuration
        product.counts.check()
        id = shard_id(declaration.name, (event.id,), configuration, part)
        name = manifests.slot(declaration.name, event.id, part)
        if found := manifests.find(self._store, declaration.makes, event.domain, name):
            return found, True  # somebody was faster while this worked
        objects = tuple(
            self._store.put_file(shard_key(declaration.makes, event.domain, id, suffix), path)
            for suffix, path in product.files.items()
        )
        made = cast(Any, declaration.makes)(
            id=id,
            domain=event.domain,
            objects=objects,
            created=time.time(),
            root=getattr(event, "root", id),
            parents=(event.id,),
            documents=product.counts.documents_out,
            **product.fields,
        )
        manifest = Manifest(
            stage=declaration.name,
            input=event.id,
            part=part,
            last=last,
            event=made,
            counts=product.counts,
            configuration=configuration,
            drops=self._store_drops(event.domain, id, product.drops),
            dead=tuple(DeadFile(bundle=bundle, error=error) for bundle, error in product.dead),
        )
        if self._store.put_if_absent(manifest_key(declaration.makes, event.domain, name), manifests.encode(manifest)):
            return manifest, False
        winner = manifests.find(self._store, declaration.makes, event.domain, name)
        assert winner is not None, f"manifest {name} was there and is gone"
        return winner, True

    def _store_drops(self, domain: str, id: str, drops: Iterable[Drop]) -> Object | None:
        rows = [msgspec.to_builtins(drop) for drop in drops]
        if not rows:
            return None
        path = self._scratch / "drops.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path, compression="zstd")
        return self._store.put_file(drops_key(self._declaration.makes, domain, id), path)


class NoClaims:
    """For stages that said they claim nothing."""

    def claim(self, batch: str, keys: Any, owners: Any) -> list[str]:
        """A stage that claims must say so in its declaration."""
        raise AssertionError(f"{batch}: this stage's Declaration lacks claims=True")

    def claim_similar(self, batch: str, keys: Any, owners: Any, sketches: Any) -> list[Holder]:
        """The same."""
        raise AssertionError(f"{batch}: this stage's Declaration lacks claims=True")


def _with_last(products: Iterable[Product]) -> Iterator[tuple[int, Product, bool]]:
    iterator = iter(products)
    part, product = 0, next(iterator)
    for following in iterator:
        yield part, product, False
        part, product = part + 1, following
    yield part, product, True
