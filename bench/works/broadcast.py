"""One record to every client, and the next when the last client has it: a write a delivery.

`joined` is the same with ten records a time, produced as one batch. Rounds go through Kafka and
back, a few milliseconds apart; what compares servers is what a CPU second of theirs delivers. A
loop that is told what to write has no Kafka in between: its rounds are back to back, and once more
at a pace.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..crowd import Crowd
from ..kafka import Kafka
from ..machine import cost
from ..peers.peer import Peer, Served, Shape
from .work import PACED, PER_CPU, ROUNDS, Cell, crowd_of

USUAL = 100.0  # rounds a second, for who is to be paced by nobody


@dataclass(frozen=True)
class Size:
    """seconds: of one repeat. joined: records of a round."""

    clients: Sequence[int] = (200, 1000)
    seconds: float = 1.0
    joined: int = 1
    repeats: int = 5


async def run(
    kafka: Kafka, peer: Peer, size: Size, pace: Mapping[str, float] | None = None
) -> Cell:
    """pace: each case is done a second time with so many rounds a second, `USUAL` where it is not
    named; None for back to back alone."""
    cell = Cell()
    async with peer.serve(kafka, Shape(joined=size.joined)) as served:
        for clients in size.clients:
            if clients > peer.most:
                cell.note(f"not asked to take {clients:,} clients")
                continue
            case = f"{clients:,} clients"
            async with crowd_of(served, peer, clients) as crowd:
                await _case(cell, case, served, crowd, size)
                if pace is not None:
                    rate = pace.get(case, USUAL)
                    await _case(cell, case + PACED, served, crowd, size, rate)
    return cell


async def _case(
    cell: Cell, case: str, served: Served, crowd: Crowd, size: Size, rate: float = 0.0
) -> None:
    each = size.joined * len(crowd)
    rounds, costs, before = [], [], crowd.bytes
    for _ in range(size.repeats):
        with cost(served.pid) as spent:
            rounds.append(await _rounds(served, crowd, size, rate))
        costs.append(spent)
    done = list(zip(rounds, costs, strict=True))
    cell.add(case, PER_CPU, "1/s", *(n * each / c.cpu for n, c in done))
    cell.add(case, ROUNDS, "1/s", *(n / c.wall for n, c in done))
    cell.add(case, "bytes of a delivery", "bytes", (crowd.bytes - before) / each / sum(rounds))
    cell.watch(case, costs)


async def _rounds(served: Served, crowd: Crowd, size: Size, rate: float) -> int:
    """How many there were. rate: at most so many a second; 0 for back to back."""
    ends, count, due = time.monotonic() + size.seconds, 0, time.monotonic()
    while (now := time.monotonic()) < ends:
        if rate:
            await asyncio.sleep(due - now)
            due = max(due, now - 1 / rate) + 1 / rate
        served.feed.send(size.joined)
        if not await crowd.until(crowd.got + size.joined * len(crowd)):
            raise TimeoutError("a record did not come to everybody")
        count += 1
    return count
