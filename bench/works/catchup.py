"""Cut clients and let them resume: check that they get all they missed once, and what that costs.

`cut` is a network that fails for a moment while the server keeps running; `restart` a server that
knows only what the clients send it; `deploy` more clients and more records behind. Records are
produced meanwhile. A client is done when it has all that it missed and one record made since.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import psutil
from support.kafka_proxy import ApiKey, KafkaProxy

from ..client_pool import connect_ledgers
from ..feed import sending
from ..goals import LAST_WHOLE, READ_SHARE
from ..kafka import Kafka
from ..ledger import Ledger, count_received
from ..machine import Cost, measure_cost
from ..peers.peer import Peer, RunningServer, ServerShape
from ..records import VALUE_BYTES
from ..results import Cell, median
from .work import note_failure, wait_until_quiet, warm_up

BATCH_RECORDS = 50
CATCH_UP_TIMEOUT_S = 60.0  # s; who comes back later than that is not waited for
BYTES_PER_MB = 1e6


@dataclass(frozen=True)
class Case:
    """missed: records behind. restart: the server is ended and started meanwhile."""

    name: str
    clients: int
    missed_records: int
    restarts_server: bool = False
    repeats: int = 1


CASES = (
    Case("cut", 500, 2000, repeats=5),
    Case("restart", 500, 2000, restarts_server=True, repeats=5),
    Case("deploy", 1000, 10_000, restarts_server=True),
)


@dataclass(frozen=True)
class Size:
    cases: Sequence[Case] = CASES
    rate: float = 100.0
    has_proxy: bool = True
    stall_timeout_s: float = 5.0  # without a record that was missed: no more of them will come


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    for case in size.cases:
        with note_failure(cell, case.name):
            await _measure_case(cell, kafka, peer, case, size)
    return cell


async def _measure_case(cell: Cell, kafka: Kafka, peer: Peer, case: Case, size: Size) -> None:
    opening = KafkaProxy.wrap_cluster(kafka.bootstrap_servers) if size.has_proxy else nullcontext()
    async with opening as proxy, peer.serve(kafka, _build_shape(case, proxy)) as served:
        if case.restarts_server and served.restart is None:
            cell.add_note(f"{case.name}: what it keeps is in memory, and gone with a restart")
            return
        clients = [Ledger() for _ in range(case.clients)]
        await connect_ledgers(clients, served.port, served.build_request)
        # A record of every partition, so that each has a token behind which it can be cut.
        await warm_up(served, partial(count_received, clients), len(clients))
        outcomes = list[Outcome]()
        # Where some were not whole the next time would show what is left of this one.
        while len(outcomes) < case.repeats and all(
            len(o.completion_times) == len(clients) for o in outcomes
        ):
            outcomes.append(await _measure_return(case, served, clients, size, proxy))
        _add_rows(cell, case, clients, outcomes)
        for client in clients:
            client.disconnect()


def _build_shape(case: Case, proxy: KafkaProxy | None) -> ServerShape:
    servers = "" if proxy is None else proxy.bootstrap
    return ServerShape(servers=servers, history_records=2 * case.missed_records + 5000)


@dataclass
class Outcome:
    """done: s until each client that ever was whole and live was so. in_time: all that will come
    came. share: what was read from Kafka, of the bytes of the values. peak: bytes of memory."""

    cost: Cost
    completion_times: list[float]
    is_in_time: bool
    lost_records: int
    read_share: float
    fetch_count: int
    peak_bytes: float


async def _measure_return(
    case: Case,
    server: RunningServer,
    clients: list[Ledger],
    size: Size,
    proxy: KafkaProxy | None,
) -> Outcome:
    first, end = await _produce_missed(server, clients, case)
    for client in clients:
        client.expect_records(first, end)
    since, read = time.monotonic(), _get_bytes_read(proxy)
    watching = asyncio.create_task(_watch_peak_memory(server.pid))
    connecting = asyncio.create_task(
        connect_ledgers(clients, server.port, server.build_request, timeout_s=None)
    )
    try:
        async with sending(server.feed, size.rate):
            with measure_cost(server.pid) as spent:
                in_time = await _wait_until_complete(clients, connecting, size.stall_timeout_s)
            read = _get_bytes_read(proxy) - read
            fetches = proxy.count_requests(ApiKey.FETCH, since=since) if proxy else 0
    finally:
        watching.cancel()
        connecting.cancel()
        peak, _ = await asyncio.gather(watching, connecting, return_exceptions=True)
    done = [client.completed_at - since for client in clients if client.completed_at]
    if in_time:
        await wait_until_quiet(partial(count_received, clients), 0.3)
    lost = sum(client.count_lost(first, server.feed.sent_count) for client in clients)
    share = read / (VALUE_BYTES * (server.feed.sent_count - first))
    most = peak if isinstance(peak, float) else 0.0
    return Outcome(spent, done, in_time, lost, share, fetches, most)


def _add_rows(cell: Cell, case: Case, clients: list[Ledger], outcomes: list[Outcome]) -> None:
    """What must not be at all is told of all repeats together."""
    name = f"{case.name}: {case.clients:,} clients, {case.missed_records:,} records"
    last = outcomes[-1]
    left = len(clients) - len(last.completion_times)
    if left:
        within = "" if last.is_in_time else f" within {CATCH_UP_TIMEOUT_S:g} s"
        cell.add_note(f"{case.name}: {left} of {len(clients)} were not whole and live{within}")
    if last.is_in_time:
        cell.add_row(name, "lost", "records", sum(each.lost_records for each in outcomes))
        cell.add_row(name, "twice", "records", sum(client.duplicate_count for client in clients))
        cell.add_row(name, "damaged", "records", sum(client.damaged_count for client in clients))
    cell.add_row(name, "CPU", "s", *(each.cost.cpu_s for each in outcomes))
    if not left:
        times = [each.completion_times for each in outcomes]
        cell.add_row(name, LAST_WHOLE, "s", *map(max, times))
        cell.add_row(name, "whole and live, median", "s", *map(median, times))
    if any(each.read_share for each in outcomes):
        cell.add_row(name, READ_SHARE, "times", *(each.read_share for each in outcomes))
        cell.add_row(name, "fetches", "requests", *(each.fetch_count for each in outcomes))
    most = max(each.peak_bytes for each in outcomes) / BYTES_PER_MB
    cell.add_row(name, "memory at most", "MB", most)
    cell.add_cost_notes(name, [each.cost for each in outcomes])


async def _produce_missed(
    server: RunningServer, clients: list[Ledger], case: Case
) -> tuple[int, int]:
    """The first record that was missed, and the first that was not."""
    for client in clients:
        client.disconnect()
    first = server.feed.sent_count
    # Many at once: what is around a batch is little beside what is in it.
    for sent in range(0, case.missed_records, BATCH_RECORDS):
        server.feed.send(min(BATCH_RECORDS, case.missed_records - sent))
        await asyncio.sleep(0)
    await server.feed.flush()
    end = server.feed.sent_count
    if case.restarts_server:
        assert server.restart is not None
        await server.restart()
    else:
        await asyncio.sleep(0.5)  # what ends the clients' streams is not part of coming back
    return first, end


def _get_bytes_read(proxy: KafkaProxy | None) -> int:
    return sum(broker.bytes_to_client for broker in proxy.brokers) if proxy else 0


async def _wait_until_complete(
    clients: list[Ledger], connecting: asyncio.Task[None], stall_timeout_s: float
) -> bool:
    """Until all are, or everybody has a stream and nothing that was missed has come for a while.
    False if some were still getting theirs after `CATCH_UP_TIMEOUT_S`. Raises OSError if one got
    no stream."""
    left, began = -1, time.monotonic()
    moved = began
    while not all(client.completed_at for client in clients):
        now = sum(client.missing_count for client in clients)
        if now != left:
            left, moved = now, time.monotonic()
        elif connecting.done() and time.monotonic() - moved > stall_timeout_s:
            connecting.result()
            return True
        if time.monotonic() - began > CATCH_UP_TIMEOUT_S:
            return False
        await asyncio.sleep(0.01)
    return True


async def _watch_peak_memory(pid: int) -> float:
    """The most memory that a process had, until cancelled, in bytes."""
    peak = 0.0
    try:
        while True:
            peak = max(peak, float(psutil.Process(pid).memory_info().rss))
            await asyncio.sleep(0.1)
    except (asyncio.CancelledError, psutil.Error):
        return peak
