"""Read a request: its ids, its body within limits, and whether its client is still there.

Ids that a request lacks are created. They are in the headers of the response, in every log line
about the request, and in the headers of the records that it writes. A traceparent
(https://www.w3.org/TR/trace-context/ 3.2) is passed on unchanged: the sidecar opens no span of its
own. Bodies are limited also under servers that set no limits.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
import uuid
from collections.abc import Coroutine, Iterable
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.background_tasks import Interrupted, run_unless
from gateway.client_memory import ClientMemory, HeldPart, estimate_parsed_bytes
from gateway.telemetry import traceparent
from gateway.telemetry.logs import log_context

from .status import StatusError

CORRELATION_HEADER = "X-Correlation-Id"
TRACEABILITY_HEADER = "X-Traceability-Id"
TRACEPARENT_HEADER = traceparent.HEADER_NAME

_ID_PATTERN = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,254}[\x21-\x7e])?")


class RequestIds(NamedTuple):
    """The ids of one request or record, all of them non-empty."""

    correlation: str
    traceability: str
    traceparent: str

    def to_http_headers(self) -> list[tuple[str, str]]:
        return [
            (CORRELATION_HEADER, self.correlation),
            (TRACEABILITY_HEADER, self.traceability),
            (TRACEPARENT_HEADER, self.traceparent),
        ]

    def to_record_headers(
        self, correlation: str | None = None, traceability: str | None = None
    ) -> list[tuple[str, bytes | None]]:
        return [
            (CORRELATION_HEADER, (correlation or self.correlation).encode()),
            (TRACEABILITY_HEADER, (traceability or self.traceability).encode()),
            (TRACEPARENT_HEADER, self.traceparent.encode()),
        ]

    @classmethod
    def create(
        cls, correlation: str | None = None, traceability: str | None = None, trace: str = ""
    ) -> RequestIds:
        return cls(
            correlation or _create_id(),
            traceability or _create_id(),
            trace or _create_traceparent(),
        )

    @classmethod
    def from_record(cls, headers: Iterable[tuple[str, bytes | None]]) -> RequestIds:
        """Return the ids in a record's headers; the last header of a name counts.

        An id that does not match `_ID_PATTERN` is replaced: it could not be sent as an HTTP header.
        """
        values = {name.lower(): (value or b"").decode("latin-1") for name, value in headers}
        trace = values.get(TRACEPARENT_HEADER, "")
        return cls.create(
            _accept_id(values.get(CORRELATION_HEADER.lower())),
            _accept_id(values.get(TRACEABILITY_HEADER.lower())),
            trace if traceparent.parse(trace.encode("latin-1")) else "",
        )


# Set by `RequestIdMiddleware` while a request is answered.
_current_ids: ContextVar[RequestIds | None] = ContextVar("sidecar_ids", default=None)


def get_current_ids() -> RequestIds:
    """Return the ids of the request that is being answered, or new ones outside of a request."""
    return _current_ids.get() or RequestIds.create()


def _create_id() -> str:
    return str(uuid.uuid4())


def _create_traceparent() -> str:
    random = os.urandom(24)
    # 0 is invalid for either (trace-context 3.2.2.3 and 3.2.2.4).
    trace, span = int.from_bytes(random[:16]) or 1, int.from_bytes(random[16:]) or 1
    return str(traceparent.Traceparent(trace, span, sampled=False))


def _accept_id(text: str | None) -> str | None:
    return text if text and _ID_PATTERN.fullmatch(text) else None


def parse_ids(headers: Headers) -> RequestIds:
    """Return the ids of a request's headers, and create missing ones; raises StatusError 400."""
    ids: dict[str, str | None] = {}
    for name in (CORRELATION_HEADER, TRACEABILITY_HEADER):
        text = headers.get(name)
        if text and not _ID_PATTERN.fullmatch(text):
            problem = f"{name} is over 256 characters, or has others than ASCII's visible ones"
            raise StatusError(400, f"{problem}; shorten it")
        ids[name] = text
    trace = headers.get(TRACEPARENT_HEADER, "")
    is_valid = traceparent.parse(trace.encode("latin-1")) is not None
    return RequestIds.create(
        ids[CORRELATION_HEADER], ids[TRACEABILITY_HEADER], trace if is_valid else ""
    )


_INVALID_IDS = "gateway.sidecar.wrong_ids"  # in the ASGI scope: why the ids cannot be used


def check_ids(scope: Scope) -> None:
    """Raise StatusError 400 if `parse_ids` has refused the ids of the request.

    Call it after authentication: a stranger must not learn why a request is invalid.
    """
    refusal: StatusError | None = scope.get(_INVALID_IDS)
    if refusal is not None:
        raise refusal


class RequestIdMiddleware:
    """Make the ids of a request available to its endpoint, its log lines and its response.

    A request with invalid ids gets new ones until `check_ids` refuses it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Whether the client may learn what is wrong with its ids is not known yet.
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
                trace=ids.traceparent[3:35],  # the trace id: 32 digits after the version
            ):
                await self._app(scope, receive, send_wrapper)
        finally:
            _current_ids.reset(token)


EXPIRY_KEY = "gateway.sidecar.expiry"  # in the ASGI scope: as of `get_lifetime`, since 1970


def get_lifetime(scope: Scope) -> float:
    """Return the seconds for which the sender of a request has the right to it, at least 0."""
    expiry: float | None = scope.get(EXPIRY_KEY)
    return math.inf if expiry is None else max(0.0, expiry - time.time())


def check_lifetime(scope: Scope) -> None:
    """Raise StatusError 401 if `get_lifetime` is over. Call it after waits, before an answer."""
    if not get_lifetime(scope):
        raise StatusError(401, "the token has expired; ask again with a new one")


async def wait_for_expiry(scope: Scope) -> None:
    # Not in one piece: the clocks of the event loop and of tokens may drift apart.
    while lifetime_s := get_lifetime(scope):  # noqa: ASYNC110
        await asyncio.sleep(min(lifetime_s, 60.0))


BODY_TIMEOUT_S = 30.0  # for a whole body to arrive
HOLD_BODY_KEY = "gateway.sidecar.hold_body"  # in the ASGI scope: counts the bytes of a request


class ParsedBodyMiddleware:
    """Count in `memory` what bodies take once they are parsed, and their records once encoded.

    Bodies take up to 24 times as many bytes as were sent, while the request waits for metadata, a
    schema, its turn, or Kafka: until it is answered, or calls `release_parsed`. Both are one
    reservation, as the only request may have any size.
    """

    def __init__(self, app: ASGIApp, client_memory: ClientMemory) -> None:
        self._app = app
        self._client_memory = client_memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as held:
            sizes = {"parsed": 0, "encoded": 0}

            def hold_body(**changes: int) -> None:
                sizes.update(changes)
                held.close()
                if size := sum(sizes.values()):
                    held.enter_context(self._client_memory.reserve(HeldPart.PARSED, size))

            scope[HOLD_BODY_KEY] = hold_body
            await self._app(scope, receive, send)


async def read_body(request: Request, max_bytes: int, *, is_kept_parsed: bool = True) -> bytes:
    """Return the whole body, which was not read before.

    It counts as `hold_parsed` does, or as its bytes alone for a caller that does so itself: the
    estimate takes a tenth of the time of a request that writes 100 records.

    Raises:
        MemoryFull: Too many others are being handled.
        StatusError: 400 if the client disconnects, 408 if it takes longer than `BODY_TIMEOUT_S`,
            413 if it is too large, 415 if it has a content coding.
    """
    check_content_coding(request)
    # Refused before it is read; a chunked body has no length, and is counted while it is read.
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise create_too_large(max_bytes)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            data = await _collect_body(request, max_bytes)
    except TimeoutError:
        raise StatusError(408, "the body did not arrive in time; send it again") from None
    except ClientDisconnect:
        raise StatusError(400, "the body is not complete; send it again") from None
    if is_kept_parsed:
        hold_parsed(request, data)
    else:
        request.scope[HOLD_BODY_KEY](parsed=len(data))
    return data


def hold_parsed(request: Request, data: bytes) -> None:
    """Count a body as parsed until the request is answered; raises MemoryFull."""
    request.scope[HOLD_BODY_KEY](parsed=estimate_parsed_bytes(data))


def release_parsed(request: Request) -> None:
    """Count the parsed body no more: it is freed, though the request goes on."""
    request.scope[HOLD_BODY_KEY](parsed=0)


def hold_encoded(request: Request, size: int) -> None:
    """Count what records became until the request is answered; raises MemoryFull."""
    request.scope[HOLD_BODY_KEY](encoded=size)


def check_content_coding(request: Request) -> None:
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        raise StatusError(415, f"Content-Encoding {coding[:40]} is not read here; send it as it is")


def create_too_large(max_bytes: int) -> StatusError:
    return StatusError(413, f"the body is over {max_bytes} bytes; send fewer records at once")


async def _collect_body(request: Request, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    remaining = max_bytes
    async for chunk in request.stream():
        remaining -= len(chunk)
        if remaining < 0:
            raise create_too_large(max_bytes)
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


T = TypeVar("T")

# Asks our own server to report the end of the client's input as a disconnect; the name is that of
# gateway/web/http/transport.py.
DISCONNECT_AT_EOF = "gateway.gone_at_eof"


async def wait_for_disconnect(scope: Scope, receive: Receive) -> None:
    """Drop the body of a request that was not read, and return when its client has disconnected."""
    scope.setdefault("extensions", {})[DISCONNECT_AT_EOF] = True
    while (await receive())["type"] != "http.disconnect":
        pass


async def run_for_client(
    request: Request, draining: asyncio.Event, work: Coroutine[Any, Any, T]
) -> T | None:
    """Return the result of work; None if the client leaves or the sidecar ends before there is one.

    StatusError 401 is raised if the client's token expires before that. The work is cancelled then,
    and has ended when this returns.
    """
    scope = request.scope
    disconnect = wait_for_disconnect(scope, request.receive)
    try:
        result = await run_unless(work, draining.wait(), disconnect, wait_for_expiry(scope))
    except Interrupted:
        result = None
    check_lifetime(scope)
    return result
