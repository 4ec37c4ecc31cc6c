"""The back end that batches are POSTed to: one call is one verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime

import httpx

from ...config.sidecar import Backend as Settings
from ...core.record import Record
from ...core.verdict import Away, Suspect, Verdict, verdict

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
        fields = {"Content-Type": "application/json", **(headers or {})}
        request = self._client.build_request("POST", self._url, content=body, headers=fields)
        try:
            async with asyncio.timeout(self._timeout):  # httpx's own is for each piece
                status, after, data = await self._answer(request)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return Away(f"{self._url} is not there: {error or type(error).__name__}")
        except (TimeoutError, httpx.TimeoutException):
            return Away(f"{self._url} did not answer within {self._timeout:g} s", late=True)
        except httpx.HTTPError as error:
            return Away(f"{self._url} broke off: {error or type(error).__name__}")
        if len(data) > LARGEST:
            return Suspect(f"the back end's answer is over {LARGEST >> 20} MiB")
        return verdict(status, data, sent, accept_empty=self._accept_empty, retry_after=after)

    async def unwell(self) -> str:
        """Why it is; empty where it is well, or cannot be asked."""
        if self._health is None:
            return ""
        try:
            async with asyncio.timeout(PROBE):
                status = (await self._client.get(self._health)).status_code
        except (TimeoutError, httpx.HTTPError) as error:
            return f"{self._health} does not answer: {str(error) or type(error).__name__}"
        if 200 <= status < 300:
            return ""
        return f"{self._health} says {status}; correct it or backend.healthPath"

    async def _answer(self, request: httpx.Request) -> tuple[int, float, bytes]:
        """Status, Retry-After in seconds, body; of one too large, the beginning."""
        response = await self._client.send(request, stream=True)
        try:
            data = bytearray()
            async for piece in response.aiter_bytes():
                data += piece
                if len(data) > LARGEST:
                    break
        finally:
            await response.aclose()
        return response.status_code, retry_after(response.headers), bytes(data)


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds, of either form (RFC 9110 10.2.3); 0.0 for none."""
    given = headers.get("retry-after", "").strip()
    if given.isdecimal() and given.isascii():
        return min(float(given[:9]), LONGEST)
    try:
        seconds = parsedate_to_datetime(given).timestamp() - time.time()
    except (ValueError, TypeError):
        return 0.0
    return min(max(0.0, seconds), LONGEST)
