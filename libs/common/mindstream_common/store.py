"""The object store: where every byte lies. Any S3 endpoint through the ``minio`` SDK, or memory in tests.

Calls are synchronous (they are made in worker processes) and safe from several threads. What can go wrong has four
names: :class:`NotFound` (nothing lies under the key), ``Transient`` (the store is away or overloaded), ``Poison``
(the bytes are not the ones that the event named) and ``ConfigError`` (a wrong key, bucket or address).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import urllib3
from minio import Minio
from minio.error import InvalidResponseError, S3Error, ServerError

from mindstream_common import settings
from mindstream_common.errors import ConfigError, MindStreamError, Poison, Transient
from mindstream_common.events import Object
from mindstream_common.ids import sha256_bytes, sha256_file

CHUNK = 1 << 20  # bytes read at a time
PART = 32 << 20  # bytes; a larger file is sent in parts of this size, one of which is in memory at a time
TIMEOUT = urllib3.Timeout(connect=60, read=60)  # seconds; `connect` also bounds each send of a body
# A connection that broke is tried once more at once: every request can be made twice. A refused one is not.
RETRIES = urllib3.Retry(
    total=1, connect=0, read=1, redirect=0, status=0, other=0, allowed_methods=None, respect_retry_after_header=False
)


class NotFound(MindStreamError):
    """Nothing lies under this key."""


class Store(Protocol):
    """Bytes under keys. An object that can be seen is whole."""

    def put_file(self, key: str, path: Path) -> Object:
        """Store a file's bytes, replacing what was there."""
        ...

    def put_bytes(self, key: str, data: bytes) -> Object:
        """Store bytes, replacing what was there."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Store bytes unless something lies under ``key``: of all callers at any time, exactly one gets True.

        A caller that was cut off (``Transient``) may have been the one: it gets False when it asks again.
        """
        ...

    def get_file(self, object: Object, path: Path) -> None:
        """Download to ``path``, which appears only when size and sha256 are the expected ones.

        Raises:
            NotFound: there is no such object.
            Poison: it holds other bytes than ``object`` says.
        """
        ...

    def get_bytes(self, key: str) -> bytes:
        """All bytes under ``key``. Raises NotFound."""
        ...

    def exists(self, key: str) -> bool:
        """Whether something lies under ``key``."""
        ...

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """``(key, size in bytes)`` of every key that begins with ``prefix``, however deep; in no certain order."""
        ...

    def delete(self, key: str) -> None:
        """Remove what lies under ``key``; nothing happens when nothing does."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class S3Store:
    """Objects in one bucket of an S3 endpoint. The bucket is made at the first call when it does not exist.

    Every method may also raise ``Transient`` (no connection, time-out, 5xx) and ``ConfigError`` (the key is refused).
    """

    def __init__(self, *, endpoint: str, access_key: str, secret_key: str, bucket: str, region: str) -> None:
        """``endpoint`` is ``http://host:port`` or ``https://host``. Raises ConfigError when it is something else."""
        url = urlsplit(endpoint)
        if url.scheme not in ("http", "https") or not url.netloc or url.path.strip("/") or url.query:
            raise ConfigError(
                f"MINDSTREAM_S3_ENDPOINT is {endpoint!r}; it must be http://host:port or https://host, without a path."
            )
        self.bucket = bucket
        self._who = f"key {access_key!r}, bucket {bucket!r}, endpoint {endpoint}"
        self._pool = urllib3.PoolManager(timeout=TIMEOUT, retries=RETRIES, maxsize=16)
        self._client = Minio(
            url.netloc,
            access_key,
            secret_key,
            secure=url.scheme == "https",
            region=region,
            http_client=self._pool,
        )
        self._bucket_lock = threading.Lock()
        self._bucket_seen = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> S3Store:
        """The store that the ``MINDSTREAM_S3_*`` variables name. Raises ConfigError when one is missing."""
        return cls.from_settings(settings.from_environment(environment))

    @classmethod
    def from_settings(cls, found: settings.Settings) -> S3Store:
        """The store that ``found`` names."""
        return cls(
            endpoint=found.s3_endpoint,
            access_key=found.s3_access_key,
            secret_key=found.s3_secret_key,
            bucket=found.s3_bucket,
            region=found.s3_region,
        )

    def put_file(self, key: str, path: Path) -> Object:
        with path.open("rb") as file:
            return self._put(key, file, Object(key=key, size=path.stat().st_size, sha256=sha256_file(path)))

    def put_bytes(self, key: str, data: bytes) -> Object:
        return self._put(key, io.BytesIO(data), describe(key, data))

    def _put(self, key: str, data: io.BufferedIOBase, object: Object) -> Object:
        with self._errors(f"writing {key}"):
            self._need_bucket()
            # One part at a time: the SDK's threads would hide the first error behind an aborted upload.
            self._client.put_object(self.bucket, key, data, object.size, part_size=PART, num_parallel_uploads=1)
        return object

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._errors(f"writing {key}"):
            self._need_bucket()
            url = self._client.get_presigned_url("PUT", self.bucket, key, expires=timedelta(minutes=15))
            # With its digest: SeaweedFS keeps what has come of a writer that was killed in the middle, even nothing at
            # all, and a truncated object would win for ever (19 of 20 kills left one; with the digest, none of 20).
            digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
            headers = {"If-None-Match": "*", "Content-MD5": digest}
            # Never repeated: the answer to the second request would be about the first one.
            response = self._pool.request("PUT", url, body=data, headers=headers, retries=False)
            if response.status in (200, 201, 204):
                return True
            if response.status == 412:
                return False
            raise self._answer(f"writing {key}", response.status, "", response.data[:300].decode("utf-8", "replace"))

    def get_file(self, object: Object, path: Path) -> None:
        with self._errors(f"reading {object.key}"), self._open(object.key) as response:
            receive(object, response.stream(CHUNK), path)

    def get_bytes(self, key: str) -> bytes:
        with self._errors(f"reading {key}"), self._open(key) as response:
            return bytes(response.read())

    @contextlib.contextmanager
    def _open(self, key: str) -> Iterator[urllib3.BaseHTTPResponse]:
        self._need_bucket()
        response: urllib3.BaseHTTPResponse = self._client.get_object(self.bucket, key)
        try:
            yield response
        except BaseException:
            response.close()  # half read: the connection cannot be used again
            raise
        finally:
            response.release_conn()

    def exists(self, key: str) -> bool:
        try:
            with self._errors(f"looking for {key}"):
                self._need_bucket()
                self._client.stat_object(self.bucket, key)
        except NotFound:
            return False
        return True

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        with self._errors(f"listing {prefix}"):
            self._need_bucket()
            for entry in self._client.list_objects(self.bucket, prefix, recursive=True):
                if not entry.is_dir:
                    yield entry.object_name, entry.size

    def delete(self, key: str) -> None:
        with self._errors(f"deleting {key}"), contextlib.suppress(NotFound):
            self._need_bucket()
            self._client.remove_object(self.bucket, key)

    def close(self) -> None:
        self._pool.clear()

    def _need_bucket(self) -> None:
        with self._bucket_lock:
            if self._bucket_seen:
                return
            try:
                if not self._client.bucket_exists(self.bucket):
                    self._client.make_bucket(self.bucket)
            except S3Error as error:
                if error.code not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                    raise
            except ValueError as error:
                raise ConfigError(f"MINDSTREAM_S3_BUCKET is {self.bucket!r}: {error}") from error
            self._bucket_seen = True

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """Say what the SDK and urllib3 raise in our own words."""
        try:
            yield
        except S3Error as error:
            raise self._answer(doing, error.response.status, error.code or "", error.message or "") from error
        except ServerError as error:
            raise self._answer(doing, error.status_code, "", str(error)) from error
        except (InvalidResponseError, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError) as error:
            raise Transient(f"{doing}: the object store does not answer ({self._who}): {error}") from error

    def _answer(self, doing: str, status: int, code: str, message: str) -> MindStreamError:
        """The error that an answer of the store means."""
        said = f"{doing}: the object store answered {status} {code} {message}".strip() + f" ({self._who})"
        if code == "NoSuchBucket":
            return ConfigError(
                f"{said}. The bucket was deleted while we used it: make it, or set MINDSTREAM_S3_BUCKET."
            )
        if code == "RequestTimeTooSkewed":
            return ConfigError(f"{said}. Set the clock of this machine.")
        if status in (401, 403):
            return ConfigError(
                f"{said}. Set MINDSTREAM_S3_ACCESS_KEY and MINDSTREAM_S3_SECRET_KEY to a key that may read, write "
                "and list this bucket."
            )
        if status == 404:
            return NotFound(said)
        # 409: two conditional writes at the same moment, and neither has won yet.
        if status >= 500 or status in (408, 409, 429):
            return Transient(said)
        return MindStreamError(said)


class MemoryStore:
    """The same in a dictionary, for tests."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put_file(self, key: str, path: Path) -> Object:
        return self.put_bytes(key, path.read_bytes())

    def put_bytes(self, key: str, data: bytes) -> Object:
        with self._lock:
            self.objects[key] = data
        return describe(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._lock:
            if key in self.objects:
                return False
            self.objects[key] = data
            return True

    def get_file(self, object: Object, path: Path) -> None:
        receive(object, [self.get_bytes(object.key)], path)

    def get_bytes(self, key: str) -> bytes:
        with self._lock:
            if key not in self.objects:
                raise NotFound(f"reading {key}: there is no such object in memory")
            return self.objects[key]

    def exists(self, key: str) -> bool:
        with self._lock:
            return key in self.objects

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        with self._lock:
            found = [(key, len(data)) for key, data in self.objects.items() if key.startswith(prefix)]
        yield from found

    def delete(self, key: str) -> None:
        with self._lock:
            self.objects.pop(key, None)

    def close(self) -> None:
        pass


def describe(key: str, data: bytes) -> Object:
    """The :class:`Object` of some bytes."""
    return Object(key=key, size=len(data), sha256=sha256_bytes(data))


def receive(object: Object, chunks: Iterable[bytes], path: Path) -> None:
    """Write ``chunks`` beside ``path``, check them, and only then give them the name ``path``.

    Raises:
        Poison: size or sha256 are not those of ``object``.
    """
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        digest, size = hashlib.sha256(), 0
        with os.fdopen(fd, "wb") as file:
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
        found = digest.hexdigest()
        if (size, found) != (object.size, object.sha256):
            raise Poison(
                f"{object.key} holds other bytes than the event says: expected {object.size} bytes with sha256 "
                f"{object.sha256}, found {size} bytes with sha256 {found}. Someone wrote over it, or it is damaged."
            )
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
