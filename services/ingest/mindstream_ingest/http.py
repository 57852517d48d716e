"""``POST /v1/documents``: text over HTTP. 202 means: the bytes are in the store and their event is on the bus."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import io
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import orjson
from mindstream_common import logs
from mindstream_common.errors import ConfigError, InputError, MindStreamError, Transient
from mindstream_common.events import Domain, SourceFile
from mindstream_common.ids import sha256_bytes
from mindstream_common.store import Store
from prometheus_client import Counter
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mindstream_ingest import encoding, mapping
from mindstream_ingest.body import Body, Refused, Room
from mindstream_ingest.config import HttpConfig, IngestConfig
from mindstream_ingest.fields import Fields
from mindstream_ingest.gather import Gatherer

POSTS = Counter("mindstream_http_posts_total", "Posts to /v1/documents by the status of their answer", ["status"])
KINDS = {
    "application/json": "json", "application/jsonl": "jsonl", "application/x-jsonlines": "jsonl",
    "application/x-ndjson": "jsonl", "text/plain": "txt", "text/html": "html", "text/markdown": "md",
}  # fmt: skip
KEY_LENGTH = 255
RETRY_AFTER = {503: {"Retry-After": "5"}, 401: {"WWW-Authenticate": "Bearer"}, 408: {"Connection": "close"}}


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: the same for the same post, whenever it is sent."""

    id: str  # sha256 of the body
    domain: str
    bytes: int


@dataclass(frozen=True, slots=True)
class _Post:
    """What a request asks for. ``kind`` is the ending that its file gets."""

    domain: str
    kind: str
    fields: tuple[str, ...]
    template: str
    key: str
    data: bytes

    name = ""  # for encoding.detect

    def open(self) -> io.BufferedReader:
        """The body, as a file."""
        return io.BufferedReader(io.BytesIO(self.data))


class Documents:
    """The endpoint."""

    def __init__(self, config: IngestConfig, http: HttpConfig, token: str, store: Store, gatherer: Gatherer) -> None:
        self._config = config
        self._http = http
        self._token = hashlib.sha256(token.encode()).digest() if token else b""
        self._store = store
        self._gatherer = gatherer
        self._room = Room(http.waiting_bytes)
        self._checking = asyncio.Semaphore(1)  # parsed JSON may take twenty times its bytes
        self._limit = min(http.body_bytes, config.record_bytes)
        self._log = logs.get()

    def app(self) -> Starlette:
        """The ASGI application."""
        for status in (202, 400, 401, 408, 409, 413, 415, 422, 503):
            POSTS.labels(str(status))
        return Starlette(routes=[Route("/v1/documents", self._counted, methods=["POST"])])

    async def _counted(self, request: Request) -> Response:
        response = await self._answered(request, self._post)
        POSTS.labels(str(response.status_code)).inc()
        return response

    async def _answered(self, request: Request, call: Callable[[Request], Awaitable[Accepted]]) -> Response:
        """Every outcome as JSON with its status."""
        try:
            return JSONResponse(msgspec.to_builtins(await call(request)), 202)
        except Refused as error:
            status, reason = error.status, str(error)
        except Transient as error:
            status, reason = 503, "not now: the queue is full, or the bus or the store is away. Send it again later"
            self._log.warning("a post was turned away", error=str(error))
        except ClientDisconnect:
            status, reason = 400, "the client went away"
        except MindStreamError as error:
            status, reason = 503, "the service cannot store anything now; its log says why"
            self._log.error("a post could not be stored", error=str(error))
        return JSONResponse({"error": reason}, status, RETRY_AFTER.get(status))

    async def _post(self, request: Request) -> Accepted:
        self._authorize(request)
        declared = request.headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > self._limit:
            raise Refused(413, f"the body has {declared} bytes; {self._limit} are allowed (ingest.http.body_bytes)")
        with Body(self._room, self._limit, request.headers.get("content-encoding", "").strip().lower()) as body:
            try:
                async with asyncio.timeout(self._http.seconds):
                    data = await body.read(request.stream())
            except TimeoutError:
                raise Refused(408, f"the body did not come within {self._http.seconds:g} s") from None
            post = _parse(request, data)
            async with self._checking:
                await asyncio.to_thread(self._check, post)
            return await self._keep(post)

    def _authorize(self, request: Request) -> None:
        """Compared by hashes of equal length, in constant time."""
        if self._token:
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            right = hmac.compare_digest(hashlib.sha256(given.strip().encode()).digest(), self._token)
            if scheme.lower() != "bearer" or not right:
                raise Refused(401, "Authorization: Bearer TOKEN is missing or wrong")

    def _check(self, post: _Post) -> None:
        """What would become a dead letter later is refused now."""
        if not post.data.strip():
            raise Refused(400, "the body is empty")
        try:
            fields = Fields.of(post.fields, post.template, self._config.text_fields)
            if encoding.detect(post) not in ("utf-8", "utf-8-sig"):
                raise Refused(400, "the body is not UTF-8")
        except (ConfigError, InputError) as error:
            raise Refused(400, str(error).removeprefix(": ")) from error
        if post.kind == "json":
            _check_json(post.data, fields)

    async def _keep(self, post: _Post) -> Accepted:
        sha256 = sha256_bytes(post.data)
        if post.key:
            await asyncio.to_thread(self._remember, post, sha256)
        key = f"files/{post.domain}/{sha256}.{post.kind}"
        object = await asyncio.to_thread(self._store.put_bytes, key, post.data)
        file = SourceFile(name=f"http/{sha256[:16]}.{post.kind}", text_fields=post.fields, template=post.template)
        await self._gatherer.add(post.domain, file, object)
        return Accepted(id=sha256, domain=post.domain, bytes=len(post.data))

    def _remember(self, post: _Post, sha256: str) -> None:
        """The first post with an Idempotency-Key decides what the key stands for, over all processes and crashes."""
        what = [post.domain, post.kind, *post.fields, post.template, sha256]
        fingerprint = hashlib.sha256("\0".join(what).encode()).hexdigest().encode()
        place = f"http/keys/{hashlib.sha256(post.key.encode()).hexdigest()}"
        if not self._store.put_if_absent(place, fingerprint) and self._store.get_bytes(place) != fingerprint:
            raise Refused(409, "this Idempotency-Key was used for another post: use a new one")


def _parse(request: Request, data: bytes) -> _Post:
    media, _, parameters = request.headers.get("content-type", "").partition(";")
    kind = KINDS.get(media.strip().lower())
    if kind is None:
        raise Refused(415, f"Content-Type {media or 'none'} is not read; these are: {', '.join(KINDS)}")
    charset = parameters.lower().partition("charset=")[2].strip(" \"'")
    if charset not in ("", "utf-8", "utf8", "us-ascii"):
        raise Refused(415, f"charset {charset} is not read: send UTF-8")
    try:
        domain = msgspec.convert(request.query_params.get("domain", ""), Domain)
    except msgspec.ValidationError:
        raise Refused(400, "?domain= is a short name of a-z, 0-9, - and _, such as finance or medical-qa") from None
    key = request.headers.get("idempotency-key", "")
    if len(key) > KEY_LENGTH:
        raise Refused(400, f"Idempotency-Key has {len(key)} characters; {KEY_LENGTH} are allowed")
    fields = tuple(request.query_params.getlist("text_field"))
    template = request.query_params.get("template", "")
    if fields and template:
        raise Refused(400, "text_field and template are two ways to say the same: give one of them")
    try:
        mapping.check(fields, template)
    except ConfigError as error:
        raise Refused(400, str(error)) from error
    return _Post(domain, kind, fields, template, key, data)


def _check_json(data: bytes, fields: Fields) -> None:
    try:
        value = orjson.loads(data.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"the body is not JSON: {error}") from error
    if isinstance(value, dict):
        record = fields.record(value, b"", "", 0)
        if record.reason:
            raise Refused(422, record.detail)
    elif not (isinstance(value, list) and all(isinstance(item, dict) for item in value)):
        raise Refused(422, "the body is neither an object nor an array of objects")
