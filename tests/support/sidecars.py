"""The sidecar in the test's own loop, asked over a socket, with the gateway's own edge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from support.gateways import config_for
from support.in_process import in_process

from gateway.cli.beside import sidecar


@asynccontextmanager
async def running_sidecar(
    bootstrap: str | Iterable[str],
    *,
    guards: Any = None,
    catalogs: Any = None,
    listen: Any = None,
    security: Any = None,
    **sections: Any,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of it. sections: of `sidecar`, empty ones too. security: of `kafka`."""
    kafka = None if security is None else {"security": security}
    beside = {"guards": guards, "catalogs": catalogs, "listen": listen, "kafka": kafka}
    more = {name: section for name, section in beside.items() if section is not None}
    config = config_for(bootstrap, [], [], sidecar=sections, **more)
    async with (
        in_process(config, beside=sidecar) as (url, _),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60.0) as http,
    ):
        yield http


async def ready(http: httpx.AsyncClient, within: float = 60.0) -> None:
    """Until it says that it can serve."""
    last = ""
    try:
        async with asyncio.timeout(within):
            while True:
                answer = await http.get("/health/readiness")
                if answer.status_code == 200:
                    return
                last = answer.text
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not ready: {last}") from None
