"""The same records over more partitions: positions grow with them, and above 75 not every event
has one. As fast as it goes, 500 clients; record bytes are those of values, without what is around
them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..figure import median
from ..kafka import Kafka
from ..machine import cost
from ..peers.peer import Peer, Shape
from ..records import SIZE
from .work import Cell, crowd_of

MB = 1e6
USUAL = 12  # what more partitions are compared with


@dataclass(frozen=True)
class Size:
    partitions: Sequence[int] = (1, 12, 100, 1000)
    clients: int = 500
    records: int = 4000
    repeats: int = 3


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell, usual = Cell(), 0.0
    for partitions in size.partitions:
        costs = []
        async with (
            peer.serve(kafka, Shape(partitions)) as served,
            crowd_of(served, peer, size.clients, partitions=partitions) as crowd,
        ):
            received = crowd.bytes
            for _ in range(size.repeats):
                due = crowd.got + size.records * size.clients
                with cost(served.pid) as spent:
                    for _ in range(size.records):
                        served.feed.send()
                    if not await crowd.until(due):
                        raise TimeoutError(f"{due - crowd.got} deliveries never came")
                costs.append(spent)
            received = crowd.bytes - received
        case, each = f"{partitions:,} partitions", size.records * size.clients
        rates = [SIZE * each / MB / c.cpu for c in costs]
        cell.add(case, "record bytes of a CPU second", "MB/s", *rates)
        cell.add(
            case, "record bytes of a second", "MB/s", *(SIZE * each / MB / c.wall for c in costs)
        )
        if partitions == USUAL:
            usual = median(rates)
        elif usual:
            cell.add(case, f"of {USUAL} partitions", "", median(rates) / usual)
        cell.add(case, "bytes of a delivery", "bytes", received / each / size.repeats)
        cell.watch(case, costs)
    return cell
