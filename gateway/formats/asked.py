"""A schema registry over HTTP: who is asked, as whom, and what its answers mean.

Several URLs are of one registry. The one that answered last is asked first; the next one when
it does not answer, or says that it cannot (429, 5xx).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import httpx
import orjson

from gateway.config import SchemaRegistry
from gateway.config.types.trust import client_context
from gateway.errors import RegistryUnavailable

log = logging.getLogger(__name__)

AGAIN = 1.0  # seconds after which a registry that is away is asked again
LARGEST = 16 * 1024**2  # bytes of an answer, decompressed
PIECE = 64 * 1024  # bytes of it that are decompressed at once
_CODED = frozenset({"content-encoding", "content-length", "transfer-encoding"})  # as it came
_TYPE = "application/vnd.schemaregistry.v1+json"


class NotThere(Exception):
    """A 404. code: the registry's own, such as 40401."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Rejected(Exception):
    """A 4xx about what was asked: an incompatible schema (409), an invalid one (422)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Asked:
    """One registry; `close` it in the loop that asked."""

    def __init__(self, catalog: SchemaRegistry) -> None:
        self._catalog = catalog
        self._urls = [url.rstrip("/") for url in catalog.url]
        self._client: httpx.AsyncClient | None = None
        self._left: list[httpx.AsyncClient] = []
        self._away = False

    async def close(self) -> None:
        clients, self._left = [*self._left, self._client], []
        self._client = None
        for client in filter(None, clients):
            await client.aclose()

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON of a 2xx. Raises NotThere, Rejected, RegistryUnavailable."""
        reasons = []
        for url in list(self._urls):
            try:
                answer = await self._answer(method, url + path, body)
            except RegistryUnavailable as exc:
                reasons.append(exc)
                continue
            if url != self._urls[0]:
                self._urls.remove(url)
                self._urls.insert(0, url)
            self._back(url)
            return _meant(answer, url)
        await self._gone(reasons)
        raise reasons[0]

    async def _answer(
        self, method: str, url: str, body: Mapping[str, Any] | None
    ) -> httpx.Response:
        content = None if body is None else orjson.dumps(body)
        try:
            async with asyncio.timeout(self._catalog.timeout):
                answer = await self._whole(method, url, content)
        except TimeoutError:
            raise _away(url, f"no answer within {self._catalog.timeout:g} s") from None
        except (httpx.HTTPError, OSError, ValueError) as exc:
            raise _away(url, str(exc) or type(exc).__name__) from None
        if answer.status_code in (401, 403):
            what = f"it refuses the gateway ({answer.status_code}); correct its username or token"
            raise _away(url, what, _wait(answer))
        if answer.status_code == 429 or answer.status_code >= 500:
            raise _away(url, f"it answers {answer.status_code}", _wait(answer))
        return answer

    async def _whole(self, method: str, url: str, content: bytes | None) -> httpx.Response:
        """Raises ValueError for more than `LARGEST`, of which no more is read."""
        if self._client is None:
            made = await asyncio.to_thread(_connected, self._catalog)
            self._client = self._client or made  # another may have been faster
        async with self._client.stream(method, url, content=content) as answer:
            pieces, size = [], 0
            async for piece in answer.aiter_bytes(PIECE):
                pieces.append(piece)
                size += len(piece)
                if size > LARGEST:
                    raise ValueError(f"its answer has more than {LARGEST} bytes")
        headers = [each for each in answer.headers.multi_items() if each[0].lower() not in _CODED]
        return httpx.Response(answer.status_code, headers=headers, content=b"".join(pieces))

    async def _gone(self, reasons: list[RegistryUnavailable]) -> None:
        """Connections are made anew then, with what the files of `tls` hold by that time."""
        if self._away:
            return
        self._away = True
        log.warning("%s", "; ".join(map(str, reasons)))
        left, self._left = self._left, []
        for client in left:
            await client.aclose()
        if self._catalog.tls is not None and self._client is not None:
            self._left, self._client = [self._client], None  # others may wait for its answers

    def _back(self, url: str) -> None:
        if self._away:
            log.info("the schema registry at %s answers again", url)
        self._away = False


def _meant(answer: httpx.Response, url: str) -> Any:
    try:
        said = orjson.loads(answer.content)
    except ValueError:
        if answer.status_code == 404:  # a proxy's, or another server's
            raise _away(url, "it answers 404 as no registry does; correct url") from None
        raise _away(url, f"its answer is no JSON ({answer.status_code}); correct url") from None
    if answer.is_success:
        return said
    about = said if isinstance(said, dict) else {}
    message = str(about.get("message") or f"status {answer.status_code}")
    if answer.status_code == 404:
        code = about.get("error_code")
        raise NotThere(code if isinstance(code, int) else 404, message)
    raise Rejected(answer.status_code, message)


def _away(url: str, why: str, retry_after: float = AGAIN) -> RegistryUnavailable:
    place = httpx.URL(url).copy_with(path="/").host
    return RegistryUnavailable(
        f"the schema registry at {place} cannot be asked: {why}", retry_after=retry_after
    )


def _wait(answer: httpx.Response) -> float:
    """Seconds, as it says; a date counts as nothing said."""
    said = answer.headers.get("retry-after", "")
    return min(60.0, max(AGAIN, float(said))) if said.isdecimal() else AGAIN


def _connected(catalog: SchemaRegistry) -> httpx.AsyncClient:
    """In a thread: to read the certificates takes 50 ms."""
    headers = {"content-type": _TYPE, "accept": f"{_TYPE}, application/json"}
    if catalog.token is not None:
        headers["authorization"] = f"Bearer {catalog.token.get_secret_value()}"
    auth = None
    if catalog.username is not None and catalog.password is not None:
        auth = httpx.BasicAuth(catalog.username, catalog.password.get_secret_value())
    verify = True if catalog.tls is None else client_context(catalog.tls)
    return httpx.AsyncClient(
        # by its transport: proxies of the environment are for what lies outside
        transport=httpx.AsyncHTTPTransport(verify=verify),
        headers=headers,
        auth=auth,
        timeout=catalog.timeout,
    )
