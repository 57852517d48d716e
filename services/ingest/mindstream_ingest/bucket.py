"""Objects under an S3 prefix: what is there, by ETag, and their bytes in a file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import urllib3
from mindstream_common.errors import ConfigError, InputError, Transient
from mindstream_common.settings import Settings
from mindstream_common.store import CHUNK, TIMEOUT
from minio import Minio
from minio.error import MinioException, S3Error

OURS = ("files/", "shards/", "drops/", "runs/", "sources/", "http/")  # what the services write: never a source


@dataclass(frozen=True, slots=True)
class Listed:
    """An object as the listing shows it."""

    key: str
    size: int
    etag: str


def split(place: str, own: str) -> tuple[str, str]:
    """``(bucket, prefix)`` of ``s3://bucket/prefix``, or of a prefix of our ``own`` bucket.

    Raises:
        ConfigError: it holds what the services themselves write.
    """
    bucket, prefix = own, place
    if place.startswith("s3://"):
        bucket, _, prefix = place.removeprefix("s3://").partition("/")
    if bucket == own and any(prefix.startswith(ours) or ours.startswith(prefix) for ours in OURS):
        raise ConfigError(
            f"ingest.sources: s3 {place!r} holds what the services themselves write ({', '.join(OURS)}): name another prefix."
        )
    return bucket, prefix


class Bucket:
    """A prefix of a bucket. Nothing is ever written there."""

    def __init__(self, settings: Settings, place: str) -> None:
        """``place``: see :func:`split`."""
        self.bucket, self.prefix = split(place, settings.s3_bucket)
        url = urlsplit(settings.s3_endpoint)
        self._client = Minio(
            url.netloc,
            settings.s3_access_key,
            settings.s3_secret_key,
            secure=url.scheme == "https",
            region=settings.s3_region,
            http_client=urllib3.PoolManager(timeout=TIMEOUT, retries=False, maxsize=4),
        )

    def list(self) -> Iterator[Listed]:
        """Every object under the prefix, in the order of keys.

        Raises:
            Transient: the store is away. ConfigError: the bucket does not exist, or the key is refused.
        """
        with self._errors():
            for entry in self._client.list_objects(self.bucket, self.prefix, recursive=True):
                if not entry.is_dir and not entry.object_name.endswith("/"):
                    yield Listed(entry.object_name, entry.size or 0, (entry.etag or "").strip('"'))

    def fetch(self, listed: Listed, path: Path) -> None:
        """Download to ``path``.

        Raises:
            InputError: it is gone, or is another one by now.
        """
        with self._errors():
            try:
                response = self._client.get_object(self.bucket, listed.key)
            except S3Error as error:
                if error.code == "NoSuchKey":
                    raise InputError(f"s3://{self.bucket}/{listed.key} is gone.") from error
                raise
            try:
                with path.open("wb") as file:
                    for chunk in response.stream(CHUNK):
                        file.write(chunk)
            finally:
                response.close()
                response.release_conn()
            etag = response.headers.get("ETag", "").strip('"')
        if path.stat().st_size != listed.size or etag not in ("", listed.etag):
            raise InputError(f"s3://{self.bucket}/{listed.key} changed while it was read.")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        where = f"s3://{self.bucket}/{self.prefix}"
        try:
            yield
        except S3Error as error:
            if error.response.status in (401, 403, 404):
                raise ConfigError(
                    f"{where}: {error.code} {error.message}. Check ingest.sources and the key."
                ) from error
            raise Transient(f"{where}: {error.code} {error.message}") from error
        except (MinioException, urllib3.exceptions.HTTPError, OSError) as error:
            raise Transient(f"{where}: the object store does not answer: {error}") from error
