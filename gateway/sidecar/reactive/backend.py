"""POST batches to a back end and judge its answer: one call is one verdict.

`post_json` limits a back end's answer, for groups and for queries of ksqlDB: the time of the whole
response, its size, and the delay that it may request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import httpx

from gateway.config.sections.sidecar import Backend as Settings
from gateway.config.types.address import join_url
from gateway.core.delivery.verdict import BackendUnavailable, SuspectBatch, Verdict, judge_response
from gateway.core.log.record import Record
from gateway.http_client import StrictTransport, create_closed_jar

MAX_RESPONSE_BYTES = 64 << 20
# A response may have so much, and so much for each record and byte of the batch. Parsed, it takes
# up to 30 times as much memory.
BASE_RESPONSE_BYTES = 1 << 20
RESPONSE_BYTES_PER_RECORD = 64 << 10  # a stack trace
RESPONSE_BYTES_PER_BYTE = 2  # the record may come with it
LARGE_BODY_BYTES = 256 << 10  # from which a server may answer before it has read all
MAX_RETRY_AFTER_S = 3600.0  # a longer Retry-After counts as this
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


def parse_retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds of a Retry-After header of either form (RFC 9110 10.2.3), or 0.0."""
    text = headers.get("retry-after", "").strip()
    if text.isdecimal() and text.isascii():
        return min(float(text[:9]), MAX_RETRY_AFTER_S)
    try:
        seconds = parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):  # a year of 20 digits overflows
        return 0.0
    return min(max(0.0, seconds), MAX_RETRY_AFTER_S)
