"""Dedup claims: which document was the first with a text, or with one much like it, over all workers and for all time.

A claim is a 16-byte hash and its owner, a document's id; a document that is to be compared brings a sketch
(:mod:`mindstream_common.signatures`). Documents are answered in the order of their rows:

1. the hash is held: by the same owner → kept, as before; by another → an exact duplicate of that one;
2. a kept document of another owner shares a band and its signature is similar → a near duplicate of that one. It holds
   nothing from then on, so there are no chains: the reason for a drop is always a document that was kept;
3. else it is kept: it holds its hash and its signature, and stands in its bands (at most four documents in each).

A batch is answered by one atomic function call in Valkey (``claims.lua``), never by a pipeline of ``SET key owner NX
GET``. For exact hashes the pipeline would do. For near duplicates it cannot: a document is compared by several bands,
and between the calls of one document another one can take some of them, so that a third, still undecided one hides one
of two similar documents from the other and both survive. A randomised test found such pairs by the hundred; with one
call per batch it finds none.

**Asking again.** The answers to a batch are kept for seven days under its name and the hash of its content. A batch
that is delivered again gets the answers that it got before, whatever happened in between, so the same input gives the
same output bytes. When they are gone, or the content changed, a hash that the same owner holds is still answered "".

**Giving back.** A scope is the part of a batch's name before the first ``/``: the shard whose documents are claimed.
What a scope takes is remembered until :meth:`~ScopedClaims.settle`, which is called when the shard's manifest is
stored: from then on its claims stand for ever. A shard that ends in the dead letters is released instead: exactly the
hashes that it took and still holds become free, with their signatures and their places in bands, and its answers are
forgotten, so that a retry asks afresh. Documents of other shards that were dropped in between name the dead shard's
documents in ``duplicate_of``; the drop ledger has their text. Both calls can be repeated, and either may come without
the other.

**Memory.** Claims have no expiry (30 bytes more per key and twice the CPU): start a new namespace instead, by
``pipeline.generation``. A namespace (:func:`namespace`) is the pipeline and everything whose change would end all
matches: normalisation, hash, versions. Every key begins with its hash tag, so one namespace lives on one node of a
cluster. ``python -m mindstream_common.forget`` lists namespaces and deletes one.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import valkey
from valkey import exceptions as errors
from valkey.backoff import NoBackoff
from valkey.cluster import ValkeyCluster
from valkey.retry import Retry

from mindstream_common.errors import ConfigError, Transient
from mindstream_common.signatures import Sketches, similarity
from mindstream_common.stage import Claims, Declaration, Holder

KEY_BYTES = 16
BAND_OWNERS = 4
ANSWERS_KEPT = 7 * 24 * 3600  # seconds
NONE = Sketches(threshold=1.0, bands=0, of=())
LIBRARY = Path(__file__).with_name("claims.lua")
# What a server says while it starts, fails over, has no memory or no disk: the same call may succeed later.
LATER = (errors.OutOfMemoryError, errors.ReadOnlyError, errors.ClusterDownError, errors.TryAgainError)
LATER_WORDS = ("OOM", "READONLY", "MISCONF", "NOREPLICAS", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN")


class ScopedClaims(Claims, Protocol):
    """What a stage asks, and what the runner says about it afterwards."""

    def settle(self, scope: str) -> None:
        """The shard is stored: its claims stand. Nothing happens when it is unknown or was settled before."""
        ...

    def release(self, scope: str) -> int:
        """The shard is dead: give back the claims that it took and still holds. Returns how many; 0 after settle."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class ValkeyClaims:
    """Claims in Valkey (or anything that speaks its protocol and has functions).

    Every method may raise ``Transient`` (no connection, time-out, starting, out of memory) and ``ConfigError`` (wrong
    password, or a user without the right to call functions). Nothing is connected before the first call.
    """

    def __init__(self, url: str, namespace: str) -> None:
        """``url`` is ``valkey://[user][:password]@host:port/db``. Raises ConfigError when it is something else."""
        self._tag, self.namespace = tag(namespace), namespace
        self._url = url
        # A connection that broke, say by a restart of the server, is made anew at once: calls can be repeated.
        self._options = {"socket_timeout": 30, "socket_connect_timeout": 10, "retry": Retry(NoBackoff(), 1)}
        self._client: Any
        try:
            self._client = valkey.Valkey.from_url(url, **self._options)
        except ValueError as error:
            raise ConfigError(f"MINDSTREAM_VALKEY_URL must be valkey://[:password@]host:port/0: {error}") from error
        options = self._client.connection_pool.connection_kwargs
        self._where = f"{options.get('host')}:{options.get('port')}"
        self._loaded = False

    def claim(self, batch: str, keys: Sequence[bytes], owners: Sequence[str]) -> list[str]:
        """See :meth:`mindstream_common.stage.Claims.claim`. Raises ValueError when keys and owners do not fit."""
        return [holder.owner for holder in self.claim_similar(batch, keys, owners, NONE)]

    def claim_similar(
        self, batch: str, keys: Sequence[bytes], owners: Sequence[str], sketches: Sketches
    ) -> list[Holder]:
        """See :meth:`mindstream_common.stage.Claims.claim_similar`. Raises ValueError when the arguments do not fit."""
        answers = answer_name(batch, keys, owners, sketches)
        arguments: list[str | bytes | int | float] = [scope_of(batch), answers, ANSWERS_KEPT]
        arguments += [sketches.threshold, sketches.bands]
        for key, owner, sketch in zip(keys, owners, sketches.of or [b""] * len(keys), strict=True):
            arguments += [owner, key + sketch]
        return [_holder(answer) for answer in self._call("claim", *arguments)]

    def settle(self, scope: str) -> None:
        self._call("settle", scope)

    def release(self, scope: str) -> int:
        return int(self._call("release", scope))

    def close(self) -> None:
        self._client.close()

    def _call(self, function: str, *arguments: str | bytes | int | float) -> Any:
        with self._errors():
            if not self._loaded:
                self._load()
            try:
                return self._client.fcall(f"mindstream_{function}_v2", 1, self._tag, *arguments)
            except errors.ResponseError as error:
                if "Function not found" not in str(error):
                    raise
            # Functions are kept on disk and in replicas; this server was emptied, or replaced by a new one.
            self._load()
            return self._client.fcall(f"mindstream_{function}_v2", 1, self._tag, *arguments)

    def _load(self) -> None:
        if not self._loaded and self._client.info("cluster").get("cluster_enabled"):
            self._client.close()
            self._client = ValkeyCluster.from_url(self._url, **self._options)
        self._client.function_load(LIBRARY.read_text(encoding="utf-8"), replace=True)
        if " " in self.namespace:
            self._client.set(f"{self._tag}:n", self.namespace)
        self._loaded = True

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (errors.AuthenticationError, errors.NoPermissionError) as error:
            raise ConfigError(
                f"Valkey at {self._where} refuses us: {error}. Set the user and password in MINDSTREAM_VALKEY_URL; "
                "the user needs FCALL, FUNCTION LOAD and the namespace's keys."
            ) from error
        except (errors.ConnectionError, errors.TimeoutError, errors.ValkeyClusterException) as error:
            raise Transient(f"Valkey at {self._where} does not answer: {error}") from error
        except errors.ValkeyError as error:
            message = str(error)
            if isinstance(error, LATER) or message.startswith(LATER_WORDS):
                raise Transient(f"Valkey at {self._where} cannot take claims now: {message}") from error
            raise


class MemoryClaims:
    """The same in dictionaries, for tests."""

    def __init__(self) -> None:
        self.owners: dict[bytes, str] = {}
        self._signatures: dict[bytes, bytes] = {}
        self._bands: dict[bytes, list[bytes]] = {}
        self._answers: dict[str, list[Holder]] = {}
        self._taken: dict[str, dict[bytes, tuple[str, list[bytes]]]] = {}
        self._asked: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def claim(self, batch: str, keys: Sequence[bytes], owners: Sequence[str]) -> list[str]:
        return [holder.owner for holder in self.claim_similar(batch, keys, owners, NONE)]

    def claim_similar(
        self, batch: str, keys: Sequence[bytes], owners: Sequence[str], sketches: Sketches
    ) -> list[Holder]:
        name, scope = answer_name(batch, keys, owners, sketches), scope_of(batch)
        with self._lock:
            if name not in self._answers:
                self._answers[name] = [
                    self._take(scope, *pair, sketches, row) for row, pair in enumerate(zip(keys, owners, strict=True))
                ]
                self._asked.setdefault(scope, set()).add(name)
            return list(self._answers[name])

    def _take(self, scope: str, key: bytes, owner: str, sketches: Sketches, row: int) -> Holder:
        if key in self.owners:
            return Holder() if self.owners[key] == owner else Holder(self.owners[key], exact=True, similarity=1.0)
        bands, signature = (sketches.bands_of(row), sketches.signature(row)) if sketches.of else ([], b"")
        if found := self._find(owner, bands, signature, sketches.threshold):
            return found
        self.owners[key] = owner
        self._taken.setdefault(scope, {})[key] = owner, bands
        if signature:
            self._signatures[key] = signature
        for band in bands:
            if len(self._bands.setdefault(band, [])) < BAND_OWNERS:
                self._bands[band].append(key)
        return Holder()

    def _find(self, owner: str, bands: list[bytes], signature: bytes, threshold: float) -> Holder | None:
        for other in (key for band in bands for key in self._bands.get(band, ())):
            if self.owners[other] != owner and (index := similarity(signature, self._signatures[other])) >= threshold:
                return Holder(self.owners[other], similarity=int(index * 10000) / 10000)
        return None

    def settle(self, scope: str) -> None:
        with self._lock:
            self._taken.pop(scope, None)
            self._asked.pop(scope, None)

    def release(self, scope: str) -> int:
        with self._lock:
            for name in self._asked.pop(scope, ()):
                del self._answers[name]
            taken = self._taken.pop(scope, {})
            held = [(key, bands) for key, (owner, bands) in taken.items() if self.owners.get(key) == owner]
            for key, bands in held:
                del self.owners[key]
                self._signatures.pop(key, None)
                for band in bands:
                    self._bands[band] = [other for other in self._bands[band] if other != key]
            return len(held)

    def close(self) -> None:
        pass


def tag(namespace: str) -> str:
    """The hash tag with which every key begins: the namespace, or 8 hex digits for one of several words, because every
    key repeats it. Raises ConfigError when it cannot be one."""
    if not namespace or set("{}") & set(namespace):
        raise ConfigError(f"the claims' namespace is {namespace!r}; it must not be empty or hold braces.")
    short = hashlib.sha256(namespace.encode()).hexdigest()[:8] if " " in namespace else namespace
    return "{" + short + "}"


def scope_of(batch: str) -> str:
    """The shard that a batch belongs to: ``<shard>/<first row>`` → ``<shard>``."""
    return batch.split("/", 1)[0]


def namespace(pipeline: str, generation: int, declaration: Declaration) -> str:
    """Where the claims of a stage lie, in words. Claims of another namespace are not seen: another algorithm
    (``Declaration.claims_version``) would match nothing, and a new generation is to forget."""
    if declaration.claims_version:
        return f"{pipeline} {declaration.name} {declaration.claims_version} generation {generation}"
    return f"{pipeline}.{generation}" if generation else pipeline


def answer_name(batch: str, keys: Sequence[bytes], owners: Sequence[str], sketches: Sketches) -> str:
    """``<batch>:<hash of its content>``. Raises ValueError when the content is not one owner (and one sketch, when
    there are any) per 16-byte key."""
    if len(keys) != len(owners) or (sketches.of and len(sketches.of) != len(keys)):
        raise ValueError(f"batch {batch}: {len(keys)} keys but {len(owners)} owners and {len(sketches.of)} sketches")
    digest = hashlib.sha256(f"{sketches.threshold} {sketches.bands} ".encode() if sketches.of else b"")
    for row, (key, owner) in enumerate(zip(keys, owners, strict=True)):
        if len(key) != KEY_BYTES or not owner or owner[0] == "\0":
            raise ValueError(f"batch {batch}, row {row}: key {key!r} has {len(key)} bytes of 16, owner is {owner!r}")
        name = owner.encode()
        digest.update(key + len(name).to_bytes(4, "big") + name)
        if sketches.of:
            sketches.signature(row)
            digest.update(len(sketches.of[row]).to_bytes(4, "big") + sketches.of[row])
    return f"{batch}:{digest.hexdigest()[:32]}"


def _holder(answer: bytes) -> Holder:
    """An answer of ``claims.lua``."""
    kind, rest = answer[:1], answer[1:]
    if kind == b"n":
        return Holder(rest[5:].decode(), similarity=int(rest[:5]) / 10000)
    return Holder(rest.decode(), exact=True, similarity=1.0) if kind == b"e" else Holder()
