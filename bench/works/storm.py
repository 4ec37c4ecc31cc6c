"""Everybody connects at once: how long until the last has its first block, and what a client costs.

256 connects are under way at a time. The server has read the topic before: one client is there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..crowd import Crowd
from ..kafka import Kafka
from ..machine import cost
from ..peers.peer import Peer, Shape
from .work import Cell, join, quiet, warm


@dataclass(frozen=True)
class Size:
    """settle: s, for the end of one crowd before the next."""

    clients: int = 5000
    repeats: int = 5
    settle: float = 0.5


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell, count = Cell(), min(size.clients, peer.most)
    costs = []
    async with peer.serve(kafka, Shape()) as served, Crowd() as one:
        await join(one, served, peer, 1)
        await warm(served, one.count, 1)
        for _ in range(size.repeats):
            async with Crowd() as crowd:
                with cost(served.pid) as spent:
                    await join(crowd, served, peer, count)
                costs.append(spent)
            await asyncio.sleep(size.settle)  # the end of these is no part of the next
            await quiet(one.count)
    case = f"{count:,} clients"
    cell.add(case, "last first block", "s", *(c.wall for c in costs))
    cell.add(case, "CPU of a client", "ms", *(1000 * c.cpu / count for c in costs))
    cell.watch(case, costs)
    return cell
