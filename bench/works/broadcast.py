"""Send a record to every client, and the next when the last client has it: one write per delivery.

`joined` is the same with ten records a time, produced as one batch. Rounds go through Kafka and
back, a few milliseconds apart; servers are compared by the deliveries per second of their CPU time.
A bare loop gets its records without Kafka: its rounds follow each other at once, and are repeated
at a pace.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..client_pool import ClientPool
from ..kafka import Kafka
from ..machine import measure_cost
from ..peers.peer import Peer, RunningServer, ServerShape
from ..results import PACED_SUFFIX, PER_CPU, ROUNDS_PER_SECOND, Cell
from .work import open_pool

DEFAULT_ROUND_RATE = 100.0  # rounds a second, for who is to be paced by nobody


@dataclass(frozen=True)
class Size:
    """batch_records: of a round."""

    clients: Sequence[int] = (200, 1000)
    repeat_s: float = 1.0
    batch_records: int = 1
    repeats: int = 5


async def run(
    kafka: Kafka, peer: Peer, size: Size, round_rates: Mapping[str, float] | None = None
) -> Cell:
    """round_rates: each case is done a second time with so many rounds a second,
    `DEFAULT_ROUND_RATE` where it is not named; None for back to back alone."""
    cell = Cell()
    async with peer.serve(kafka, ServerShape(batch_records=size.batch_records)) as served:
        for clients in size.clients:
            if clients > peer.max_clients:
                cell.add_note(f"not asked to take {clients:,} clients")
                continue
            case = f"{clients:,} clients"
            async with open_pool(served, peer, clients) as crowd:
                await _measure_case(cell, case, served, crowd, size)
                if round_rates is not None:
                    rate = round_rates.get(case, DEFAULT_ROUND_RATE)
                    await _measure_case(cell, case + PACED_SUFFIX, served, crowd, size, rate)
    return cell


async def _measure_case(
    cell: Cell,
    case: str,
    server: RunningServer,
    pool: ClientPool,
    size: Size,
    round_rate: float = 0.0,
) -> None:
    each = size.batch_records * len(pool)
    rounds, costs, before = [], [], pool.byte_count
    for _ in range(size.repeats):
        with measure_cost(server.pid) as spent:
            rounds.append(await _run_rounds(server, pool, size, round_rate))
        costs.append(spent)
    done = list(zip(rounds, costs, strict=True))
    cell.add_row(case, PER_CPU, "1/s", *(n * each / c.cpu_s for n, c in done))
    cell.add_row(case, ROUNDS_PER_SECOND, "1/s", *(n / c.wall_s for n, c in done))
    got = (pool.byte_count - before) / each / sum(rounds)
    cell.add_row(case, "bytes of a delivery", "bytes", got)
    cell.add_cost_notes(case, costs)


async def _run_rounds(
    server: RunningServer, pool: ClientPool, size: Size, round_rate: float
) -> int:
    """How many there were: at most `round_rate` a second; 0 for back to back."""
    ends, count, due = time.monotonic() + size.repeat_s, 0, time.monotonic()
    while (now := time.monotonic()) < ends:
        if round_rate:
            await asyncio.sleep(due - now)
            due = max(due, now - 1 / round_rate) + 1 / round_rate
        server.feed.send(size.batch_records)
        if not await pool.wait_for_records(pool.record_count + size.batch_records * len(pool)):
            raise TimeoutError("a record did not come to everybody")
        count += 1
    return count
