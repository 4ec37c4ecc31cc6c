"""What a client that gets nothing costs in memory: of PSS, what so many of them add."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..crowd import Crowd
from ..kafka import Kafka
from ..machine import cost, pss
from ..peers.peer import Peer, Shape
from .work import Cell, join, warm


@dataclass(frozen=True)
class Size:
    """before: clients that are there before the rest, so that what is made once is made."""

    clients: int = 5000
    before: int = 50
    settle: float = 3.0


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell, count = Cell(), min(size.clients, peer.most) - size.before
    async with peer.serve(kafka, Shape()) as served, Crowd() as crowd:
        await join(crowd, served, peer, size.before)
        await warm(served, crowd.count, size.before)
        before = pss(served.pid)
        await join(crowd, served, peer, count)
        await asyncio.sleep(size.settle)
        grown = pss(served.pid) - before
        with cost(served.pid) as spent:
            await asyncio.sleep(size.settle)
    case = f"{count + size.before:,} clients"
    cell.add(case, "PSS of a client", "KB", grown / count / 1024)
    cell.add(case, "idle, of a core", "%", 100 * spent.cpu / spent.wall)
    return cell
