"""Choose how the content of a response is shown (RFC 9110 12), and know whether a client has it.

A response is compressed if the client names gzip and wants it at least as much as the plain bytes
(12.5.3). All clients of a view that accept gzip share the deflated bytes. Browsers all accept it,
so they get it by default, unless they have a dictionary (`gateway.web.streams.responses`). A route
with `compression: none` opts out, for content whose length must not reveal it (BREACH), or for
proxies that hold compressed responses back.

Whoever wrote the value of a record chose its media type, which may be HTML or SVG. A browser must
neither guess another type nor run what the value contains, since it would run on the gateway's
origin, with the cookies of other clients: `SAFE_HEADERS` forbid both.

A `StaticDocument`, which keeps its URL while its content changes, is held in memory as a whole,
also compressed. Browsers revalidate every use of a copy, and mostly get 304 (RFC 9110 15.4.5). gzip
takes the JavaScript module from 40 to 12 kB, brotli would take it to 11: not worth a dependency.

The entity tag of a record says which one is shown, and how. Offsets are not used twice in a topic,
so equal tags mean equal bytes: they are strong tags (RFC 9110 8.8.1). The same record shown with
other fields or in another format is another representation and has another tag. Conditions of
writes compare the record alone.
"""

from __future__ import annotations

import asyncio
import gzip as stdlib_gzip
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import NamedTuple, Self

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from gateway.client_memory import ClientMemory, HeldPart
from gateway.config import Route, Topic
from gateway.core.caches import cache_short
from gateway.core.log.record import Record
from gateway.errors import MemoryFull
from gateway.hub.reads.view import View
from gateway.hub.wires.wire import Wire
from gateway.hub.wires.wrapping import GzipWire
from gateway.wire import gzip

from .query import MAX_WAIT_S

# One list member. A comma inside a quoted string does not end it; the quote that closes may be
# missing, so that a malformed header is still split and not dropped.
_RANGE_PATTERN = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')
_WEIGHT_PATTERN = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")  # RFC 9110 12.4.2


class MediaPreference(NamedTuple):
    """How much a client wants a media type. The larger of two preferences wins.

    `specificity` is 2 for a type in full, 1 for `type/*`, 0 for `*/*`. It breaks the tie between
    equal weights, since tuples compare from the left.
    """

    quality: float
    specificity: int


NOT_ACCEPTABLE = MediaPreference(0.0, 0)


def get_media_preference(header: str, media_type: str) -> MediaPreference:
    """Return how much a client wants a media type, by the most specific range that matches it.

    An empty `Accept` accepts everything (RFC 9110 12.5.1).
    """
    kind = media_type.partition("/")[0]
    specificities = {media_type: 2, f"{kind}/*": 1, "*/*": 0}
    matching = [
        (specificities[name], weight)
        for name, weight in iter_ranges(header or "*/*")
        if name in specificities
    ]
    specificity, quality = max(matching, default=(0, 0.0))
    return MediaPreference(quality, specificity) if quality else NOT_ACCEPTABLE


def iter_ranges(header: str) -> Iterator[tuple[str, float]]:
    """Yield the ranges of `Accept`, or a header of its syntax, in lower case with their weights.

    Weights are from 0 to 1 (RFC 9110 12.4.2).
    A range with a malformed weight is skipped.
    """
    for part in _RANGE_PATTERN.findall(header.lower()):
        name, *parameters = (field.strip() for field in part.split(";"))
        weight = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        if _WEIGHT_PATTERN.fullmatch(weight):
            yield name, float(weight)


SAFE_HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
}
JSON_MEDIA_TYPE = "application/json"

_TOKEN_PATTERN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # RFC 9110 5.6.2
# Parameters may hold any printable ASCII character, but no line break: the text becomes a header.
_MEDIA_TYPE_PATTERN = re.compile(rf"{_TOKEN_PATTERN}/{_TOKEN_PATTERN}[ \t]*(;[\x20-\x7e]*)?")
_JSON_PATTERN = re.compile(r"[^/;]+/([^;]+\+)?json[ \t]*(;|$)", re.IGNORECASE)
_MEDIA_TYPES_BY_MODEL = {"json": JSON_MEDIA_TYPE, "string": "text/plain; charset=utf-8"}


def get_media_type(headers: Iterable[tuple[str, bytes | None]], topic: Topic) -> str:
    """Return the media type of a record's value.

    The record's `content-type` decides, if it is well-formed; of a value that was decoded, only if
    it is one of JSON. Otherwise the value model of the topic decides.
    """
    for name, content in headers:
        if name.lower() == "content-type" and content:
            media_type = content.decode("latin-1").strip()
            if _MEDIA_TYPE_PATTERN.fullmatch(media_type) and (
                not topic.value.is_decoded or _JSON_PATTERN.match(media_type)
            ):
                return media_type
    # Decoded values, such as Avro, are shown as JSON.
    if topic.value.is_decoded:
        return JSON_MEDIA_TYPE
    return _MEDIA_TYPES_BY_MODEL.get(topic.value.model, "application/octet-stream")


MAX_LOOP_BYTES = 32 * 1024  # larger bodies are compressed outside the event loop
_compressor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gzip")

GZIP_HEADERS = {"Content-Encoding": "gzip"}


def negotiate_wire(
    wire: Wire, route: Route, request: HTTPConnection
) -> tuple[Wire, dict[str, str]]:
    """Return the wire of a stream, compressed or not, and the response headers that name it."""
    return (_create_gzip_wire(wire), GZIP_HEADERS) if _should_gzip(route, request) else (wire, {})


async def negotiate_body(
    body: bytes, route: Route, request: HTTPConnection, client_memory: ClientMemory
) -> tuple[bytes, dict[str, str]]:
    """Return a complete body, compressed or not, and the response headers that name its coding.

    A large body is compressed in a thread, one after the other: a megabyte takes 15 ms, in which
    the event loop would stand still. If too many wait for that already, it is sent plain.
    """
    if len(body) < gzip.MIN_COMPRESS_BYTES or not _should_gzip(route, request):
        return body, {}
    if len(body) <= MAX_LOOP_BYTES:
        return gzip.compress(body), GZIP_HEADERS
    loop = asyncio.get_running_loop()
    try:
        with client_memory.reserve(HeldPart.RESPONSES, len(body)):
            return await loop.run_in_executor(_compressor, gzip.compress, body), GZIP_HEADERS
    except MemoryFull:
        return body, {}


def get_accept_encoding(request: HTTPConnection) -> str:
    """Return `Accept-Encoding` as one value, also if it was sent as several fields."""
    return ",".join(request.headers.getlist("accept-encoding"))


@lru_cache(64)  # channels are looked up by their wire, and the same object is found fastest
def _create_gzip_wire(wire: Wire) -> GzipWire:
    return GzipWire(wire)


@cache_short(256)
def prefers_gzip(header: str) -> bool:
    """Return whether gzip is named, and weighs at least as much as the plain bytes."""
    return _prefers(header, "gzip", "x-gzip")


@cache_short(256)
def prefers_dcz(header: str) -> bool:
    """Return whether `dcz` is named, and weighs at least as much as the plain bytes (RFC 9842)."""
    return _prefers(header, "dcz")


def _prefers(header: str, *codings: str) -> bool:
    """Return whether one of the names of a coding weighs at least as much as the plain bytes.

    The plain bytes weigh what the header says of `identity`, else of `*`, else 0. A client that
    accepts neither gets the plain bytes.
    """
    # Of a coding that is named twice the first weight counts: dict() keeps the last one.
    weights = dict(reversed(list(iter_ranges(header))))
    weight = max(weights.get(coding, 0.0) for coding in codings)
    return weight > 0 and weight >= weights.get("identity", weights.get("*", 0.0))


def _should_gzip(route: Route, request: HTTPConnection) -> bool:
    if route.stream.compression == "none":
        return False
    return prefers_gzip(get_accept_encoding(request))


_SECONDS_PATTERN = re.compile(r"[0-9]{1,9}")


class Preferences(NamedTuple):
    """The preferences of a request that the gateway honours (RFC 7240 4.1, 4.3)."""

    respond_async: bool = False
    wait_s: float | None = None


def parse_preferences(request: Request) -> Preferences:
    """Return the preferences of a request. Unknown and malformed ones are ignored (RFC 7240 2).

    Preferences are separated by commas or, as zilla's clients write them, by semicolons.
    """
    values: dict[str, str] = {}
    for part in re.split("[,;]", ",".join(request.headers.getlist("prefer"))):
        name, _, value = part.partition("=")
        # Of a preference that is there twice the first one counts (RFC 7240 2).
        values.setdefault(name.strip().lower(), value.strip().strip('"'))
    wait = values.get("wait", "")
    seconds = min(float(wait), MAX_WAIT_S) if _SECONDS_PATTERN.fullmatch(wait) else None
    return Preferences("respond-async" in values, seconds)


IMMUTABLE_HEADERS = {"Cache-Control": "public, max-age=31536000, immutable"}
"""For a URL whose content never changes (RFC 8246)."""


class StaticDocument:
    """One version of a document, with its headers prepared. It never changes."""

    def __init__(
        self, content: bytes, media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        digest = sha256(content).hexdigest()[:32]
        # JSON is always UTF-8, and its media type has no charset parameter (RFC 8259 8.1, 11).
        charset = "" if media_type == "application/json" else "; charset=utf-8"
        self._content = content
        # A strong tag is of one representation: that in gzip has another one (RFC 9110 8.8.3.3).
        self._etag, self._gzip_etag = f'"{digest}"', f'"{digest}-gzip"'
        self._is_compressible = len(content) >= gzip.MIN_COMPRESS_BYTES
        # `no-cache` lets a browser keep the copy, but not use it without asking (RFC 9111 5.2.2.4).
        self._validation_headers = {"Cache-Control": "no-cache", **(headers or {})}
        if self._is_compressible:
            names = [self._validation_headers.get("Vary", ""), "Accept-Encoding"]
            self._validation_headers["Vary"] = ", ".join(filter(None, names))
        self._content_headers = {
            "Content-Type": media_type + charset,
            "X-Content-Type-Options": "nosniff",
        }

    @cached_property
    def _gzip_content(self) -> bytes:
        """The content in gzip, made for the first client that takes it."""
        return stdlib_gzip.compress(self._content, 9, mtime=0)

    def compress(self) -> Self:
        """Compress the content now, not in the event loop for the first client that takes it."""
        if self._is_compressible:
            _ = self._gzip_content
        return self

    def respond(self, request: Request) -> Response:
        """Return the document, compressed if the client prefers that, or 304 if it has it."""
        content, etag, coding = self._content, self._etag, {}
        if self._is_compressible and prefers_gzip(get_accept_encoding(request)):
            content, etag, coding = self._gzip_content, self._gzip_etag, GZIP_HEADERS
        headers = {"ETag": etag, **self._validation_headers}
        if matches_if_none_match(request.headers.get("if-none-match", ""), etag):
            return Response(status_code=304, headers=headers)
        return Response(content, headers={**headers, **self._content_headers, **coding})


def matches_if_none_match(condition: str, etag: str) -> bool:
    """Return whether `If-None-Match` lists an entity tag or is `*` (RFC 9110 13.1.2).

    The comparison is weak, as a proxy that compresses makes tags weak.
    """
    tags = [tag.strip().removeprefix("W/") for tag in condition.split(",")]
    return etag in tags or condition.strip() == "*"


def build_record_id(record: Record, topic_id: str) -> str:
    """Return a text that identifies a record among all records of its topic's name.

    It includes the leader epoch, as an unclean leader election may assign an offset again, and the
    topic id, as the topic may be deleted and created again.
    """
    return f"{record.tp.partition}.{record.offset}.{record.epoch}.{topic_id}"


def build_etag(record: Record, topic_id: str, view: View) -> str:
    """Return the strong entity tag of a record as a view shows it."""
    record_id = build_record_id(record, topic_id)
    if view.fields or view.format != "value":
        return f'"{record_id}/{_hash_representation(view.format, view.binary, view.fields)}"'
    return f'"{record_id}"'


@lru_cache(256)  # routes and clients choose among few representations
def _hash_representation(format: str, binary: str, fields: tuple[str, ...]) -> str:
    """Return 128 bits of a hash, in hexadecimal.

    They do not collide, neither by chance nor by a client's choice of fields.
    """
    return sha256(repr((format, binary, fields)).encode()).hexdigest()[:32]


def lists_record(condition: str, record_id: str | None, *, weakly: bool = False) -> bool:
    """Return whether `If-Match` or `If-None-Match` lists a record, in any representation.

    Weak tags match only if `weakly`, as in `If-None-Match` (RFC 9110 13.1.2).
    """
    if condition.strip() == "*":
        return record_id is not None
    tags = [tag.strip() for tag in condition.split(",")]
    if weakly:
        tags = [tag.removeprefix("W/") for tag in tags]
    return record_id is not None and any(
        tag[:1] == tag[-1:] == '"' and tag[1:-1].partition("/")[0] == record_id for tag in tags
    )
