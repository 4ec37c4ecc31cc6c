"""Connect all clients at once, and measure the last first block and the cost of a client.

256 connects are in progress at a time. The server has read the topic before, for one client.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..client_pool import ClientPool
from ..kafka import Kafka
from ..machine import measure_cost
from ..peers.peer import Peer, ServerShape
from ..results import Cell
from .work import join_clients, wait_until_quiet, warm_up


@dataclass(frozen=True)
class Size:
    """settle_s: for the end of one crowd before the next."""

    clients: int = 5000
    repeats: int = 5
    settle_s: float = 0.5


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell, count = Cell(), min(size.clients, peer.max_clients)
    costs = []
    async with peer.serve(kafka, ServerShape()) as served, ClientPool() as one:
        await join_clients(one, served, peer, 1)
        await warm_up(served, one.get_record_count, 1)
        for _ in range(size.repeats):
            async with ClientPool() as crowd:
                with measure_cost(served.pid) as spent:
                    await join_clients(crowd, served, peer, count)
                costs.append(spent)
            await asyncio.sleep(size.settle_s)  # the end of these is no part of the next
            await wait_until_quiet(one.get_record_count)
    case = f"{count:,} clients"
    cell.add_row(case, "last first block", "s", *(c.wall_s for c in costs))
    cell.add_row(case, "CPU of a client", "ms", *(1000 * c.cpu_s / count for c in costs))
    cell.add_cost_notes(case, costs)
    return cell
