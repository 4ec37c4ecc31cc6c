"""Send requests to other servers: to issuers for their keys, to applications for decisions.

Requests are limited in time and size. Redirects are not followed, cookies are not kept, and nothing
that is sent is logged: httpx's client would log URLs, and send one client's cookies for the next.
Its transport, which this module uses, does neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import httpx

Headers = Sequence[tuple[bytes, bytes]]
MAX_CONNECTIONS = 100  # connections at the same time, to all servers together


class ExternalResponse(NamedTuple):
    """The response of another server."""

    status: int
    body: bytes


class ExternalHttpError(Exception):
    """There is no usable response. The message says why, and contains nothing secret."""


class ExternalHttp:
    """An HTTP client for GET requests to other servers.

    Created and closed by `Guards`. It connects at the first request, and may be used again after it
    was closed.
    """

    def __init__(self) -> None:
        """Create the client without connecting."""
        self._transport: httpx.AsyncHTTPTransport | None = None
        self._tasks: set[asyncio.Task[Any] | None] = set()

    async def get(
        self, url: str, headers: Headers = (), *, timeout_s: float, max_body_bytes: int = 64 * 1024
    ) -> ExternalResponse:
        """Return the response to a GET request.

        Args:
            url: The URL.
            headers: Headers to send.
            timeout_s: Seconds in which all of the response must arrive.
            max_body_bytes: The most bytes of the response's body.

        Raises:
            ExternalHttpError: There is no usable response.
        """
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            async with asyncio.timeout(timeout_s):
                if self._transport is None:
                    transport = await asyncio.to_thread(_create_transport)
                    # Another request may have set one meanwhile.
                    self._transport = self._transport or transport
                return await _get_with_retry(self._transport, url, headers, max_body_bytes)
        except TimeoutError:
            raise ExternalHttpError(f"there is no answer within {timeout_s:g} s") from None
        finally:
            self._tasks.discard(task)

    async def close(self) -> None:
        """Close all connections, and cancel the tasks of requests in progress."""
        for task in [running for running in self._tasks if running is not None]:
            task.cancel()
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()


def _create_transport() -> httpx.AsyncHTTPTransport:
    """Create a transport; importing httpx and reading certificates take 0.1 s, so in a thread."""
    import httpx

    limits = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=20)
    return httpx.AsyncHTTPTransport(limits=limits)


async def _get_with_retry(
    transport: httpx.AsyncHTTPTransport, url: str, headers: Headers, max_body_bytes: int
) -> ExternalResponse:
    """Send a request, and once more if it failed on a connection that may have been stale."""
    import httpx

    try:
        try:
            return await _get_once(transport, url, headers, max_body_bytes)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            # The server may have closed an idle connection just as it was used again. A GET may be
            # repeated (RFC 9110 9.2.2).
            return await _get_once(transport, url, headers, max_body_bytes)
    except TimeoutError:  # handled by `get`; it is an OSError, so the next clause would catch it
        raise
    except (httpx.TransportError, httpx.InvalidURL, OSError, ValueError) as exc:
        raise ExternalHttpError(f"it cannot be reached ({type(exc).__name__})") from None


async def _get_once(
    transport: httpx.AsyncHTTPTransport, url: str, headers: Headers, max_body_bytes: int
) -> ExternalResponse:
    """Send one request, and read its response up to the limit."""
    import httpx

    own_headers = (b"accept", b"application/json"), (b"accept-encoding", b"identity")
    request = httpx.Request("GET", url, headers=[*own_headers, *headers])
    response = await transport.handle_async_request(request)
    try:
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > max_body_bytes:
                raise ExternalHttpError(f"its answer is longer than {max_body_bytes} bytes")
    finally:
        await response.aclose()
    return ExternalResponse(response.status_code, bytes(body))
