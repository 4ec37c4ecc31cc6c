"""What is asked of other servers: an issuer's keys, an application's word.

Bounded in time and size. Redirects are not followed, cookies are not kept, and nothing of what
is sent is logged: httpx's client would log URLs, and hand one client's cookies to the next; its
transport does neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import httpx

Headers = Sequence[tuple[bytes, bytes]]
MAX_CONNECTIONS = 100  # at once, to all of them


class ExternalResponse(NamedTuple):
    status: int
    body: bytes


class ExternalHttpError(Exception):
    """There is no answer that can be used. The message says why, and holds nothing secret."""


class ExternalHttp:
    """See the module. Connects when it is first asked; may be used again once it is closed."""

    def __init__(self) -> None:
        self._transport: httpx.AsyncHTTPTransport | None = None
        self._tasks: set[asyncio.Task[Any] | None] = set()

    async def get(
        self, url: str, headers: Headers = (), *, timeout_s: float, max_body_bytes: int = 64 * 1024
    ) -> ExternalResponse:
        """The answer to a GET. within: seconds, for all of it. most: bytes of its body.

        Raises Away.
        """
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            async with asyncio.timeout(timeout_s):
                if self._transport is None:
                    made = await asyncio.to_thread(_create_transport)
                    self._transport = self._transport or made  # another may have been faster
                return await _get_with_retry(self._transport, url, headers, max_body_bytes)
        except TimeoutError:
            raise ExternalHttpError(f"there is no answer within {timeout_s:g} s") from None
        finally:
            self._tasks.discard(task)

    async def close(self) -> None:
        """The tasks that ask are cancelled."""
        for task in [each for each in self._tasks if each is not None]:
            task.cancel()
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()


def _create_transport() -> httpx.AsyncHTTPTransport:
    """In a thread: to import httpx and to read the certificates takes 0.1 s."""
    import httpx

    limits = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=20)
    return httpx.AsyncHTTPTransport(limits=limits)


async def _get_with_retry(
    transport: httpx.AsyncHTTPTransport, url: str, headers: Headers, max_body_bytes: int
) -> ExternalResponse:
    import httpx

    try:
        try:
            return await _get_once(transport, url, headers, max_body_bytes)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            # the other side closes a connection that was kept while it is used
            return await _get_once(transport, url, headers, max_body_bytes)
    except TimeoutError:  # an OSError, too
        raise
    except (httpx.TransportError, httpx.InvalidURL, OSError, ValueError) as exc:
        raise ExternalHttpError(f"it cannot be reached ({type(exc).__name__})") from None


async def _get_once(
    transport: httpx.AsyncHTTPTransport, url: str, headers: Headers, max_body_bytes: int
) -> ExternalResponse:
    import httpx

    plain = (b"accept", b"application/json"), (b"accept-encoding", b"identity")
    request = httpx.Request("GET", url, headers=[*plain, *headers])
    response = await transport.handle_async_request(request)
    try:
        body = bytearray()
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > max_body_bytes:
                raise ExternalHttpError(f"its answer is longer than {max_body_bytes} bytes")
    finally:
        await response.aclose()
    return ExternalResponse(response.status_code, bytes(body))
