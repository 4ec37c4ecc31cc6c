"""Send more than one core can write, while 10,000 more clients come at once than are admitted.

The clients that were there before get everything; their latency is shown for each second. Of those
that come, as many are admitted as `listen.limits.connections` allows, and the others are to get 503
with `Retry-After`. When the load has ended, records are sent at the pace of before until they are
as quick as before. All clients are one process, which is busy itself: what it measures while 10,000
come includes its own delay.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import httpx

from ..client_pool import CLIENTS_PER_ADDRESS, ClientPool, connect_client
from ..feed import send_steadily
from ..kafka import Kafka
from ..machine import get_pss_bytes, measure_cost
from ..peers.peer import Peer, RunningServer, ServerShape, build_sse_request
from ..records import parse_time
from ..results import Cell, quantile
from .work import open_pool, wait_until_quiet

FIRST_VISITOR_ADDRESS = 100  # of the loopback's, which the other clients do not come from
PROBE_INTERVAL_S = 0.25  # between two looks at memory and readiness
PROBE_TIMEOUT_S = 30.0
NORMAL_FACTOR, NORMAL_SLACK_S = 2.0, 0.05  # latency that counts as that of before
RECOVERY_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Size:
    """spare_clients: of those that come, so many are admitted. Rates are in records a second."""

    clients: int = 1000
    spare_clients: int = 500
    arriving_clients: int = 10_000
    calm_rate: float = 20.0
    calm_s: float = 3.0
    load_rate: float = 3000.0
    load_s: float = 6.0
    timed_every: int = 20


@dataclass
class Probes:
    """most_bytes: of memory. longest_ready_s: that /health/ready took."""

    most_bytes: int = 0
    longest_ready_s: float = 0.0


@dataclass
class Visit:
    """One that comes: how that was answered, and how long it took. status 0: not at all."""

    status: bytes = b"0"
    has_retry_after: bool = False
    seconds: float = 0.0


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    case = f"{size.clients:,} x {size.load_rate:,g}/s, {size.arriving_clients:,} come"
    shape = ServerShape(connections=size.clients + size.spare_clients)
    async with (
        peer.serve(kafka, shape) as server,
        open_pool(server, peer, size.clients, timed_every=size.timed_every) as pool,
    ):
        before = {client: client.record_count for client in pool.clients}
        sent_before, memory = server.feed.sent_count, get_pss_bytes(server.pid)
        calm_s = await _measure_calm(cell, case, server, pool, size)
        async with _probing(server) as probes:
            with measure_cost(server.pid) as cost:
                visits = await _measure_load(cell, case, server, pool, size)
            recovered_s = await _wait_until_normal(server, pool, calm_s, size)
        sent = server.feed.sent_count - sent_before
        await pool.wait_for_records(sum(before.values()) + sent * size.clients, silence_s=5.0)
        await wait_until_quiet(pool.get_record_count)
        surplus = [client.record_count - before[client] - sent for client in pool.clients]
    _add_visits(cell, case, visits)
    cell.add_row(case, "of a core", "%", 100 * cost.cpu_s / cost.wall_s)
    cell.add_row(case, "memory more at most", "MB", (probes.most_bytes - memory) / 1e6)
    cell.add_row(case, "longest readiness", "s", probes.longest_ready_s)
    cell.add_row(case, "normal again", "s", recovered_s)
    cell.add_row(case, "lost", "", -sum(min(0, each) for each in surplus))
    cell.add_row(case, "twice", "", sum(max(0, each) for each in surplus))
    cell.add_cost_notes(case, [cost])
    return cell


async def _measure_calm(
    cell: Cell, case: str, server: RunningServer, pool: ClientPool, size: Size
) -> float:
    """The 99th percentile of latency before the load, in seconds."""
    due = pool.record_count + size.clients * int(size.calm_rate * size.calm_s)
    await send_steadily(server.feed, size.calm_rate, size.calm_s)
    await pool.wait_for_records(due, silence_s=2.0)
    calm = pool.compute_latencies()
    pool.arrivals.clear()
    cell.add_times(f"{case}, before", [calm])
    return quantile(calm, 0.99)


async def _measure_load(
    cell: Cell, case: str, server: RunningServer, pool: ClientPool, size: Size
) -> Sequence[Visit]:
    began = time.monotonic()
    load = asyncio.create_task(send_steadily(server.feed, size.load_rate, size.load_s))
    await asyncio.sleep(size.load_s / 3)
    visits = await asyncio.gather(*(_visit(server.port, n) for n in range(size.arriving_clients)))
    await load
    cell.add_times(f"{case}, load", [pool.compute_latencies()])
    by_second: Mapping[int, list[float]] = defaultdict(list)
    for at, found in pool.arrivals:
        by_second[int(at - began)] += [at - parse_time(made) for made, _ in found]
    series = ", ".join(
        f"{1000 * quantile(by_second[n], 0.5):.0f}/{1000 * quantile(by_second[n], 0.99):.0f}"
        for n in sorted(by_second)
    )
    cell.add_note(f"{case}: latency p50/p99 of each second of load, in ms: {series}")
    return visits


async def _visit(port: int, number: int) -> Visit:
    """Come, and leave with the answer."""
    client, began = ClientPool().create_client(build_sse_request("/all")), time.monotonic()
    address = FIRST_VISITOR_ADDRESS + number // CLIENTS_PER_ADDRESS
    with suppress(OSError, TimeoutError):  # with an answer, or without
        await connect_client(client, port, address)
        client.transport.abort()
    head = client.opening_bytes.partition(b"\r\n\r\n")[0].lower()
    if not head:
        return Visit()
    has_retry_after = b"\r\nretry-after: " in head
    return Visit(head.split(b" ", 2)[1], has_retry_after, time.monotonic() - began)


def _add_visits(cell: Cell, case: str, visits: Sequence[Visit]) -> None:
    counts = Counter(each.status for each in visits)
    refused = [each for each in visits if each.status == b"503"]
    cell.add_row(case, "admitted", "", counts[b"200"])
    cell.add_row(case, "refused", "", len(refused))
    cell.add_row(
        case, "refused without Retry-After", "", sum(not v.has_retry_after for v in refused)
    )
    cell.add_row(case, "without an answer", "", counts[b"0"])
    cell.add_row(case, "last answer", "s", max(each.seconds for each in visits))


async def _wait_until_normal(
    server: RunningServer, pool: ClientPool, calm_s: float, size: Size
) -> float:
    """Seconds from the end of the load until a record is as quick to all as before."""
    began = time.monotonic()
    while time.monotonic() - began < RECOVERY_TIMEOUT_S:
        pool.arrivals.clear()
        sent_at = time.monotonic()
        await send_steadily(server.feed, size.calm_rate, 1 / size.calm_rate)
        await asyncio.sleep(NORMAL_FACTOR * calm_s + NORMAL_SLACK_S)
        made = [parse_time(at) for _, found in pool.arrivals for at, _ in found]
        if sum(at >= sent_at for at in made) >= size.clients // size.timed_every:
            return sent_at - began
    return RECOVERY_TIMEOUT_S


@asynccontextmanager
async def _probing(server: RunningServer) -> AsyncIterator[Probes]:
    probes = Probes()

    async def probe_forever(http: httpx.AsyncClient) -> None:
        while True:
            probes.most_bytes = max(probes.most_bytes, get_pss_bytes(server.pid))
            began = time.monotonic()
            await http.get(f"http://127.0.0.1:{server.port}/health/ready")
            probes.longest_ready_s = max(probes.longest_ready_s, time.monotonic() - began)
            await asyncio.sleep(PROBE_INTERVAL_S)

    async with httpx.AsyncClient(trust_env=False, timeout=PROBE_TIMEOUT_S) as http:
        task = asyncio.create_task(probe_forever(http))
        try:
            yield probes
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
