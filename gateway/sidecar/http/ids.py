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
from gateway.telemetry.log_context import log_context

from .status import StatusError

CORRELATION_HEADER = "X-Correlation-Id"
TRACEABILITY_HEADER = "X-Traceability-Id"
TRACEPARENT_HEADER = traceparent.HEADER_NAME

_ID_PATTERN = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,254}[\x21-\x7e])?")


class RequestIds(NamedTuple):
    correlation: str
    traceability: str
    traceparent: str

    def to_http_headers(self) -> list[tuple[str, str]]:
        """As headers, of requests and of answers."""
        return [
            (CORRELATION_HEADER, self.correlation),
            (TRACEABILITY_HEADER, self.traceability),
            (TRACEPARENT_HEADER, self.traceparent),
        ]

    def to_record_headers(
        self, correlation: str | None = None, traceability: str | None = None
    ) -> list[tuple[str, bytes | None]]:
        """As a record's headers; a record may have ids of its own."""
        return [
            (CORRELATION_HEADER, (correlation or self.correlation).encode()),
            (TRACEABILITY_HEADER, (traceability or self.traceability).encode()),
            (TRACEPARENT_HEADER, self.traceparent.encode()),
        ]

    @classmethod
    def create(
        cls, correlation: str | None = None, traceability: str | None = None, trace: str = ""
    ) -> RequestIds:
        """What is not given is made."""
        return cls(
            correlation or _create_id(),
            traceability or _create_id(),
            trace or _create_traceparent(),
        )

    @classmethod
    def from_record(cls, headers: Iterable[tuple[str, bytes | None]]) -> RequestIds:
        """Those that a record brings; the last of a name counts."""
        found = {name.lower(): (value or b"").decode("latin-1") for name, value in headers}
        trace = found.get(TRACEPARENT_HEADER, "")
        return cls.create(
            _accept_id(found.get(CORRELATION_HEADER.lower())),
            _accept_id(found.get(TRACEABILITY_HEADER.lower())),
            trace if traceparent.parse(trace.encode("latin-1")) else "",
        )


_current_ids: ContextVar[RequestIds | None] = ContextVar("sidecar_ids", default=None)


def get_current_ids() -> RequestIds:
    """Of the request that is being answered; new ones where there is none."""
    return _current_ids.get() or RequestIds.create()


def _create_id() -> str:
    return str(uuid.uuid4())


def _create_traceparent() -> str:
    random = os.urandom(24)
    trace, span = int.from_bytes(random[:16]) or 1, int.from_bytes(random[16:]) or 1
    return str(traceparent.Traceparent(trace, span, sampled=False))


def _accept_id(text: str | None) -> str | None:
    return text if text and _ID_PATTERN.fullmatch(text) else None


def parse_ids(headers: Headers) -> RequestIds:
    """Of a request. Raises Refusal 400 for an id that is none: it would not be found again."""
    given: dict[str, str | None] = {}
    for name in (CORRELATION_HEADER, TRACEABILITY_HEADER):
        text = headers.get(name)
        if text and not _ID_PATTERN.fullmatch(text):
            what = f"{name} is over 256 characters, or has others than ASCII's visible ones"
            raise StatusError(400, f"{what}; shorten it")
        given[name] = text
    trace = headers.get(TRACEPARENT_HEADER, "")
    good = traceparent.parse(trace.encode("latin-1")) is not None
    return RequestIds.create(
        given[CORRELATION_HEADER], given[TRACEABILITY_HEADER], trace if good else ""
    )


_INVALID_IDS = "gateway.sidecar.wrong_ids"  # in the ASGI scope: why they cannot be used


def check_ids(scope: Scope) -> None:
    """Raise what is wrong with the ids of a request: once it is known whose it is."""
    refusal: StatusError | None = scope.get(_INVALID_IDS)
    if refusal is not None:
        raise refusal


class RequestIdMiddleware:
    """Middleware: see the module. A request with wrong ids gets new ones until it is refused."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            ids = parse_ids(Headers(scope=scope))
        except StatusError as exc:
            ids, scope = RequestIds.create(), {**scope, _INVALID_IDS: exc}
        pairs = [(name.lower().encode(), text.encode()) for name, text in ids.to_http_headers()]

        async def send_wrapper(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *pairs]}
            await send(message)

        token = _current_ids.set(ids)
        try:
            with log_context(
                correlation=ids.correlation,
                traceability=ids.traceability,
                trace=ids.traceparent[3:35],
            ):
                await self._app(scope, receive, send_wrapper)
        finally:
            _current_ids.reset(token)
