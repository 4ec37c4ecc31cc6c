"""Measure the time from connecting to the first record, one client after the other.

Records are produced meanwhile.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..client_pool import ClientPool
from ..feed import send_steadily
from ..kafka import Kafka
from ..machine import Cost, measure_cost
from ..peers.peer import Peer, RunningServer, ServerShape
from .work import Cell, join_clients, warm_up


@dataclass(frozen=True)
class Size:
    join_count: int = 100
    repeats: int = 5
    rate: float = 500.0


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell, costs, found = Cell(), list[Cost](), list[list[float]]()
    async with peer.serve(kafka, ServerShape()) as served, ClientPool() as one:
        await join_clients(one, served, peer, 1)
        await warm_up(served, one.get_record_count, 1)
        flowing = asyncio.create_task(send_steadily(served.feed, size.rate, 1e9))
        try:
            for _ in range(size.repeats):
                with measure_cost(served.pid) as spent:
                    found.append(
                        [await _measure_join(served, peer) for _ in range(size.join_count)]
                    )
                costs.append(spent)
        finally:
            flowing.cancel()
            await asyncio.gather(flowing, return_exceptions=True)
    case = f"{size.rate:g}/s"
    cell.add_latencies(case, found)
    cell.add_cost_notes(case, costs)
    return cell


async def _measure_join(server: RunningServer, peer: Peer) -> float:
    """Seconds from connecting to the first record."""
    async with ClientPool() as crowd:
        await join_clients(crowd, server, peer, 1, timed_every=1)
        if not await crowd.wait_for_records(1):
            raise TimeoutError("a client that joined got nothing")
        (client,) = crowd.clients
        return client.first_record_at - client.requested_at
