"""Follow a stream over server-sent events (WHATWG HTML 9.2.6).

The events are parsed from chunks of bytes that may end anywhere. httpx-sse (0.4.3) is not used. It
yields one event at a time, without telling which ones arrived together, so that each costs a write:
14 to 19 us per record from httpx to a pipe, against 3 to 4 us with the events of a chunk in one
list. After the first `id:` it also yields an empty `message` for a blank line behind a comment
(httpx-sse#35), which looks like a record with an empty value. It keeps a byte order mark, and with
it loses the first event.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

import httpx

from .source import ConnectionLost, StreamEvent, StreamRefused
from .status import build_error, describe_cause, suggest_path
from .target import Target

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")


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
        """Return the events that are complete with these bytes."""
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


CONNECT_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 60.0  # four heartbeats of a route with the default interval
MAX_ERROR_BODY_BYTES = 64 * 1024  # reading an error response stops after so many


class SseSource:
    """A `StreamSource` over SSE.

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

    async def close(self) -> None:
        await self._http.aclose()

    async def iter_events(
        self, position: str | None, remaining: int | None
    ) -> AsyncGenerator[list[StreamEvent], None]:
        """Connect, and yield events; `remaining` is not used, because SSE has no credit."""
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
        hint = ""
        if response.status_code == 404:
            hint = await self._suggest()
        raise build_error(
            response.status_code,
            response.headers,
            body,
            hint=hint,
            shows_status=not self._is_in_process,
        )

    async def _suggest_path(self) -> str:
        return await suggest_path(self._http, self._target.build_url(path="/"), self._target.path)
