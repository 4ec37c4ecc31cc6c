"""The back end that batches are POSTed to: one call is one verdict.

`call` bounds whatever a back end may answer, for groups and for queries of ksqlDB: the time of the
whole answer, its size, and how long it wants to be left alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import httpx

from gateway.config.sections.sidecar import Backend as Settings
from gateway.core.delivery.verdict import BackendUnavailable, SuspectBatch, Verdict, judge_response
from gateway.core.log.record import Record

MAX_RESPONSE_BYTES = 64 << 20  # bytes of an answer
MAX_RETRY_AFTER_S = 3600.0  # seconds of a Retry-After that is heard
HEALTH_TIMEOUT_S = 5.0  # seconds for it to say that it is well


class BackendClient:
    """client: shared by all groups; closed by whoever made it."""

    def __init__(
        self, client: httpx.AsyncClient, settings: Settings, *, accept_empty: bool = False
    ) -> None:
        self._client = client
        self._timeout = settings.timeout
        self._accept_empty = accept_empty
        self._url = httpx.URL(settings.host).join(settings.path)
        health = settings.health_path
        self._health_url = None if health is None else httpx.URL(settings.host).join(health)

    def __str__(self) -> str:
        return str(self._url)

    async def post(
        self, body: bytes, records: Sequence[Record], headers: Mapping[str, str] | None = None
    ) -> Verdict:
        """body: of those that were sent, as a JSON array."""
        said = await post_json(self._client, self._url, body, headers or {}, self._timeout)
        if isinstance(said, BackendUnavailable):
            return said
        if said.is_truncated:
            return SuspectBatch(f"the back end's answer is over {MAX_RESPONSE_BYTES >> 20} MiB")
        empty, after = self._accept_empty, said.retry_after
        return judge_response(
            said.status, said.body, records, accept_empty=empty, retry_after=after
        )

    async def describe_failure(self) -> str:
        """Why it is; empty where it is well, or cannot be asked."""
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
    """What a back end answered.

    retry_after: in seconds, 0.0 where it does not say. body: the beginning of one that is cut.
    """

    status: int
    retry_after: float
    body: bytes

    @property
    def is_truncated(self) -> bool:
        """Return whether the body was longer than is read."""
        return len(self.body) > MAX_RESPONSE_BYTES


async def post_json(
    client: httpx.AsyncClient,
    url: httpx.URL,
    body: bytes,
    headers: Mapping[str, str],
    timeout_s: float,
) -> BackendResponse | BackendUnavailable:
    """POST JSON to a back end.

    Args:
        client: One that follows no redirects.
        url: Where to.
        body: The JSON.
        headers: Further ones; `Content-Type` is set.
        seconds: Until the whole answer is there; a timeout of httpx is for each piece of it.
    """
    fields = {"Content-Type": "application/json", **headers}
    try:
        async with (
            asyncio.timeout(timeout_s),
            client.stream("POST", url, content=body, headers=fields) as response,
        ):
            data = bytearray()
            async for piece in response.aiter_bytes():
                data += piece
                if len(data) > MAX_RESPONSE_BYTES:
                    break
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        return BackendUnavailable(f"{url} is not there: {error or type(error).__name__}")
    except (TimeoutError, httpx.TimeoutException):
        return BackendUnavailable(f"{url} did not answer within {timeout_s:g} s", is_late=True)
    except httpx.HTTPError as error:
        return BackendUnavailable(f"{url} broke off: {error or type(error).__name__}")
    return BackendResponse(response.status_code, parse_retry_after(response.headers), bytes(data))


def parse_retry_after(headers: Mapping[str, str]) -> float:
    """Seconds, of either form (RFC 9110 10.2.3); 0.0 for none."""
    given = headers.get("retry-after", "").strip()
    if given.isdecimal() and given.isascii():
        return min(float(given[:9]), MAX_RETRY_AFTER_S)
    try:
        seconds = parsedate_to_datetime(given).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):  # a year of 20 digits is the last
        return 0.0
    return min(max(0.0, seconds), MAX_RETRY_AFTER_S)
