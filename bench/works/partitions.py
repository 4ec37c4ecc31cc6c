"""Deliver the same records over more and more partitions: ids grow until not every event has one.

A thousand are produced at once, and the next when the last client has them: more would measure
clients that fall behind. There are 500 clients, one of which reads every byte. Record bytes are
those of values, without framing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from support.waiting import wait_until

from ..client_pool import CLIENT_TIMEOUT_S, ClientPool
from ..kafka import Kafka
from ..ledger import Ledger
from ..machine import Cost, measure_cost
from ..peers.peer import Peer, RunningServer, ServerShape
from ..records import VALUE_BYTES
from ..results import Cell, median
from .work import note_failure, open_pool, open_reader, wait_until_quiet

BYTES_PER_MB = 1e6
BASE_PARTITIONS = 12  # what more partitions are compared with


@dataclass(frozen=True)
class Size:
    partitions: Sequence[int] = (1, 12, 100, 1000)
    clients: int = 500
    round_records: int = 1000
    rounds: int = 4
    repeats: int = 5


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell, usual = Cell(), 0.0
    for partitions in size.partitions:
        case = f"{partitions:,} partitions"
        with note_failure(cell, case):
            rate = await _measure_case(cell, case, kafka, peer, partitions, size)
            if partitions == BASE_PARTITIONS:
                usual = rate
            elif usual:
                cell.add_row(case, f"of {BASE_PARTITIONS} partitions", "", rate / usual)
    return cell


async def _measure_case(
    cell: Cell, case: str, kafka: Kafka, peer: Peer, partitions: int, size: Size
) -> float:
    """MB of values of a CPU second."""
    async with (
        peer.serve(kafka, ServerShape(partitions)) as served,
        open_pool(served, peer, size.clients - 1, partitions=partitions) as crowd,
        open_reader(served, partitions) as reader,
    ):
        await wait_until_quiet(crowd.get_record_count)
        costs = list[Cost]()
        had, ids, before = reader.record_count, reader.id_count, reader.byte_count
        for _ in range(size.repeats):
            with measure_cost(served.pid) as spent:
                for _ in range(size.rounds):
                    await _run_round(served, crowd, reader, size.round_records)
            costs.append(spent)
        records = reader.record_count - had
    bulk = VALUE_BYTES * size.round_records * size.rounds * size.clients / BYTES_PER_MB
    rates = [bulk / c.cpu_s for c in costs]
    cell.add_row(case, "record bytes of a CPU second", "MB/s", *rates)
    cell.add_row(case, "record bytes of a second", "MB/s", *(bulk / c.wall_s for c in costs))
    cell.add_row(case, "bytes of a delivery", "bytes", (reader.byte_count - before) / records)
    cell.add_row(case, "ids of 100 records", "", 100 * (reader.id_count - ids) / records)
    cell.add_cost_notes(case, costs)
    return median(rates)


async def _run_round(server: RunningServer, pool: ClientPool, reader: Ledger, count: int) -> None:
    due, own = pool.record_count + count * len(pool), reader.record_count + count
    for _ in range(count):
        server.feed.send()
    if not await pool.wait_for_records(due):
        ended = f"{pool.closed_count} connections ended"
        why = ended if pool.closed_count else f"nothing came for {CLIENT_TIMEOUT_S:g} s"
        raise TimeoutError(f"{due - pool.record_count} deliveries did not come: {why}")
    await wait_until(partial(reader.has_received, own))
