"""By which names the port of clients may be asked: a page of another name reads nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from support.brokers import embedded_kafka
from support.gateways import (
    GatewayProcess,
    GatewayThread,
    build_config,
    create_http_client,
    running_gateway,
)
from support.multiplex import MultiplexClient
from support.workers import running_workers
from websockets.exceptions import InvalidStatus

from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 1})

EVIL = "rebound.example"
PATHS = ["/events/orders?until=latest", "/guarded", "/health/ready", "/", "/gateway.js", "/metrics"]


@asynccontextmanager
async def gateway_on(
    kafka: EmbeddedKafka, running: Any = running_gateway, **listen: Any
) -> AsyncIterator[GatewayThread | GatewayProcess]:
    routes = [
        {"when": [{"path": "/events/orders"}], "with": {"topic": "orders"}},
        {"when": [{"path": "/guarded"}], "guarded": {"dev": []}, "with": {"topic": "orders"}},
    ]
    users = {"ada": {"token": "token-of-ada"}}
    guards = {"dev": {"type": "inline", "users": users, "exposed": True}}
    config = build_config(kafka.bootstrap, ["orders"], routes, guards=guards, listen=listen)
    async with running(config) as gateway:
        yield gateway


async def status(http: httpx.AsyncClient, host: str, path: str = PATHS[0]) -> int:
    return (await http.get(path, headers={"Host": host})).status_code


async def test_a_page_whose_name_is_made_to_lead_here_reads_nothing(kafka: EmbeddedKafka):
    """The port answered to any Host, so such a page read the routes of this machine."""
    async with gateway_on(kafka) as gateway, create_http_client(gateway) as http:
        port = gateway.base_url.rpartition(":")[2]
        for path in PATHS:
            refused = await http.get(path, headers={"Host": f"{EVIL}:{port}"})
            assert refused.status_code == 421, path
            assert "listen.hosts" in refused.json()["detail"]
        for path in ("/ws", "/events/orders", "/guarded"):
            headers = {"Origin": f"http://{EVIL}:{port}"}
            here: Any = {"host": "127.0.0.1", "port": int(port), "additional_headers": headers}
            with pytest.raises(InvalidStatus) as socket:
                await MultiplexClient(f"http://{EVIL}:{port}", path, **here).__aenter__()
            assert socket.value.response.status_code == 421
        for host in ("localhost", f"127.0.0.1:{port}", "[::1]", "app.localhost:1", "10.1.2.3"):
            assert await status(http, host) == 200, host
        assert await status(http, "10.1.2.3", "/health/ready") == 200, "a probe by address"


@pytest.mark.parametrize(
    "running",
    [running_gateway, pytest.param(running_workers, marks=pytest.mark.needs("process"))],
)
async def test_names_are_those_that_are_listed(kafka: EmbeddedKafka, running: Any):
    hosts = ["shop.example"]
    async with (
        gateway_on(kafka, running, hosts=hosts, forwarded=True) as gateway,
        create_http_client(gateway) as http,
    ):
        for host in ("shop.example", "Shop.Example:443", "localhost"):
            assert await status(http, host) == 200, host
        for host in (EVIL, "shop.example.evil.example", "www.shop.example"):
            assert await status(http, host) == 421, host
