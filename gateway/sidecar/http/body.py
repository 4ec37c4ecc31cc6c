"""The body of a request, within its bound, also under servers that have none."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from .status import StatusError

BODY_TIMEOUT_S = 30.0  # seconds for a body to come


async def read_body(request: Request, max_bytes: int) -> bytes:
    """All of it. most: bytes. Raises Refusal 400, 408, 413, 415."""
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        raise StatusError(415, f"Content-Encoding {coding[:40]} is not read here; send it as it is")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise create_too_large(max_bytes)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _collect_body(request, max_bytes)
    except TimeoutError:
        raise StatusError(408, "the body did not come; send it again") from None
    except ClientDisconnect:
        raise StatusError(400, "the body is not complete; send it again") from None


def create_too_large(max_bytes: int) -> StatusError:
    return StatusError(413, f"the body is over {max_bytes} bytes; send fewer records at once")


async def _collect_body(request: Request, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    left = max_bytes
    async for piece in request.stream():
        left -= len(piece)
        if left < 0:
            raise create_too_large(max_bytes)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
