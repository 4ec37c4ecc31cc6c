"""Records at a constant pace to 200 clients: what a delivery costs, and how late it is.

`lat` is a pace that strains nobody (100 a second); `sat` offers 400,000 deliveries a second. What
was not delivered a moment after the last record was sent is told, and not waited for.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..feed import steadily
from ..kafka import Kafka
from ..machine import cost
from ..peers.peer import Peer, Shape
from .work import PER_CPU, PER_SECOND, Cell, crowd_of


@dataclass(frozen=True)
class Size:
    """timed: one of how many clients looks when each record comes. grace: s."""

    clients: int = 200
    rate: float = 100.0
    seconds: float = 5.0
    timed: int = 1
    repeats: int = 1
    grace: float = 3.0


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    case = f"{size.clients} x {size.rate:g}/s"
    costs, shares, got, late = [], [], [], []
    async with peer.serve(kafka, Shape()) as served:
        for _ in range(size.repeats):
            async with crowd_of(served, peer, size.clients, timed=size.timed) as crowd:
                sent, before = served.feed.sent, crowd.got
                with cost(served.pid) as spent:
                    await steadily(served.feed, size.rate, size.seconds)
                    due = (served.feed.sent - sent) * size.clients
                    await crowd.until(before + due, within=size.grace)
                costs.append(spent)
                got.append(crowd.got - before)
                shares.append(100 * (crowd.got - before) / due)
                late.append(crowd.latencies())
            if shares[-1] < 100:  # the next would get what is left of this one
                break
    cell.add(case, PER_CPU, "1/s", *(n / c.cpu for n, c in zip(got, costs, strict=True)))
    cell.add(case, PER_SECOND, "1/s", *(n / c.wall for n, c in zip(got, costs, strict=True)))
    cell.add(case, "of a core", "%", *(100 * c.cpu / c.wall for c in costs))
    cell.add(case, "delivered in time", "%", *shares)
    cell.latencies(case, late)
    cell.watch(case, costs)
    return cell
