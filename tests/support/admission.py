"""Many clients at once, of addresses of their own: who is let in, and what the others are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack

import httpx
from support.clients.raw import RawClient
from support.gateways import GatewayProcess

RESPONSE_TIMEOUT_S = 60.0
BROWSER_HEADERS = {"Sec-Fetch-Mode": "cors"}


def build_client_headers(address: str, **headers: str) -> dict[str, str]:
    """Headers of a client of this address, behind a proxy."""
    return {"X-Forwarded-For": address, **headers}


async def fetch_response(gateway: GatewayProcess, path: str, **headers: str) -> httpx.Response:
    """For an answer that ends."""
    async with httpx.AsyncClient(trust_env=False, timeout=RESPONSE_TIMEOUT_S) as http:
        return await http.get(gateway.base_url + path, headers=headers)


async def connect_event_sources(
    stack: AsyncExitStack,
    gateway: GatewayProcess,
    path: str,
    headers_by_client: Sequence[dict[str, str]],
) -> list[RawClient]:
    """At once, with these headers; each has a stream, or was told to come back."""
    url = gateway.base_url + path
    made = [RawClient(url, headers={**headers, **BROWSER_HEADERS}) for headers in headers_by_client]
    await asyncio.gather(*(stack.enter_async_context(client) for client in made))
    await asyncio.gather(*(client.wait_for_events(1, RESPONSE_TIMEOUT_S) for client in made))
    return made


def check_admitted(
    clients: Sequence[RawClient], retry_after_bounds: tuple[float, float] = (3, 10)
) -> list[RawClient]:
    """Those that hold a stream; the last words of the others were that the gateway is busy.
    after: seconds, from and to, in which they are to come back."""
    held = [client for client in clients if client.events[-1]["event"] != "end"]
    for client in clients:
        if client not in held:
            assert json.loads(client.events[-1]["data"]) == {"reason": "busy"}
            assert retry_after_bounds[0] <= client.reconnect_delay <= retry_after_bounds[1]
        assert not client.is_closed, "any other status would have ended it for good"
    return held


async def check_refused(
    gateway: GatewayProcess,
    path: str,
    status: int,
    retry_after_bounds: tuple[float, float] = (3, 10),
    **headers: str,
) -> None:
    """A program is told so, and when to come back."""
    answer = await fetch_response(gateway, path, **headers)
    assert (answer.status_code, answer.json()["title"]) == (status, "Busy"), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert retry_after_bounds[0] <= int(answer.headers["retry-after"]) <= retry_after_bounds[1] + 1
