"""The gateway under measurement: the real process, with a route /events/TOPIC for each topic."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from support.gateways import Gateway, config_for, route, running_gateway

TICK = 0.01  # s; CPU time is counted in these


@asynccontextmanager
async def gateway_of(servers: str, *topics: str, ready: bool = True) -> AsyncIterator[Gateway]:
    routes = [route(topic, "value") for topic in topics]
    async with running_gateway(config_for(servers, topics, routes), ready=ready) as gateway:
        yield gateway


@dataclass
class Spent:
    """cpu: seconds of the gateway's process, wall: of anybody's clock."""

    cpu: float = 0.0
    wall: float = 0.0


@contextmanager
def spent(gateway: Gateway) -> Iterator[Spent]:
    """What the block cost; filled in at its end."""
    cost, cpu, wall = Spent(), gateway.cpu_seconds, time.monotonic()
    yield cost
    cost.cpu, cost.wall = max(TICK, gateway.cpu_seconds - cpu), time.monotonic() - wall
