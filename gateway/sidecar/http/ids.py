"""The ids of a request: passed on where it brings them, else made here.

They are in the answer's headers, in every line of the log that is about the request, and in the
headers of records that it writes. https://www.w3.org/TR/trace-context/ 3.2 for traceparent; what
it brings is passed on as it is: this is no span of its own.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable
from contextvars import ContextVar
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.telemetry import traceparent
from gateway.telemetry.about import about

from .status import Refusal

CORRELATION = "X-Correlation-Id"
TRACEABILITY = "X-Traceability-Id"
TRACEPARENT = traceparent.NAME

_FORM = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,254}[\x21-\x7e])?")


class Ids(NamedTuple):
    correlation: str
    traceability: str
    traceparent: str

    def pairs(self) -> list[tuple[str, str]]:
        """As headers, of requests and of answers."""
        return [
            (CORRELATION, self.correlation),
            (TRACEABILITY, self.traceability),
            (TRACEPARENT, self.traceparent),
        ]

    def headers(
        self, correlation: str | None = None, traceability: str | None = None
    ) -> list[tuple[str, bytes | None]]:
        """As a record's headers; a record may have ids of its own."""
        return [
            (CORRELATION, (correlation or self.correlation).encode()),
            (TRACEABILITY, (traceability or self.traceability).encode()),
            (TRACEPARENT, self.traceparent.encode()),
        ]

    @classmethod
    def made(
        cls, correlation: str | None = None, traceability: str | None = None, trace: str = ""
    ) -> Ids:
        """What is not given is made."""
        return cls(correlation or _id(), traceability or _id(), trace or _traceparent())

    @classmethod
    def of_record(cls, headers: Iterable[tuple[str, bytes | None]]) -> Ids:
        """Those that a record brings; the last of a name counts."""
        found = {name.lower(): (value or b"").decode("latin-1") for name, value in headers}
        trace = found.get(TRACEPARENT, "")
        return cls.made(
            _usable(found.get(CORRELATION.lower())),
            _usable(found.get(TRACEABILITY.lower())),
            trace if traceparent.parse(trace.encode("latin-1")) else "",
        )


_ids: ContextVar[Ids | None] = ContextVar("sidecar_ids", default=None)


def current() -> Ids:
    """Of the request that is being answered; new ones where there is none."""
    return _ids.get() or Ids.made()


def _id() -> str:
    return str(uuid.uuid4())


def _traceparent() -> str:
    random = os.urandom(24)
    trace, span = int.from_bytes(random[:16]) or 1, int.from_bytes(random[16:]) or 1
    return str(traceparent.Traceparent(trace, span, sampled=False))


def _usable(text: str | None) -> str | None:
    return text if text and _FORM.fullmatch(text) else None


def asked(headers: Headers) -> Ids:
    """Of a request. Raises Refusal 400 for an id that is none: it would not be found again."""
    given: dict[str, str | None] = {}
    for name in (CORRELATION, TRACEABILITY):
        text = headers.get(name)
        if text and not _FORM.fullmatch(text):
            what = f"{name} is over 256 characters, or has others than ASCII's visible ones"
            raise Refusal(400, f"{what}; shorten it")
        given[name] = text
    trace = headers.get(TRACEPARENT, "")
    good = traceparent.parse(trace.encode("latin-1")) is not None
    return Ids.made(given[CORRELATION], given[TRACEABILITY], trace if good else "")


_WRONG = "gateway.sidecar.wrong_ids"  # in the ASGI scope: why they cannot be used


def refused_ids(scope: Scope) -> None:
    """Raise what is wrong with the ids of a request: once it is known whose it is."""
    refusal: Refusal | None = scope.get(_WRONG)
    if refusal is not None:
        raise refusal


class Identified:
    """Middleware: see the module. A request with wrong ids gets new ones until it is refused."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            ids = asked(Headers(scope=scope))
        except Refusal as exc:
            ids, scope = Ids.made(), {**scope, _WRONG: exc}
        pairs = [(name.lower().encode(), text.encode()) for name, text in ids.pairs()]

        async def identified(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *pairs]}
            await send(message)

        token = _ids.set(ids)
        try:
            with about(
                correlation=ids.correlation,
                traceability=ids.traceability,
                trace=ids.traceparent[3:35],
            ):
                await self._app(scope, receive, identified)
        finally:
            _ids.reset(token)
