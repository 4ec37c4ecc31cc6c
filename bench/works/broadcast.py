"""One record to every client, and the next when the last client has it: a write a delivery.

`joined` is the same with ten records a time, produced as one batch. The clock runs through Kafka
and back in every round, so that deliveries of a second are those of a whole way; what compares
servers is what a CPU second of theirs delivers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..crowd import Crowd
from ..kafka import Kafka
from ..machine import cost
from ..peers.peer import Peer, Served, Shape
from .work import PER_CPU, PER_SECOND, Cell, crowd_of


@dataclass(frozen=True)
class Size:
    """seconds: of one repeat; far more CPU time than its clock's tick of 10 ms."""

    clients: Sequence[int] = (200, 1000)
    seconds: float = 1.0
    joined: int = 1
    repeats: int = 5


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    async with peer.serve(kafka, Shape(joined=size.joined)) as served:
        for clients in size.clients:
            if clients > peer.most:
                cell.note(f"not asked to take {clients:,} clients")
                continue
            async with crowd_of(served, peer, clients) as crowd:
                counts, costs = [crowd.got], []
                before = crowd.bytes
                for _ in range(size.repeats):
                    with cost(served.pid) as spent:
                        await _rounds(served, crowd, size)
                    counts.append(crowd.got)
                    costs.append(spent)
                sent = (crowd.bytes - before) / (counts[-1] - counts[0])
            got = [after - before for before, after in pairwise(counts)]
            case = f"{clients:,} clients"
            cell.add(case, PER_CPU, "1/s", *(n / c.cpu for n, c in zip(got, costs, strict=True)))
            cell.add(
                case, PER_SECOND, "1/s", *(n / c.wall for n, c in zip(got, costs, strict=True))
            )
            cell.add(case, "bytes of a delivery", "bytes", sent)
            cell.watch(case, costs)
    return cell


async def _rounds(served: Served, crowd: Crowd, size: Size) -> None:
    ends = time.monotonic() + size.seconds
    while time.monotonic() < ends:
        served.feed.send(size.joined)
        if not await crowd.until(crowd.got + size.joined * len(crowd)):
            raise TimeoutError("a record did not come to everybody")
