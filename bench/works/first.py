"""From connecting to the first record, one client after the other, while records flow."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..crowd import Crowd
from ..feed import steadily
from ..kafka import Kafka
from ..machine import Cost, cost
from ..peers.peer import Peer, Served, Shape
from .work import Cell, join, warm


@dataclass(frozen=True)
class Size:
    joins: int = 100
    repeats: int = 5
    rate: float = 500.0


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell, costs, found = Cell(), list[Cost](), list[list[float]]()
    async with peer.serve(kafka, Shape()) as served, Crowd() as one:
        await join(one, served, peer, 1)
        await warm(served, one.count, 1)
        flowing = asyncio.create_task(steadily(served.feed, size.rate, 1e9))
        try:
            for _ in range(size.repeats):
                with cost(served.pid) as spent:
                    found.append([await _join(served, peer) for _ in range(size.joins)])
                costs.append(spent)
        finally:
            flowing.cancel()
            await asyncio.gather(flowing, return_exceptions=True)
    case = f"{size.rate:g}/s"
    cell.latencies(case, found)
    cell.watch(case, costs)
    return cell


async def _join(served: Served, peer: Peer) -> float:
    """Seconds from connecting to the first record."""
    async with Crowd() as crowd:
        await join(crowd, served, peer, 1, timed=1)
        if not await crowd.until(1):
            raise TimeoutError("a client that joined got nothing")
        (client,) = crowd.clients
        return client.first_at - client.asked_at
