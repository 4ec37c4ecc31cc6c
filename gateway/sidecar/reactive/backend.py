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
from gateway.core.delivery.verdict import Away, Suspect, Verdict, verdict
from gateway.core.log.record import Record

LARGEST = 64 << 20  # bytes of an answer
LONGEST = 3600.0  # seconds of a Retry-After that is heard
PROBE = 5.0  # seconds for it to say that it is well


class BackEnd:
    """client: shared by all groups; closed by whoever made it."""

    def __init__(
        self, client: httpx.AsyncClient, settings: Settings, *, accept_empty: bool = False
    ) -> None:
        self._client = client
        self._timeout = settings.timeout
        self._accept_empty = accept_empty
        self._url = httpx.URL(settings.host).join(settings.path)
        health = settings.health_path
        self._health = None if health is None else httpx.URL(settings.host).join(health)

    def __str__(self) -> str:
        return str(self._url)

    async def post(
        self, body: bytes, sent: Sequence[Record], headers: Mapping[str, str] | None = None
    ) -> Verdict:
        """body: of those that were sent, as a JSON array."""
        said = await call(self._client, self._url, body, headers or {}, self._timeout)
        if isinstance(said, Away):
            return said
        if said.is_cut:
            return Suspect(f"the back end's answer is over {LARGEST >> 20} MiB")
        empty, after = self._accept_empty, said.retry_after
        return verdict(said.status, said.body, sent, accept_empty=empty, retry_after=after)

    async def unwell(self) -> str:
        """Why it is; empty where it is well, or cannot be asked."""
        if self._health is None:
            return ""
        try:
            async with asyncio.timeout(PROBE):
                async with self._client.stream("GET", self._health) as response:
                    status = response.status_code
        except (TimeoutError, httpx.HTTPError) as error:
            return f"{self._health} does not answer: {str(error) or type(error).__name__}"
        if 200 <= status < 300:
            return ""
        return f"{self._health} says {status}; correct it or backend.healthPath"


class Reply(NamedTuple):
    """What a back end answered.

    retry_after: in seconds, 0.0 where it does not say. body: the beginning of one that is cut.
    """

    status: int
    retry_after: float
    body: bytes

    @property
    def is_cut(self) -> bool:
        """Return whether the body was longer than is read."""
        return len(self.body) > LARGEST


async def call(
    client: httpx.AsyncClient,
    url: httpx.URL,
    body: bytes,
    headers: Mapping[str, str],
    seconds: float,
) -> Reply | Away:
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
            asyncio.timeout(seconds),
            client.stream("POST", url, content=body, headers=fields) as response,
        ):
            data = bytearray()
            async for piece in response.aiter_bytes():
                data += piece
                if len(data) > LARGEST:
                    break
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        return Away(f"{url} is not there: {error or type(error).__name__}")
    except (TimeoutError, httpx.TimeoutException):
        return Away(f"{url} did not answer within {seconds:g} s", late=True)
    except httpx.HTTPError as error:
        return Away(f"{url} broke off: {error or type(error).__name__}")
    return Reply(response.status_code, retry_after(response.headers), bytes(data))


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds, of either form (RFC 9110 10.2.3); 0.0 for none."""
    given = headers.get("retry-after", "").strip()
    if given.isdecimal() and given.isascii():
        return min(float(given[:9]), LONGEST)
    try:
        seconds = parsedate_to_datetime(given).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):  # a year of 20 digits is the last
        return 0.0
    return min(max(0.0, seconds), LONGEST)
