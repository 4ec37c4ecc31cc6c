"""`decoder.py LIBRARY URL ACCEPT`: print the body of an answer as it comes, decompressed as the
library does by itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping


def print_with_requests(url: str, headers: Mapping[str, str]) -> None:
    import requests

    with requests.get(url, headers=headers, stream=True) as answer:
        answer.raise_for_status()
        for piece in answer.iter_content(None):
            write_piece(piece)


def print_with_aiohttp(url: str, headers: Mapping[str, str]) -> None:
    asyncio.run(_print_with_aiohttp(url, headers))


async def _print_with_aiohttp(url: str, headers: Mapping[str, str]) -> None:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as http,
        http.get(url, headers=headers) as answer,
    ):
        async for piece in answer.content.iter_any():
            write_piece(piece)


def write_piece(piece: bytes) -> None:
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


PRINTERS = {"aiohttp": print_with_aiohttp, "requests": print_with_requests}

if __name__ == "__main__":
    library, url, accept = sys.argv[1:]
    PRINTERS[library](url, {"Accept": accept})
