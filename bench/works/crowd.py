"""Connect as many clients as a process may have sockets: one record to all, a drain, and all back.

The server is one process, and then two workers. Clients come from several loopback addresses. They
are sent a record each second; then the server is ended and started again, records are produced
while nobody is there, and all come back at once with the ids that they had. Each is to have every
record once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from ..client_pool import ClientPool
from ..kafka import Kafka
from ..machine import Cost, get_pss_bytes, measure_cost
from ..peers.peer import Peer, RunningServer, ServerShape
from ..results import Cell, median
from .work import join_clients, note_failure, wait_until_quiet, warm_up

TIMED_EVERY = 50  # one of so many clients is timed
RECORD_INTERVAL_S = 1.0


@dataclass(frozen=True)
class Size:
    """first_clients: that are there before the rest, so that what is made once is made."""

    clients: int = 18_500
    first_clients: int = 50
    worker_counts: Sequence[int] = (1, 2)
    records: int = 5
    missed_records: int = 3


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    for workers in size.worker_counts:
        case = f"{size.clients:,} clients, {workers} worker{'s' if workers > 1 else ''}"
        with note_failure(cell, case):
            async with peer.serve(kafka, ServerShape(workers=workers)) as served:
                await _measure_crowd(cell, case, served, peer, size)
    return cell


async def _measure_crowd(
    cell: Cell, case: str, server: RunningServer, peer: Peer, size: Size
) -> None:
    async with ClientPool(keeps_positions=True) as crowd:
        await join_clients(crowd, server, peer, size.first_clients)
        await warm_up(server, crowd.get_record_count, size.first_clients)
        used, used_by_machine = get_pss_bytes(server.pid), psutil.virtual_memory().used
        count = size.clients - size.first_clients
        with measure_cost(server.pid) as spent:
            await join_clients(crowd, server, peer, count, timed_every=TIMED_EVERY)
        await wait_until_quiet(crowd.get_record_count)
        cell.add_row(case, "connects of a second", "1/s", count / spent.wall_s)
        cell.add_row(case, "CPU of a connect", "ms", 1000 * spent.cpu_s / count)
        used = get_pss_bytes(server.pid) - used
        used_by_machine = psutil.virtual_memory().used - used_by_machine
        cell.add_row(case, "memory of a client", "KB", used / count / 1024)
        cell.add_row(case, "of the machine, for both ends", "KB", used_by_machine / count / 1024)
        await warm_up(server, crowd.get_record_count, size.clients)
        before = [client.record_count for client in crowd.clients]
        await _send_records(cell, case, server, crowd, size)
        gained = [client.record_count for client in crowd.clients]
        live = [after - then - size.records for after, then in zip(gained, before, strict=True)]
        positions, drained, began = await _restart_server(server, crowd, size)
    async with ClientPool(keeps_positions=True) as returned:
        with measure_cost(server.pid) as spent:
            request = server.build_request
            await returned.open_clients(
                server.port, size.clients, lambda n: request(n, positions[n]), peer.greeting
            )
            server.feed.send()
            due = size.missed_records + 1
            await returned.wait_for_records(due * size.clients)
        back = time.monotonic() - began
        await wait_until_quiet(returned.get_record_count)
        missed = [client.record_count - due for client in returned.clients]
        cell.add_row(case, "drained and started again", "s", drained)
        cell.add_row(case, "all back", "s", back)
        cell.add_row(case, "CPU of a return", "ms", 1000 * spent.cpu_s / size.clients)
        surplus = [*live, *missed]
        cell.add_row(case, "lost", "", -sum(min(0, each) for each in surplus))
        cell.add_row(case, "twice", "", sum(max(0, each) for each in surplus))


async def _send_records(
    cell: Cell, case: str, server: RunningServer, crowd: ClientPool, size: Size
) -> None:
    """One at a time to everybody: when the first has it, and the last."""
    costs, firsts, lasts = list[Cost](), list[float](), list[float]()
    for _ in range(size.records):
        await asyncio.sleep(RECORD_INTERVAL_S)
        crowd.arrivals.clear()
        due, sent = crowd.record_count + size.clients, time.monotonic()
        with measure_cost(server.pid) as spent:
            server.feed.send()
            await crowd.wait_for_records(due)
        lasts.append(time.monotonic() - sent)
        firsts.append(min(at for at, _ in crowd.arrivals) - sent)
        costs.append(spent)
    cell.add_row(case, "first delivery", "ms", *(1000 * each for each in firsts))
    cell.add_row(case, "last delivery", "ms", *(1000 * each for each in lasts))
    cell.add_row(case, "CPU of a record", "s", *(each.cpu_s for each in costs))
    if median([each.client_cpu_s / each.wall_s for each in costs]) > 0.9:
        cell.add_note(f"{case}: the clients were the limit of the last delivery")


async def _restart_server(
    server: RunningServer, crowd: ClientPool, size: Size
) -> tuple[Sequence[bytes], float, float]:
    """Where each client stood, how long it took in seconds, and when it began."""
    assert server.restart is not None
    began = time.monotonic()
    await server.restart()
    drained = time.monotonic() - began
    await crowd.wait_for_end()
    for _ in range(size.missed_records):
        server.feed.send()
    await server.feed.flush()
    return [client.get_position() for client in crowd.clients], drained, began
