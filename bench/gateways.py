"""Start the gateway as a real process, with a route /events/TOPIC for each topic."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from support.gateways import GatewayProcess, build_config, build_route, running_gateway_process

CPU_TICK_S = 0.01  # s; CPU time is counted in these


@asynccontextmanager
async def running_bench_gateway(
    servers: str, *topics: str, wait_until_ready: bool = True
) -> AsyncIterator[GatewayProcess]:
    routes = [build_route(topic, "value") for topic in topics]
    async with running_gateway_process(
        build_config(servers, topics, routes), ready=wait_until_ready
    ) as gateway:
        yield gateway


@dataclass
class GatewayCost:
    """cpu: seconds of the gateway's process, wall: of anybody's clock."""

    cpu_s: float = 0.0
    wall_s: float = 0.0


@contextmanager
def measure_cost(gateway: GatewayProcess) -> Iterator[GatewayCost]:
    """What the block cost; filled in at its end."""
    cost, cpu, wall = GatewayCost(), gateway.cpu_seconds, time.monotonic()
    yield cost
    cost.cpu_s, cost.wall_s = max(CPU_TICK_S, gateway.cpu_seconds - cpu), time.monotonic() - wall
