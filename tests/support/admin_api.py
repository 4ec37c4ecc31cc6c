"""Who asks the port of operators."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from support.gateways import GatewayProcess, GatewayThread

ADMIN_SECTION = {"host": "127.0.0.1", "port": 0}


@asynccontextmanager
async def open_admin_api(
    gateway: GatewayProcess | GatewayThread, headers: Mapping[str, str] | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """Of a gateway that runs with `admin`."""
    assert gateway.admin_url, "it has no port for operators"
    async with httpx.AsyncClient(
        base_url=gateway.admin_url, headers=headers, timeout=60, trust_env=False
    ) as http:
        yield http


async def list_streams(http: httpx.AsyncClient, query_string: str = "") -> list[dict[str, Any]]:
    """All pages of `GET /streams`."""
    found: list[dict[str, Any]] = []
    url: str | None = f"/streams?{query_string}" if query_string else "/streams"
    while url is not None:
        answer = await http.get(url)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert told["missing"] == []
        found += told["streams"]
        url = told["next"]
    return found
