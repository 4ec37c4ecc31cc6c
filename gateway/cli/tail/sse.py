"""A stream by server-sent events."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping

import httpx

from .errors import build_error, describe_cause, suggest_path
from .event_reader import EventReader
from .source import ConnectionLost, StreamEvent, StreamRefused
from .target import Target

CONNECT_TIMEOUT_S = 10.0  # seconds
IDLE_TIMEOUT_S = 60.0  # seconds; the gateway writes every 15 unless a route says otherwise
MAX_ERROR_BODY_BYTES = 64 * 1024  # bytes of an error that are read


class SseSource:
    """headers: on every request. transport: another way than the network."""

    def __init__(
        self,
        target: Target,
        *,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
        display_name: str = "",
    ) -> None:
        self.retry: float | None = None
        self.display_name = display_name or target.display_name
        self._target = target
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
        url = self._target.build_url(self._target.query.encode(position))
        own = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if position is not None:
            own["Last-Event-ID"] = position
        reader = EventReader()
        try:
            async with self._http.stream("GET", url, headers=own) as answer:
                await self._check_response(answer)
                async for chunk in answer.aiter_raw():
                    items = reader.feed(chunk)
                    self.retry = reader.retry if reader.retry is not None else self.retry
                    if items:
                        yield items
        except httpx.ReadTimeout:
            raise ConnectionLost(f"nothing heard for {IDLE_TIMEOUT_S:.0f} s") from None
        except httpx.TransportError as exc:
            away = isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError)
            raise ConnectionLost(describe_cause(exc), was_reached=not away) from exc
        except httpx.RequestError as exc:  # redirects without end
            raise StreamRefused(f"{self.display_name}: {exc}") from exc
        raise ConnectionLost("the connection was closed")

    async def _check_response(self, response: httpx.Response) -> None:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code == 200 and kind == "text/event-stream":
            return
        if response.status_code == 200:
            raise StreamRefused(
                f"{response.url.path} answers with {kind or 'something'}, not with a stream"
                + await suggest_path(
                    self._http, self._target.build_url(path="/"), self._target.path
                )
            )
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_ERROR_BODY_BYTES:
                break
        hint = ""
        if response.status_code == 404:
            hint = await suggest_path(
                self._http, self._target.build_url(path="/"), self._target.path
            )
        raise build_error(response.status_code, response.headers, body, hint=hint)
