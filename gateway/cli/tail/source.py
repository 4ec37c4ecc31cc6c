"""Follow a stream over server-sent events (WHATWG HTML 9.2.6).

The events are parsed from chunks of bytes that may end anywhere. httpx-sse (0.4.3) is not used. It
yields one event at a time, without telling which ones arrived together, so that each costs a write:
14 to 19 us per record from httpx to a pipe, against 3 to 4 us with the events of a chunk in one
list. After the first `id:` it also yields an empty `message` for a blank line behind a comment
(httpx-sse#35), which looks like a record with an empty value. It keeps a byte order mark, and with
it loses the first event.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

import httpx

from gateway.cli.output import escape_controls
from gateway.errors import GatewayError
from gateway.http_client import parse_retry_after

from .target import Target

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")
CONNECT_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 60.0  # four heartbeats of a route with the default interval
MAX_ERROR_BODY_BYTES = 64 * 1024
RETRYABLE_STATUSES = (408, 425, 429)  # the 4xx after which another attempt may succeed
RECORD_EVENTS = ("message", "delete")  # the names of events that are records


class StreamEvent(NamedTuple):
    """One event: a record in the route's format, or a control event as JSON."""

    name: str
    data: bytes
    position: str | None = None


class StreamRefused(GatewayError):
    """The server refuses this stream, and another attempt would not help."""


class ConnectionLost(Exception):
    """A connection has ended, or could not be established.

    Attributes:
        retry_after: Seconds to wait at least (`Retry-After`); 0 if the server does not say.
        was_reached: The server answered; if not, the address may be wrong.
    """

    def __init__(self, reason: str, *, retry_after: float = 0.0, was_reached: bool = True) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        self.was_reached = was_reached


class EventReader:
    """The parser of one connection. `retry` is the last of the stream in seconds, or None."""

    def __init__(self) -> None:
        self.retry: float | None = None
        self._buffer = b""
        self._has_started = False
        self._after_cr = False
        self._name = ""
        self._data: list[bytes] = []
        self._id: str | None = None

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        for line in self._split_lines(chunk):
            if line:
                self._parse_field(line)
                continue
            if self._data:
                events.append(
                    StreamEvent(self._name or "message", b"\n".join(self._data), self._id)
                )
                self._id = None
            self._name, self._data = "", []
        return events

    def _split_lines(self, chunk: bytes) -> list[bytes]:
        text = self._buffer + chunk
        if not self._has_started:
            if len(text) < len(_BOM) and _BOM.startswith(text):
                self._buffer = text
                return []
            self._has_started = True
            text = text.removeprefix(_BOM)
        if self._after_cr and text:
            text = text.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in text:
            *lines, self._buffer = _LINE_END.split(text)
            self._after_cr = text.endswith(b"\r")  # an LF in the next chunk belongs to it
        else:
            *lines, self._buffer = text.split(b"\n")
        return lines

    def _parse_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode(errors="replace")
        elif name == b"event":
            self._name = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit():
            self.retry = int(value) / 1000


class SseSource:
    """A stream that can be connected to many times.

    Attributes:
        retry: The last `retry:` of the server, in seconds; None if there was none.
        display_name: The location of the stream, for messages; without credentials.

    Args:
        transport: A transport other than the network, for a gateway in this process. Its HTTP
            statuses are left out of messages.
        suggest: Returns what to append to the message of a 404; by default, the gateway is asked
            for a similar path.
    """

    def __init__(
        self,
        target: Target,
        *,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
        display_name: str = "",
        suggest: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        self.retry: float | None = None
        self.display_name = display_name or target.display_name
        self._target = target
        self._suggest = suggest or self._suggest_path
        self._is_in_process = transport is not None
        self._http = httpx.AsyncClient(
            headers={"Accept-Encoding": "identity", **headers},
            timeout=httpx.Timeout(CONNECT_TIMEOUT_S, read=IDLE_TIMEOUT_S),
            verify=tls,
            transport=transport,
            follow_redirects=True,
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def iter_events(self, position: str | None) -> AsyncGenerator[list[StreamEvent]]:
        """Connect, and yield the events of each chunk until the connection ends.

        Raises:
            StreamRefused: Another attempt would not help.
            ConnectionLost: The connection has ended otherwise.
        """
        url = self._target.build_url(self._target.query.encode(position))
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if position is not None:
            headers["Last-Event-ID"] = position
        reader = EventReader()
        try:
            async with self._http.stream("GET", url, headers=headers) as response:
                await self._check_response(response)
                async for chunk in response.aiter_raw():
                    events = reader.feed(chunk)
                    self.retry = reader.retry if reader.retry is not None else self.retry
                    if events:
                        yield events
        except httpx.ReadTimeout:
            raise ConnectionLost(f"nothing received for {IDLE_TIMEOUT_S:.0f} s") from None
        except httpx.TransportError as exc:
            unreachable = isinstance(
                exc, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError
            )
            raise ConnectionLost(describe_cause(exc), was_reached=not unreachable) from exc
        except httpx.RequestError as exc:  # such as too many redirects
            raise StreamRefused(f"{self.display_name}: {exc}") from exc
        raise ConnectionLost("the connection was closed")

    async def _check_response(self, response: httpx.Response) -> None:
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code == 200 and media_type == "text/event-stream":
            return
        if response.status_code == 200:
            raise StreamRefused(
                f"{response.url.path} answers with {media_type or 'something'}, not with a stream"
                + await self._suggest()
            )
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_ERROR_BODY_BYTES:
                break
        raise build_error(
            response.status_code,
            response.headers,
            body,
            hint=await self._suggest() if response.status_code == 404 else "",
            shows_status=not self._is_in_process,
        )

    async def _suggest_path(self) -> str:
        """Return a hint for an unknown path: a similar one of the gateway, else its first ones."""
        url, path = self._target.build_url(path="/"), self._target.path
        try:
            response = await self._http.get(url, headers={"Accept": "application/json"}, timeout=5)
            paths = [str(each) for stream in response.json()["streams"] for each in stream["paths"]]
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            return ""
        close = difflib.get_close_matches(path, [_fill_pattern(each, path) for each in paths], n=1)
        if close:
            return f"; did you mean {escape_controls(close[0])}?"
        return f"; there are {escape_controls(', '.join(paths[:8]))}" if paths else ""


def build_error(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    hint: str = "",
    shows_status: bool = True,
) -> StreamRefused | ConnectionLost:
    """Return the error for a response that is not a stream: permanent, or worth another attempt.

    Statuses and `Retry-After` are those of RFC 9110, the JSON of errors that of RFC 9457.

    Args:
        hint: What to append to the message of a 404 that makes no suggestion itself.
        shows_status: Whether the message begins with the status.
    """
    start = f"{status}: " if shows_status else ""
    phrases = {each.value: each.phrase for each in HTTPStatus}
    detail = escape_controls(_parse_detail(body))
    detail = detail or phrases.get(status, "the response is not a stream")
    if status in RETRYABLE_STATUSES or status >= 500:
        return ConnectionLost(f"{start}{detail}", retry_after=parse_retry_after(headers))
    has_hint = status == 404 and "did you mean" not in detail
    return StreamRefused(f"{start}{detail}{hint if has_hint else ''}")


def describe_cause(exc: BaseException) -> str:
    """Return why a connection failed.

    HTTP libraries wrap the error of the system, so the chain of causes is searched for it.
    """
    cause: BaseException | None = exc
    chain: list[BaseException] = []
    while cause is not None and cause not in chain:
        chain.append(cause)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is refused ({cause.verify_message}); see --cacert"
        cause = cause.__cause__ or cause.__context__
    for each in chain:
        if isinstance(each, OSError) and each.strerror and each.errno:
            return os.strerror(each.errno) if each.errno > 0 else each.strerror
    return escape_controls(str(exc)) or type(exc).__name__


def _fill_pattern(pattern: str, path: str) -> str:
    """Return a pattern whose parameters have the values that a path has in their place."""
    segments = path.split("/")
    return "/".join(
        segments[n] if segment.startswith("{") and n < len(segments) else segment
        for n, segment in enumerate(pattern.split("/"))
    )


def _parse_detail(body: bytes) -> str:
    try:
        problem = json.loads(body)
        return str(problem.get("detail") or problem.get("title") or "")
    except (ValueError, AttributeError):  # no JSON, or no object
        return ""
