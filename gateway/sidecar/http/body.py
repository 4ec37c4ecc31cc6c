"""The body of a request, within its bound, also under servers that have none."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from .status import Refusal

SLOWEST = 30.0  # seconds for a body to come


async def read(request: Request, most: int) -> bytes:
    """All of it. most: bytes. Raises Refusal 400, 408, 413, 415."""
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        raise Refusal(415, f"Content-Encoding {coding[:40]} is not read here; send it as it is")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise too_large(most)
    try:
        async with asyncio.timeout(SLOWEST):
            return await _pieces(request, most)
    except TimeoutError:
        raise Refusal(408, "the body did not come; send it again") from None
    except ClientDisconnect:
        raise Refusal(400, "the body is not complete; send it again") from None


def too_large(most: int) -> Refusal:
    return Refusal(413, f"the body is over {most} bytes; send fewer records at once")


async def _pieces(request: Request, most: int) -> bytes:
    pieces: list[bytes] = []
    left = most
    async for piece in request.stream():
        left -= len(piece)
        if left < 0:
            raise too_large(most)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
