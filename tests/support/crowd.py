"""Many clients at once, of addresses of their own: who is let in, and what the others are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack

import httpx
from support.clients.raw import RawClient
from support.gateways import Gateway

WITHIN = 60.0
BROWSER = {"Sec-Fetch-Mode": "cors"}


def of(address: str, **headers: str) -> dict[str, str]:
    """Headers of a client of this address, behind a proxy."""
    return {"X-Forwarded-For": address, **headers}


async def ask(gateway: Gateway, path: str, **headers: str) -> httpx.Response:
    """For an answer that ends."""
    async with httpx.AsyncClient(trust_env=False, timeout=WITHIN) as http:
        return await http.get(gateway.base_url + path, headers=headers)


async def event_sources(
    stack: AsyncExitStack, gateway: Gateway, path: str, every: Sequence[dict[str, str]]
) -> list[RawClient]:
    """At once, with these headers; each has a stream, or was told to come back."""
    url = gateway.base_url + path
    made = [RawClient(url, headers={**headers, **BROWSER}) for headers in every]
    await asyncio.gather(*(stack.enter_async_context(client) for client in made))
    await asyncio.gather(*(client.wait(1, WITHIN) for client in made))
    return made


def let_in(made: Sequence[RawClient], after: tuple[float, float] = (3, 10)) -> list[RawClient]:
    """Those that hold a stream; the last words of the others were that the gateway is busy.
    after: seconds, from and to, in which they are to come back."""
    held = [client for client in made if client.events[-1]["event"] != "end"]
    for client in made:
        if client not in held:
            assert json.loads(client.events[-1]["data"]) == {"reason": "busy"}
            assert after[0] <= client.retry <= after[1]
        assert not client.closed, "any other status would have ended it for good"
    return held


async def refused(
    gateway: Gateway, path: str, status: int, after: tuple[float, float] = (3, 10), **headers: str
) -> None:
    """A program is told so, and when to come back."""
    answer = await ask(gateway, path, **headers)
    assert (answer.status_code, answer.json()["title"]) == (status, "Busy"), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert after[0] <= int(answer.headers["retry-after"]) <= after[1] + 1
