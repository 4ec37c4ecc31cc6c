"""Records at a constant pace: what a delivery costs, and how late it is.

`lat` is a pace that strains nobody (200 clients, 100 records a second), `sat` offers 400,000
deliveries a second; in `keys` each of 2,000 clients has its own key, so that a record is one
delivery. What was not delivered a moment after the last record was sent is told, and not
waited for.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..feed import steadily
from ..figure import median
from ..kafka import Kafka
from ..machine import cost
from ..peers.peer import Peer, Shape
from .work import PER_CPU, PER_SECOND, Cell, crowd_of

LATE = 0.02  # s
WHOSE = "it shares its core with the clients and Kafka"


@dataclass(frozen=True)
class Size:
    """keys: each client has its own. timed: one of how many clients looks when each record comes.
    grace: s."""

    clients: int = 200
    keys: bool = False
    rate: float = 100.0
    seconds: float = 5.0
    timed: int = 1
    repeats: int = 1
    grace: float = 3.0


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    count = min(size.clients, peer.most)
    case = f"{count:,} x {size.rate:,g}/s"
    costs, shares, got, late, lags = [], [], [], [], []
    async with peer.serve(kafka, Shape(keys=size.keys)) as served:
        for _ in range(size.repeats):
            async with crowd_of(served, peer, count, keys=size.keys, timed=size.timed) as crowd:
                sent, before = served.feed.sent, crowd.got
                with cost(served.pid) as spent:
                    keys = count if size.keys else 0
                    lags.append(await steadily(served.feed, size.rate, size.seconds, keys))
                    due = (served.feed.sent - sent) * (1 if size.keys else count)
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
    if (lag := median(lags)) > LATE:
        cell.note(f"{case}: the producer was up to {1000 * lag:.0f} ms late; {WHOSE}")
    cell.watch(case, costs)
    return cell
