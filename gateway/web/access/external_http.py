"""Send requests to other servers: to issuers for their keys, to applications for decisions.

Requests are limited in time and size. Redirects are not followed, cookies are not kept, and nothing
that is sent is logged: httpx's client would log URLs, and send one client's cookies for the next.
This module uses only its transport, which does neither.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import httpx

Headers = Sequence[tuple[bytes, bytes]]
MAX_CONNECTIONS = 100  # connections at the same time, to all servers together


class ExternalResponse(NamedTuple):
    status: int
    body: bytes
    location: str = ""

    def describe_status(self) -> str:
        if 300 <= self.status < 400 and self.location:
            return f"{self.status} (a redirect to {self.location[:200]!r}, which is not followed)"
        return str(self.status)


class ExternalHttpError(Exception):
    """There is no usable response. The message says why, and contains nothing secret."""


class UnsendableRequest(ExternalHttpError):
    """The request was not sent: HTTP does not allow what it contains."""


def parse_json(body: bytes) -> Any:
    """Parse JSON in UTF-8 (RFC 8259 8.1). The message of its `ValueError` is for operators."""
    try:
        return json.loads(body.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:
        is_html = body.lstrip()[:1] == b"<"
        what = "it is HTML and no JSON" if is_html else "it is no JSON in UTF-8"
        raise ValueError(what if body else "it is empty") from None


class ExternalHttp:
    """An HTTP client for GET requests to other servers.

    Created and closed by `Guards`. It connects at the first request, and may be used again after it
    was closed.
    """

    def __init__(self) -> None:
        self._transport: httpx.AsyncHTTPTransport | None = None
        self._tasks: set[asyncio.Task[Any] | None] = set()

    async def get(
        self, url: str, headers: Headers = (), *, timeout_s: float, max_body_bytes: int = 64 * 1024
    ) -> ExternalResponse:
        """Return the response to a GET request, all of which must arrive in `timeout_s`."""
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            async with asyncio.timeout(timeout_s):
                transport = self._transport or await self._open_transport()
                return await _get_with_retry(transport, url, headers, max_body_bytes)
        except TimeoutError:
            raise ExternalHttpError(f"there is no answer within {timeout_s:g} s") from None
        finally:
            self._tasks.discard(task)

    async def _open_transport(self) -> httpx.AsyncHTTPTransport:
        """Create the transport, unless another request does it meanwhile, and return it.

        Modules or certificates cannot be read if the process has no free descriptor, for example.
        The next request tries it again.
        """
        try:
            transport = await asyncio.to_thread(_create_transport)
        except OSError as exc:
            reason = exc.strerror or type(exc).__name__
            raise ExternalHttpError(f"no request can be sent to it: {reason}") from None
        self._transport = self._transport or transport
        return self._transport

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

    from gateway import http_client  # noqa: F401  so that a request that fails needs no file

    limits = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=20)
    return httpx.AsyncHTTPTransport(limits=limits)


async def _get_with_retry(
    transport: httpx.AsyncHTTPTransport, url: str, headers: Headers, max_body_bytes: int
) -> ExternalResponse:
    """Send a request, and once more if it failed on a connection that may have been stale."""
    import httpx

    from gateway.http_client import HTTP_ERRORS, describe_http_failure

    try:
        try:
            return await _get_once(transport, url, headers, max_body_bytes)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            # The server may have closed an idle connection just as it was used again. A GET may be
            # repeated (RFC 9110 9.2.2).
            return await _get_once(transport, url, headers, max_body_bytes)
    except httpx.LocalProtocolError as exc:
        raise UnsendableRequest(describe_http_failure(exc, url)) from None
    except TimeoutError:  # handled by `get`; it is an OSError, so the next clause would catch it
        raise
    except HTTP_ERRORS as exc:
        raise ExternalHttpError(describe_http_failure(exc, url)) from None


async def _get_once(
    transport: httpx.AsyncHTTPTransport, url: str, headers: Headers, max_body_bytes: int
) -> ExternalResponse:
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
    location = response.headers.get("location", "")
    return ExternalResponse(response.status_code, bytes(body), location)
