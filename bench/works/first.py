"""From connecting to the first record, one client after the other, while records flow."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..crowd import Crowd
from ..feed import steadily
from ..kafka import Kafka
from ..machine import cost
from ..peers.peer import Peer, Shape
from .work import Cell, join, warm


@dataclass(frozen=True)
class Size:
    joins: int = 200
    rate: float = 500.0


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell, found = Cell(), []
    joins = min(size.joins, peer.most)
    async with peer.serve(kafka, Shape()) as served, Crowd() as one:
        await join(one, served, peer, 1)
        await warm(served, one)
        flowing = asyncio.create_task(steadily(served.feed, size.rate, 1e9))
        try:
            with cost(served.pid) as spent:
                for _ in range(joins):
                    async with Crowd() as crowd:
                        await join(crowd, served, peer, 1, timed=1)
                        if not await crowd.until(1):
                            raise TimeoutError("a client that joined got nothing")
                        (client,) = crowd.clients
                        found.append(client.first_at - client.asked_at)
        finally:
            flowing.cancel()
            await asyncio.gather(flowing, return_exceptions=True)
    case = f"{size.rate:g}/s"
    cell.latencies(case, [found])
    cell.watch(case, [spent])
    return cell
