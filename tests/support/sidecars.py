"""The sidecar in the test's own loop, asked over a socket, with the gateway's own edge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from support.gateways import build_config
from support.in_process_gateway import running_in_process_gateway

from gateway.cli.sidecar import create_sidecar


@asynccontextmanager
async def running_sidecar(
    bootstrap: str | Iterable[str],
    *,
    guards: Any = None,
    catalogs: Any = None,
    listen: Any = None,
    security: Any = None,
    memory: str | None = None,
    **sections: Any,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of it. sections: of `sidecar`, empty ones too. security: of `kafka`."""
    kafka = None if security is None else {"security": security}
    beside = {"guards": guards, "catalogs": catalogs, "listen": listen, "kafka": kafka}
    beside |= {"memory": memory}
    more = {name: section for name, section in beside.items() if section is not None}
    config = build_config(bootstrap, [], [], sidecar=sections, **more)
    async with (
        running_in_process_gateway(config, co_hosted_app_factory=create_sidecar) as (url, _),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60.0) as http,
    ):
        yield http


async def wait_until_ready(http: httpx.AsyncClient, timeout_s: float = 60.0) -> None:
    """Until it says that it can serve."""
    last = ""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                answer = await http.get("/health/readiness")
                if answer.status_code == 200:
                    return
                last = answer.text
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not ready: {last}") from None
