"""Start the gateway as a real process, with a route /events/TOPIC for each topic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from support.gateways import GatewayProcess, build_config, build_route, running_gateway_process


@asynccontextmanager
async def running_bench_gateway(
    servers: str, *topics: str, wait_until_ready: bool = True
) -> AsyncIterator[GatewayProcess]:
    routes = [build_route(topic, "value") for topic in topics]
    async with running_gateway_process(
        build_config(servers, topics, routes), ready=wait_until_ready
    ) as gateway:
        yield gateway
