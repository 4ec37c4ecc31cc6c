"""The same records over more partitions: ids grow with them, until not every event has one.

A thousand at once, and the next when the last client has them: more would be about clients that
fall behind. 500 clients, one of which reads every byte. Record bytes are those of values, without
what is around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from support.until import until

from ..crowd import PATIENCE, Crowd
from ..exact import Exact
from ..figure import median
from ..kafka import Kafka
from ..machine import Cost, cost
from ..peers.peer import Peer, Served, Shape
from ..records import SIZE
from .work import Cell, alone, crowd_of, quiet, reader_of

MB = 1e6
USUAL = 12  # what more partitions are compared with


@dataclass(frozen=True)
class Size:
    partitions: Sequence[int] = (1, 12, 100, 1000)
    clients: int = 500
    at_once: int = 1000
    rounds: int = 4
    repeats: int = 5


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell, usual = Cell(), 0.0
    for partitions in size.partitions:
        case = f"{partitions:,} partitions"
        with alone(cell, case):
            rate = await _case(cell, case, kafka, peer, partitions, size)
            if partitions == USUAL:
                usual = rate
            elif usual:
                cell.add(case, f"of {USUAL} partitions", "", rate / usual)
    return cell


async def _case(
    cell: Cell, case: str, kafka: Kafka, peer: Peer, partitions: int, size: Size
) -> float:
    """MB of values of a CPU second."""
    async with (
        peer.serve(kafka, Shape(partitions)) as served,
        crowd_of(served, peer, size.clients - 1, partitions=partitions) as crowd,
        reader_of(served, peer, partitions) as reader,
    ):
        await quiet(crowd.count)
        costs, had, ids, before = list[Cost](), reader.got, reader.ids, reader.bytes
        for _ in range(size.repeats):
            with cost(served.pid) as spent:
                for _ in range(size.rounds):
                    await _round(served, crowd, reader, size.at_once)
            costs.append(spent)
        records = reader.got - had
    bulk = SIZE * size.at_once * size.rounds * size.clients / MB
    rates = [bulk / c.cpu for c in costs]
    cell.add(case, "record bytes of a CPU second", "MB/s", *rates)
    cell.add(case, "record bytes of a second", "MB/s", *(bulk / c.wall for c in costs))
    cell.add(case, "bytes of a delivery", "bytes", (reader.bytes - before) / records)
    cell.add(case, "ids of 100 records", "", 100 * (reader.ids - ids) / records)
    cell.watch(case, costs)
    return median(rates)


async def _round(served: Served, crowd: Crowd, reader: Exact, count: int) -> None:
    due, own = crowd.got + count * len(crowd), reader.got + count
    for _ in range(count):
        served.feed.send()
    if not await crowd.until(due):
        ended = f"{crowd.lost} connections ended"
        why = ended if crowd.lost else f"nothing came for {PATIENCE:g} s"
        raise TimeoutError(f"{due - crowd.got} deliveries did not come: {why}")
    await until(partial(reader.has, own))
