"""Produce records at a constant pace, and measure the cost and the latency of a delivery.

`lat` is a low pace (200 clients, 100 records a second), `sat` offers 400,000 deliveries a second;
in `keys` each of 2,000 clients has its own key, so that a record is one delivery. What was not
delivered a moment after the last record was sent is reported, and not waited for.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..feed import send_steadily
from ..kafka import Kafka
from ..machine import measure_cost
from ..peers.peer import Peer, ServerShape
from ..results import PER_CPU, PER_SECOND, Cell, median
from .work import open_pool

MAX_LAG_S = 0.02  # s
SHARED_NOTE = "it shares its core with the clients and Kafka"


@dataclass(frozen=True)
class Size:
    """timed_every: one of how many clients looks when each record comes. workers: processes of the
    server, each of which reads all records."""

    clients: int = 200
    has_own_keys: bool = False
    rate: float = 100.0
    seconds: float = 5.0
    timed_every: int = 1
    repeats: int = 1
    workers: int = 1
    grace_s: float = 3.0


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    count = min(size.clients, peer.max_clients)
    case = f"{count:,} x {size.rate:,g}/s"
    if size.workers > 1:
        case += f", {size.workers} workers"
    shape = ServerShape(has_own_keys=size.has_own_keys, workers=size.workers)
    costs, shares, got, late, lags = [], [], [], [], []
    async with peer.serve(kafka, shape) as served:
        for _ in range(size.repeats):
            async with open_pool(
                served, peer, count, has_own_keys=size.has_own_keys, timed_every=size.timed_every
            ) as crowd:
                sent, before = served.feed.sent_count, crowd.record_count
                with measure_cost(served.pid) as spent:
                    keys = count if size.has_own_keys else 0
                    lags.append(await send_steadily(served.feed, size.rate, size.seconds, keys))
                    due = (served.feed.sent_count - sent) * (1 if size.has_own_keys else count)
                    await crowd.wait_for_records(before + due, timeout_s=size.grace_s)
                costs.append(spent)
                got.append(crowd.record_count - before)
                shares.append(100 * (crowd.record_count - before) / due)
                late.append(crowd.compute_latencies())
            if shares[-1] < 100:  # the next would get what is left of this one
                break
    cell.add_row(case, PER_CPU, "1/s", *(n / c.cpu_s for n, c in zip(got, costs, strict=True)))
    cell.add_row(case, PER_SECOND, "1/s", *(n / c.wall_s for n, c in zip(got, costs, strict=True)))
    cell.add_row(case, "of a core", "%", *(100 * c.cpu_s / c.wall_s for c in costs))
    cell.add_row(case, "delivered in time", "%", *shares)
    cell.add_times(case, late)
    if (lag := median(lags)) > MAX_LAG_S:
        cell.add_note(f"{case}: the producer was up to {1000 * lag:.0f} ms late; {SHARED_NOTE}")
    cell.add_cost_notes(case, costs)
    return cell
