"""Send requests to a schema registry over HTTP.

A registry may have several URLs. The one that answered last is asked first, and the next one if it
does not give an answer of a registry. Only the registry's own words say that a schema does not
exist or is refused: a 404 may be that of a wrong path, and a 200 that of a login page.

confluent-kafka has an asyncio client for registries, which is not used: it needs authlib and
cachetools, sends requests through the environment's proxies, reads a response of any size into
memory, and retries on its own schedule within the time that a client waits.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import orjson

from gateway.config import SchemaRegistry
from gateway.config.sections.security import create_client_context
from gateway.errors import RegistryUnavailable
from gateway.http_client import StrictTransport, create_closed_jar

log = logging.getLogger(__name__)

RETRY_DELAY_S = 1.0  # seconds before a registry that is away is asked again
MAX_RESPONSE_BYTES = 16 * 1024**2
UNKNOWN_PATH = 404  # the code of a 404 that is not in a registry's own words
FORBIDDEN = 403
_CHOSEN_PATHS = {  # by records; a schema's references are asked for with deleted ones
    UNKNOWN_PATH: re.compile("/schemas/guids/"),
    FORBIDDEN: re.compile(r"/schemas/|.*\?deleted=true$"),
}
_REFUSALS = {
    401: "it refuses the gateway (401); correct its username or token",
    FORBIDDEN: "it refuses the gateway (403); correct its username or token",
    UNKNOWN_PATH: "it answers 404 as no registry does; correct url",
}
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class RegistryNotFound(Exception):
    """The registry answers 404, with an error code such as 40401 (subject not found).

    Also a 403 with a code such as 40301 (no right to read the subject), where the registry lets the
    gateway in otherwise.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class RegistryRejected(Exception):
    """The registry refuses a schema: 409 for an incompatible schema, 422 for an invalid one."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RegistryClient:
    """The connections to one registry.

    A `CachedRegistryClient` owns it, and closes it in the event loop in which it made requests. An
    outage of the registry is logged once, and so is its end.
    """

    def __init__(self, catalog: SchemaRegistry) -> None:
        self._catalog = catalog
        self._urls = [url.rstrip("/") for url in catalog.url]  # in the order to try
        self._client: httpx.AsyncClient | None = None
        self._retired_clients: list[httpx.AsyncClient] = []  # replaced, but maybe still in use
        self._is_unavailable = False

    async def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        clients, self._retired_clients = [*self._retired_clients, self._client], []
        self._client = None
        for client in filter(None, clients):
            await client.aclose()

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        is_expected: Callable[[Any], bool],
    ) -> Any:
        """Send a request to `path` below the registry's URL, and return the JSON of its response.

        Args:
            is_expected: Returns whether the JSON of a success is the answer of a registry.

        Raises:
            RegistryNotFound: The registry does not have it (404).
            RegistryRejected: The registry refuses it (409, 422).
            RegistryUnavailable: No URL gave an answer of a registry.
        """
        reasons = []
        for url in list(self._urls):
            try:
                response = await self._send_request(method, url + path, body)
                answer = _parse_response(response, url)
                # Records choose ids: of schemas that the gateway may not read, or GUIDs, whose path
                # some registries do not know.
                if (
                    isinstance(answer, RegistryNotFound)
                    and answer.code in (UNKNOWN_PATH, FORBIDDEN)
                    and not (
                        _CHOSEN_PATHS[answer.code].match(path) and await self._is_registry(url)
                    )
                ):
                    raise _build_unavailable(url, _REFUSALS[answer.code])
                if not isinstance(answer, Exception) and not is_expected(answer):
                    raise _build_unavailable(
                        url, f"its answer to {path} is none of a registry; correct url"
                    )
            except RegistryUnavailable as exc:
                reasons.append(exc)
                continue
            if url != self._urls[0]:
                self._urls.remove(url)
                self._urls.insert(0, url)
            self._on_available(url)
            if isinstance(answer, Exception):
                raise answer
            return answer
        await self._on_unavailable(reasons)
        raise reasons[0]

    async def _send_request(
        self, method: str, url: str, body: Mapping[str, Any] | None
    ) -> httpx.Response:
        content = None if body is None else orjson.dumps(body)
        try:
            async with asyncio.timeout(self._catalog.timeout):
                response = await self._read_response(method, url, content)
        except TimeoutError:
            raise _build_unavailable(url, f"no answer within {self._catalog.timeout:g} s") from None
        except (httpx.HTTPError, OSError, ValueError) as exc:
            raise _build_unavailable(url, str(exc) or type(exc).__name__) from None
        status = response.status_code
        if status == 401:
            raise _build_unavailable(url, _REFUSALS[status], _parse_retry_after(response))
        if status == 429 or status >= 500:
            raise _build_unavailable(url, f"it answers {status}", _parse_retry_after(response))
        return response

    async def _is_registry(self, url: str) -> bool:
        """Return whether it answers; old ones do not know `types`, for which all may ask."""
        for path in ("/schemas/types", "/subjects"):
            response = await self._send_request("GET", f"{url}{path}", None)
            if isinstance(_parse_response(response, url), list):
                return True
        return False

    async def _read_response(self, method: str, url: str, content: bytes | None) -> httpx.Response:
        """Read a response; raises ValueError as soon as it has more than MAX_RESPONSE_BYTES."""
        if self._client is None:
            client = await asyncio.to_thread(_create_client, self._catalog)
            self._client = self._client or client  # another request may have been faster
        async with self._client.stream(method, url, content=content) as response:
            chunks, size = [], 0
            async for chunk in response.aiter_raw():
                chunks.append(chunk)
                size += len(chunk)
                if size > MAX_RESPONSE_BYTES:
                    raise ValueError(f"its answer has more than {MAX_RESPONSE_BYTES} bytes")
        return httpx.Response(
            response.status_code, headers=response.headers, content=b"".join(chunks)
        )

    async def _on_unavailable(self, reasons: list[RegistryUnavailable]) -> None:
        """Log an outage once, and prepare new connections, which read the certificates again."""
        if self._is_unavailable:
            return
        self._is_unavailable = True
        log.warning("%s", "; ".join(map(str, reasons)))
        retired, self._retired_clients = self._retired_clients, []
        for client in retired:
            await client.aclose()
        if self._catalog.tls is not None and self._client is not None:
            # Closed at the next failure and not now, as others may wait for its responses.
            self._retired_clients, self._client = [self._client], None

    def _on_available(self, url: str) -> None:
        if self._is_unavailable:
            log.info("the schema registry at %s answers again", url)
        self._is_unavailable = False


def _parse_response(response: httpx.Response, url: str) -> Any:
    """Return JSON or the exception of a refusal; raises RegistryUnavailable for another server."""
    status = response.status_code
    try:
        content = orjson.loads(response.content)
    except ValueError:
        if status not in _REFUSALS:  # else of a proxy, or of another server
            reason = f"its answer is no JSON ({status}); correct url"
            raise _build_unavailable(url, reason) from None
        content = None
    if response.is_success:
        return content
    error = content if isinstance(content, dict) else {}
    code, message = error.get("error_code"), str(error.get("message") or f"status {status}")[:300]
    # A registry's 404 has five digits, as 40401 (subject not found) and 40406 (version deleted).
    if status == 404:
        if not (isinstance(code, int) and code // 100 == 404):
            code = UNKNOWN_PATH
        return RegistryNotFound(code, message)
    if status == 403 and isinstance(code, int) and code // 100 == 403:
        return RegistryNotFound(FORBIDDEN, message)
    if status in (409, 422) and isinstance(code, int):
        return RegistryRejected(status, message)
    refusal = _REFUSALS.get(status, f"it answers {status} as no registry does; correct url")
    raise _build_unavailable(url, refusal)


def _build_unavailable(
    url: str, reason: str, retry_after: float = RETRY_DELAY_S
) -> RegistryUnavailable:
    host = httpx.URL(url).copy_with(path="/").host
    return RegistryUnavailable(
        f"the schema registry at {host} cannot be asked: {reason}", retry_after=retry_after
    )


def _parse_retry_after(response: httpx.Response) -> float:
    """Return the seconds of a Retry-After header, within bounds; a date is ignored."""
    value = response.headers.get("retry-after", "")
    return min(60.0, max(RETRY_DELAY_S, float(value))) if value.isdecimal() else RETRY_DELAY_S


def _create_client(catalog: SchemaRegistry) -> httpx.AsyncClient:
    """Create the HTTP client. Call it in a thread: reading the certificates takes 50 ms."""
    headers = {"content-type": _MEDIA_TYPE, "accept": f"{_MEDIA_TYPE}, application/json"}
    if catalog.token is not None:
        headers["authorization"] = f"Bearer {catalog.token.get_secret_value()}"
    auth = None
    if catalog.username is not None and catalog.password is not None:
        auth = httpx.BasicAuth(catalog.username, catalog.password.get_secret_value())
    verify = True if catalog.tls is None else create_client_context(catalog.tls)
    return httpx.AsyncClient(
        # With a transport of its own httpx ignores the environment's proxies, which are meant for
        # hosts outside of the network.
        transport=StrictTransport(verify=verify),
        headers=headers,
        auth=auth,
        cookies=create_closed_jar(),
        timeout=catalog.timeout,
    )
