"""Read request bodies within limits, also under servers that set none."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.client_memory import ClientMemory, HeldPart, estimate_parsed_bytes

from .status import StatusError

BODY_TIMEOUT_S = 30.0  # for a whole body to arrive
HOLD_PARSED_KEY = "gateway.sidecar.hold_parsed"  # in the ASGI scope: counts a body that was read


class ParsedBodyMiddleware:
    """Count in `memory` what bodies take once they are parsed.

    They take up to 24 times as many bytes as were sent, while the request waits for metadata, a
    schema, its turn, or Kafka: until it is answered, or calls `release_parsed`.
    """

    def __init__(self, app: ASGIApp, client_memory: ClientMemory) -> None:
        self._app = app
        self._client_memory = client_memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as held:

            def hold_parsed(data: bytes) -> None:
                held.close()
                if data:
                    size = estimate_parsed_bytes(data)
                    held.enter_context(self._client_memory.reserve(HeldPart.PARSED, size))

            scope[HOLD_PARSED_KEY] = hold_parsed
            await self._app(scope, receive, send)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the whole body, which was not read before.

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
    request.scope[HOLD_PARSED_KEY](data)
    return data


def release_parsed(request: Request) -> None:
    """Count the parsed body no more: it is freed, though the request goes on."""
    request.scope[HOLD_PARSED_KEY](b"")


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
