"""Measure the memory of a client that gets nothing: the growth of PSS by many of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..client_pool import ClientPool
from ..kafka import Kafka
from ..machine import get_pss_bytes, measure_cost
from ..peers.peer import Peer, ServerShape
from ..results import Cell
from .work import join_clients, warm_up


@dataclass(frozen=True)
class Size:
    """first_clients: that are there before the rest, so that what is made once is made."""

    clients: int = 5000
    first_clients: int = 50
    settle_s: float = 3.0


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell, count = Cell(), min(size.clients, peer.max_clients) - size.first_clients
    async with peer.serve(kafka, ServerShape()) as served, ClientPool() as crowd:
        await join_clients(crowd, served, peer, size.first_clients)
        await warm_up(served, crowd.get_record_count, size.first_clients)
        before = get_pss_bytes(served.pid)
        await join_clients(crowd, served, peer, count)
        await asyncio.sleep(size.settle_s)
        grown = get_pss_bytes(served.pid) - before
        with measure_cost(served.pid) as spent:
            await asyncio.sleep(size.settle_s)
    case = f"{count + size.first_clients:,} clients"
    cell.add_row(case, "PSS of a client", "KB", grown / count / 1024)
    cell.add_row(case, "idle, of a core", "%", 100 * spent.cpu_s / spent.wall_s)
    return cell
