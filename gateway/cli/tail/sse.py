"""A stream by server-sent events."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping

import httpx

from .answer import cause, nearest, refusal
from .events import EventReader
from .item import Item, Lost, Refused
from .target import Target

CONNECT = 10.0  # seconds
SILENCE = 60.0  # seconds; the gateway writes every 15 unless a route says otherwise
BODY = 64 * 1024  # bytes of an error that are read


class SseSource:
    """headers: on every request. transport: another way than the network."""

    def __init__(
        self,
        target: Target,
        *,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
        shown: str = "",
    ) -> None:
        self.retry: float | None = None
        self.shown = shown or target.shown
        self._target = target
        self._http = httpx.AsyncClient(
            headers={"Accept-Encoding": "identity", **headers},
            timeout=httpx.Timeout(CONNECT, read=SILENCE),
            verify=tls,
            transport=transport,
            follow_redirects=True,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def items(
        self, position: str | None, left: int | None
    ) -> AsyncGenerator[list[Item], None]:
        url = self._target.url(self._target.query.text(position))
        own = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if position is not None:
            own["Last-Event-ID"] = position
        reader = EventReader()
        try:
            async with self._http.stream("GET", url, headers=own) as answer:
                await self._check(answer)
                async for chunk in answer.aiter_raw():
                    items = reader.feed(chunk)
                    self.retry = reader.retry if reader.retry is not None else self.retry
                    if items:
                        yield items
        except httpx.ReadTimeout:
            raise Lost(f"nothing heard for {SILENCE:.0f} s") from None
        except httpx.TransportError as exc:
            away = isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError)
            raise Lost(cause(exc), answered=not away) from exc
        except httpx.RequestError as exc:  # redirects without end
            raise Refused(f"{self.shown}: {exc}") from exc
        raise Lost("the connection was closed")

    async def _check(self, answer: httpx.Response) -> None:
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if answer.status_code == 200 and kind == "text/event-stream":
            return
        if answer.status_code == 200:
            raise Refused(
                f"{answer.url.path} answers with {kind or 'something'}, not with a stream"
                + await nearest(self._http, self._target.url(path="/"), self._target.path)
            )
        body = b""
        async for chunk in answer.aiter_bytes():
            body += chunk
            if len(body) > BODY:
                break
        hint = ""
        if answer.status_code == 404:
            hint = await nearest(self._http, self._target.url(path="/"), self._target.path)
        raise refusal(answer.status_code, answer.headers, body, hint=hint)
