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
from gateway.config.types.tls_context import create_client_context
from gateway.errors import RegistryUnavailable

log = logging.getLogger(__name__)

RETRY_DELAY_S = 1.0  # seconds after which a registry that is away is asked again
MAX_RESPONSE_BYTES = 16 * 1024**2  # bytes of an answer, decompressed
READ_SIZE_BYTES = 64 * 1024  # bytes of it that are decompressed at once
_ENCODING_HEADERS = frozenset(
    {"content-encoding", "content-length", "transfer-encoding"}
)  # as it came
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class RegistryNotFound(Exception):
    """A 404. code: the registry's own, such as 40401."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class RegistryRejected(Exception):
    """A 4xx about what was asked: an incompatible schema (409), an invalid one (422)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RegistryClient:
    """One registry; `close` it in the loop that asked."""

    def __init__(self, catalog: SchemaRegistry) -> None:
        self._catalog = catalog
        self._urls = [url.rstrip("/") for url in catalog.url]
        self._client: httpx.AsyncClient | None = None
        self._retired_clients: list[httpx.AsyncClient] = []
        self._is_unavailable = False

    async def close(self) -> None:
        clients, self._retired_clients = [*self._retired_clients, self._client], []
        self._client = None
        for client in filter(None, clients):
            await client.aclose()

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON of a 2xx. Raises NotThere, Rejected, RegistryUnavailable."""
        reasons = []
        for url in list(self._urls):
            try:
                answer = await self._send_request(method, url + path, body)
            except RegistryUnavailable as exc:
                reasons.append(exc)
                continue
            if url != self._urls[0]:
                self._urls.remove(url)
                self._urls.insert(0, url)
            self._on_available(url)
            return _parse_response(answer, url)
        await self._on_unavailable(reasons)
        raise reasons[0]

    async def _send_request(
        self, method: str, url: str, body: Mapping[str, Any] | None
    ) -> httpx.Response:
        content = None if body is None else orjson.dumps(body)
        try:
            async with asyncio.timeout(self._catalog.timeout):
                answer = await self._read_response(method, url, content)
        except TimeoutError:
            raise _build_unavailable(url, f"no answer within {self._catalog.timeout:g} s") from None
        except (httpx.HTTPError, OSError, ValueError) as exc:
            raise _build_unavailable(url, str(exc) or type(exc).__name__) from None
        if answer.status_code in (401, 403):
            what = f"it refuses the gateway ({answer.status_code}); correct its username or token"
            raise _build_unavailable(url, what, _parse_retry_after(answer))
        if answer.status_code == 429 or answer.status_code >= 500:
            raise _build_unavailable(
                url, f"it answers {answer.status_code}", _parse_retry_after(answer)
            )
        return answer

    async def _read_response(self, method: str, url: str, content: bytes | None) -> httpx.Response:
        """Raises ValueError for more than `LARGEST`, of which no more is read."""
        if self._client is None:
            made = await asyncio.to_thread(_create_client, self._catalog)
            self._client = self._client or made  # another may have been faster
        async with self._client.stream(method, url, content=content) as answer:
            pieces, size = [], 0
            async for piece in answer.aiter_bytes(READ_SIZE_BYTES):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_RESPONSE_BYTES:
                    raise ValueError(f"its answer has more than {MAX_RESPONSE_BYTES} bytes")
        headers = [
            each
            for each in answer.headers.multi_items()
            if each[0].lower() not in _ENCODING_HEADERS
        ]
        return httpx.Response(answer.status_code, headers=headers, content=b"".join(pieces))

    async def _on_unavailable(self, reasons: list[RegistryUnavailable]) -> None:
        """Connections are made anew then, with what the files of `tls` hold by that time."""
        if self._is_unavailable:
            return
        self._is_unavailable = True
        log.warning("%s", "; ".join(map(str, reasons)))
        left, self._retired_clients = self._retired_clients, []
        for client in left:
            await client.aclose()
        if self._catalog.tls is not None and self._client is not None:
            self._retired_clients, self._client = (
                [self._client],
                None,
            )  # others may wait for its answers

    def _on_available(self, url: str) -> None:
        if self._is_unavailable:
            log.info("the schema registry at %s answers again", url)
        self._is_unavailable = False


def _parse_response(response: httpx.Response, url: str) -> Any:
    try:
        said = orjson.loads(response.content)
    except ValueError:
        if response.status_code == 404:  # a proxy's, or another server's
            raise _build_unavailable(
                url, "it answers 404 as no registry does; correct url"
            ) from None
        raise _build_unavailable(
            url, f"its answer is no JSON ({response.status_code}); correct url"
        ) from None
    if response.is_success:
        return said
    about = said if isinstance(said, dict) else {}
    message = str(about.get("message") or f"status {response.status_code}")
    if response.status_code == 404:
        code = about.get("error_code")
        raise RegistryNotFound(code if isinstance(code, int) else 404, message)
    raise RegistryRejected(response.status_code, message)


def _build_unavailable(
    url: str, reason: str, retry_after: float = RETRY_DELAY_S
) -> RegistryUnavailable:
    place = httpx.URL(url).copy_with(path="/").host
    return RegistryUnavailable(
        f"the schema registry at {place} cannot be asked: {reason}", retry_after=retry_after
    )


def _parse_retry_after(response: httpx.Response) -> float:
    """Seconds, as it says; a date counts as nothing said."""
    said = response.headers.get("retry-after", "")
    return min(60.0, max(RETRY_DELAY_S, float(said))) if said.isdecimal() else RETRY_DELAY_S


def _create_client(catalog: SchemaRegistry) -> httpx.AsyncClient:
    """In a thread: to read the certificates takes 50 ms."""
    headers = {"content-type": _MEDIA_TYPE, "accept": f"{_MEDIA_TYPE}, application/json"}
    if catalog.token is not None:
        headers["authorization"] = f"Bearer {catalog.token.get_secret_value()}"
    auth = None
    if catalog.username is not None and catalog.password is not None:
        auth = httpx.BasicAuth(catalog.username, catalog.password.get_secret_value())
    verify = True if catalog.tls is None else create_client_context(catalog.tls)
    return httpx.AsyncClient(
        # by its transport: proxies of the environment are for what lies outside
        transport=httpx.AsyncHTTPTransport(verify=verify),
        headers=headers,
        auth=auth,
        timeout=catalog.timeout,
    )
