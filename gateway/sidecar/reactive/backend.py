"""Encode a batch, POST it to a back end and judge its answer: one call is one verdict.

The timestamp is in milliseconds since 1970. The headers are text by name, a list where a name comes
more than once, and `{"base64": ...}` for bytes that are not UTF-8. A record without a correlation
id gets one that is derived from its place, the same at every attempt.

`post_json` limits a back end's answer, for groups and for queries of ksqlDB: the time of the whole
response, its size, and the delay that it may request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, uuid5

import httpx
import orjson

from gateway.config.sections.sidecar import Backend as Settings
from gateway.config.sections.sidecar import Group, Sidecar
from gateway.config.types.address import join_url
from gateway.core.delivery.verdict import (
    BackendUnavailable,
    BatchResults,
    RecordResult,
    SuspectBatch,
    Verdict,
    judge_response,
)
from gateway.core.log.record import Record
from gateway.errors import FormatError, RegistryUnavailable, SchemaNotFound
from gateway.formats.codec import Codecs, SchemaNotLoaded, SerializationFormat, frame_record
from gateway.formats.plain import PLAIN_CODECS
from gateway.formats.registry import MISSING_TTL_S
from gateway.http_client import StrictTransport, create_closed_jar, parse_retry_after
from gateway.sidecar.consumer.record_json import text_headers
from gateway.sidecar.http.requests import CORRELATION_HEADER, TRACEABILITY_HEADER
from gateway.sidecar.lookups import Formats, get_formats
from gateway.sidecar.turns import take_turns

log = logging.getLogger(__name__)

MAX_RESPONSE_BYTES = 64 << 20
# A response may have so much, and so much for each record and byte of the batch. Parsed, it takes
# up to 30 times as much memory.
BASE_RESPONSE_BYTES = 1 << 20
RESPONSE_BYTES_PER_RECORD = 64 << 10  # a stack trace
RESPONSE_BYTES_PER_BYTE = 2  # the record may come with it
LARGE_BODY_BYTES = 256 << 10  # from which a server may answer before it has read all
HEALTH_TIMEOUT_S = 5.0  # for the response to a health check


def create_http_client() -> httpx.AsyncClient:
    """Create the HTTP client for back ends, which its creator closes.

    The back end is in the same pod, so the environment's proxies are ignored. Connections are not
    limited. `post_json` has the timeouts.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(
        transport=StrictTransport(limits=limits, trust_env=False),
        cookies=create_closed_jar(),
        trust_env=False,
        timeout=None,
        follow_redirects=False,
    )


class BackendClient:
    """Send batches to one back end by a shared client, and ask for its health.

    With `accept_empty`, a response without a body means that all records are processed.
    """

    def __init__(
        self, client: httpx.AsyncClient, settings: Settings, *, accept_empty: bool = False
    ) -> None:
        self._client = client
        self._timeout = settings.timeout
        self._accept_empty = accept_empty
        self._url = httpx.URL(join_url(settings.host, settings.path))
        health = settings.health_path
        self._health_url = None if health is None else join_url(settings.host, health)

    def __str__(self) -> str:
        return str(self._url)

    async def post(
        self, body: bytes, records: Sequence[Record], headers: Mapping[str, str] | None = None
    ) -> Verdict:
        response = await post_json(
            self._client, self._url, body, headers or {}, self._timeout, len(records)
        )
        if isinstance(response, BackendUnavailable):
            return response
        if response.is_truncated and 200 <= response.status < 300:
            problem = f"the back end's answer to {len(records)} records"
            return SuspectBatch(f"{problem} is over {len(response.body) >> 20} MiB")
        return judge_response(
            response.status,
            response.body,
            records,
            accept_empty=self._accept_empty,
            retry_after=response.retry_after,
            may_be_cut=response.may_be_cut,
        )

    async def describe_failure(self) -> str:
        """Return why the back end is unhealthy; empty if it is healthy or has no health path."""
        if self._health_url is None:
            return ""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                async with self._client.stream("GET", self._health_url) as response:
                    status = response.status_code
        except (TimeoutError, httpx.HTTPError) as error:
            return f"{self._health_url} does not answer: {str(error) or type(error).__name__}"
        if 200 <= status < 300:
            return ""
        return f"{self._health_url} says {status}; correct it or backend.healthPath"


class BackendResponse(NamedTuple):
    """The response of a back end.

    Attributes:
        retry_after: The delay that it requested, in seconds; 0.0 if none.
        body: The body, or its beginning if it is too long for the batch, in UTF-8.
        may_be_cut: Only the end of the connection marks the end of the body.
        is_truncated: The body is longer than its part that was read.
    """

    status: int
    retry_after: float
    body: bytes
    may_be_cut: bool = False
    is_truncated: bool = False


async def post_json(
    client: httpx.AsyncClient,
    url: httpx.URL,
    body: bytes,
    headers: Mapping[str, str],
    timeout_s: float,
    record_count: int = 0,
) -> BackendResponse | BackendUnavailable:
    """POST JSON to a back end, by a client that follows no redirects.

    Args:
        timeout_s: For the whole response, in seconds; httpx's own timeouts are for each read.
        record_count: How many records the response may describe, which raises its size limit.
    """
    fields = {"Content-Type": "application/json", **headers}
    max_bytes = min(
        MAX_RESPONSE_BYTES,
        BASE_RESPONSE_BYTES
        + RESPONSE_BYTES_PER_RECORD * record_count
        + RESPONSE_BYTES_PER_BYTE * len(body),
    )
    try:
        async with (
            asyncio.timeout(timeout_s),
            client.stream("POST", url, content=body, headers=fields) as response,
        ):
            data = bytearray()
            async for chunk in response.aiter_bytes():
                data += chunk
                if len(data) > max_bytes:
                    break
    # Not late: the back end cannot have processed what it did not get.
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        return BackendUnavailable(f"{url} is not there: {error or type(error).__name__}")
    except (TimeoutError, httpx.TimeoutException):
        return BackendUnavailable(f"{url} did not answer within {timeout_s:g} s", is_late=True)
    except httpx.HTTPError as error:
        # A 413 that comes before all of a large body is lost with the connection.
        reason = f"{url} broke off: {error or type(error).__name__}"
        return BackendUnavailable(reason, is_late=len(body) > LARGE_BODY_BYTES)
    answered = response.headers
    return BackendResponse(
        response.status_code,
        parse_retry_after(answered),
        _convert_to_utf8(bytes(data), response.charset_encoding),
        may_be_cut=answered.keys().isdisjoint({"content-length", "transfer-encoding"}),
        is_truncated=len(data) > max_bytes,
    )


def _convert_to_utf8(body: bytes, charset: str | None) -> bytes:
    if charset is None or charset.lower() == "utf-8":
        return body
    try:
        return body.decode(charset).encode()
    except (LookupError, UnicodeError):
        return body


MISSING_SCHEMA_TIMEOUT_S = 15.0
# Without waiting for another missing schema of a topic, after one was waited for in vain. Otherwise
# records with ids that were made up would hold up those after them for as long each.
MISSING_SCHEMA_PAUSE_S = 300.0


class EncodedBatch(NamedTuple):
    """The JSON array of a batch.

    Records whose bytes do not match their format are `unreadable`, by index: they must not fail the
    others.
    """

    body: bytes
    sent: Sequence[Record]
    unreadable: Mapping[int, str]

    def complete_verdict(self, verdict: Verdict) -> Verdict:
        """Extend a verdict about the sent records to all; those not encoded have failed."""
        if not isinstance(verdict, BatchResults) or not self.unreadable:
            return verdict
        # The verdict has a result for each record that was sent, in order.
        results, unreadable = iter(verdict.results), self.unreadable
        return BatchResults(
            [
                RecordResult(False, unreadable[index], is_permanent=True)
                if index in unreadable
                else next(results)
                for index in range(len(self.sent) + len(unreadable))
            ]
        )


@dataclass(slots=True)
class BatchEncoder:
    """Encode batches of one lane of a group, in the formats of its topics.

    A batch that cannot be encoded yet is passed again, before any other.

    Attributes:
        missing_schema_timeout_s: For how many seconds the registry is asked again for a schema that
            it does not have: a record was written with it, and a registry that follows another one
            learns of new schemas a moment later.
    """

    _codecs: Codecs
    _section: Sidecar
    _group: Group
    missing_schema_timeout_s: float = MISSING_SCHEMA_TIMEOUT_S
    now: Callable[[], float] = monotonic
    _formats: dict[str, Formats] = field(default_factory=dict)
    _waiting_since: dict[str, float] = field(default_factory=dict)  # for schemas, by topic
    _paused_until: dict[str, float] = field(default_factory=dict)  # by topic

    async def encode(self, records: Sequence[Record]) -> EncodedBatch:
        """Encode a batch; raises RegistryUnavailable, also while the registry lacks a schema."""
        objects: list[bytes] = []
        sent: list[Record] = []
        unreadable: dict[int, str] = {}
        missing: dict[str, str] = {}  # errors by topic
        has_loaded = False
        async with take_turns() as turns:
            for index, record in enumerate(records):
                if turns.is_over():
                    await turns.pass_on()
                try:
                    # Encoding does not await: only a schema that is not cached yet is waited for.
                    while True:
                        try:
                            objects.append(self._encode_record(record))
                            break
                        except SchemaNotLoaded:
                            if not has_loaded:  # all, so that missing ones are waited for together
                                await turns.wait_for(self._load_all_schemas(records[index:]))
                                has_loaded = True
                            await turns.wait_for(self._load_schemas(record))
                    sent.append(record)
                except SchemaNotFound as error:
                    missing[record.tp.topic] = unreadable[index] = str(error)
                except FormatError as error:
                    unreadable[index] = str(error)
        awaited = [error for topic, error in missing.items() if self._should_wait(topic)]
        if awaited:
            raise RegistryUnavailable(awaited[0], retry_after=MISSING_TTL_S)
        self._waiting_since.clear()
        return EncodedBatch(b"[" + b",".join(objects) + b"]", sent, unreadable)

    def _get_formats(self, topic: str) -> Formats:
        formats = self._formats.get(topic)
        if formats is None:
            formats = self._formats[topic] = get_formats(self._section, topic, self._group)
        return formats

    def _encode_record(self, record: Record) -> bytes:
        topic, (key, value) = record.tp.topic, self._get_formats(record.tp.topic)
        framed = frame_record(record, key, value)
        shown = _build_object(
            record,
            self._encode_value(key, topic, True, framed.key),
            self._encode_value(value, topic, False, framed.value),
        )
        try:
            return orjson.dumps(shown)
        except orjson.JSONEncodeError as error:  # a TypeError, so nothing else may stand in here
            raise FormatError(f"the record cannot be written as JSON: {error}") from None

    def _encode_value(
        self, format: SerializationFormat, topic: str, is_key: bool, data: bytes | None
    ) -> Any:
        # A Fragment is written as it is. Parsed JSON would be written with other digits.
        if not data:
            return self._codecs.decode_cached(format, topic, is_key, data)
        if not format.has_schema:
            return PLAIN_CODECS[format].decode_fragment(data)
        return orjson.Fragment(self._codecs.decode_text_cached(format, data))

    def _should_wait(self, topic: str) -> bool:
        """Return whether the registry is asked again for a schema of a topic."""
        now = self.now()
        if now < self._paused_until.get(topic, 0.0):
            return False
        if now - self._waiting_since.setdefault(topic, now) < self.missing_schema_timeout_s:
            return True
        self._paused_until[topic] = now + MISSING_SCHEMA_PAUSE_S  # it was in vain
        return False

    async def _load_all_schemas(self, records: Sequence[Record]) -> None:
        payloads: defaultdict[SerializationFormat, list[bytes | None]] = defaultdict(list)
        for record in records:
            key, value = self._get_formats(record.tp.topic)
            framed = frame_record(record, key, value)
            payloads[key].append(framed.key)
            payloads[value].append(framed.value)
        for format, data in payloads.items():
            await self._codecs.load_schemas(format, records[0].tp.topic, False, data)

    async def _load_schemas(self, record: Record) -> None:
        topic, (key, value) = record.tp.topic, self._get_formats(record.tp.topic)
        record = frame_record(record, key, value)
        await self._codecs.decode(key, topic, True, record.key)
        await self._codecs.decode(value, topic, False, record.value)


async def deliver_batch(
    backend: BackendClient,
    encoder: BatchEncoder,
    records: Sequence[Record],
    headers: Mapping[str, str],
    observe_seconds: Callable[[float], None] = lambda seconds: None,
) -> Verdict:
    """Encode records, send them, and return what became of all of them."""
    try:
        batch = await encoder.encode(records)
    except RegistryUnavailable as error:
        return BackendUnavailable(str(error), error.retry_after)
    verdict: Verdict = BatchResults([])
    if batch.sent:  # otherwise no record could be encoded, and the back end is not asked
        start = monotonic()
        verdict = await backend.post(batch.body, batch.sent, headers)
        observe_seconds(monotonic() - start)
        log.debug("%d records: %s", len(batch.sent), verdict)
    return batch.complete_verdict(verdict)


def get_ids(record: Record) -> tuple[str, str]:
    """Return the correlation id, by default derived from the place, and the traceability id."""
    ids = {CORRELATION_HEADER.lower(): "", TRACEABILITY_HEADER.lower(): ""}
    for name, value in record.headers:
        if value is not None and name.lower() in ids:
            ids[name.lower()] = value.decode(errors="replace")
    correlation = ids[CORRELATION_HEADER.lower()] or str(
        uuid5(NAMESPACE_URL, f"kafka:{record.tp.topic}/{record.tp.partition}/{record.offset}")
    )
    return correlation, ids[TRACEABILITY_HEADER.lower()]


def _build_object(record: Record, key: Any, value: Any) -> dict[str, Any]:
    correlation, traceability = get_ids(record)
    return {
        "topic": record.tp.topic,
        "partition": record.tp.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": key,
        "value": value,
        "headers": text_headers(record.headers),
        "correlationId": correlation,
        "traceabilityId": traceability or None,
    }
