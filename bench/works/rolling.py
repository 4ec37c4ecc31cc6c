"""Restart three replicas one by one behind nginx and behind HAProxy.

A third of the clients each are EventSources over HTTP/1.1, EventSources that share connections over
HTTP/2 as those of a browser do, and WebSockets; all by TLS. Records are written all the time. Each
replica is ended by SIGTERM and started again, and the next one follows when it is ready and its
clients are back. Every client must have every record once, and come back at the time that it was
told, so that no second has much more than its share.

All clients share one process, which bounds the rate: clients that are late come back together. At 2
records a second, 2,000 events for it, one second had up to 2.0 times its share, and at 0.5 a second
1.3 times (nginx, 1,000 clients, two cores with a load of 6 by others).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from support.clients.secure import SecureEventSource, SecureStream, SecureWebSocket
from support.gateways import GatewayProcess, build_config, running_gateway_process
from support.proxies import HaProxy, Nginx, Proxy, running_proxy
from support.scrape import fetch_metrics
from support.waiting import wait_until

from gateway.hub.wires.wire import END_RETRY_RANGE_S

from ..feed import KafkaFeed, sending
from ..kafka import Kafka
from ..peers.peer import Peer
from ..results import Cell

PROXIES: dict[str, type[Proxy]] = {kind.NAME: kind for kind in (Nginx, HaProxy)}
REPLICA_COUNT = 3
STREAMS_OF_A_BROWSER = 30
CONNECTS_AT_ONCE = 50
TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Size:
    """rate: records a second. waits: for all to be back before the next replica is restarted."""

    clients: int = 1000
    rate: float = 0.5
    waits_for_clients: bool = True


@dataclass(frozen=True)
class Restart:
    """One replica's.

    ended: clients that it told to come back. peak: most of them that came in one second, if that
           was waited for.
    told: when it told each to come back, in seconds from then.
    """

    ended_count: int
    peak_count: int
    told_delays_s: Sequence[float]

    @property
    def even_count(self) -> float:
        """How many come back in a second if they are spread evenly."""
        low_s, high_s = END_RETRY_RANGE_S
        return self.ended_count / (high_s - low_s)

    @property
    def told_peak_count(self) -> int:
        """Most of them that are to come in one second."""
        return max(Counter(int(delay_s) for delay_s in self.told_delays_s).values(), default=0)


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    for name, kind in PROXIES.items():
        restarts, lost, twice = await run_rolling_restart(kafka, kind, size)
        case = f"{name}, {size.clients:,} clients"
        cell.add_row(case, "records lost", "", lost)
        cell.add_row(case, "records twice", "", twice)
        evens = [each.even_count for each in restarts]
        told = [each.told_peak_count / even for each, even in zip(restarts, evens, strict=True)]
        came = [each.peak_count / even for each, even in zip(restarts, evens, strict=True)]
        cell.add_row(case, "clients ended", "", *(each.ended_count for each in restarts))
        cell.add_row(case, "most of a second to the even spread, told", "times", *told)
        cell.add_row(case, "the same, as they came", "times", *came)
    return cell


async def run_rolling_restart(
    kafka: Kafka, kind: type[Proxy], size: Size
) -> tuple[list[Restart], int, int]:
    """The restarts, and how many records were lost and came twice, at all clients together."""
    topic = kafka.create_unique_topic(3)
    feed = KafkaFeed(kafka.bootstrap_servers, topic, 3)
    config = build_config(kafka.bootstrap_servers, [topic], listen={"forwarded": ["127.0.0.1"]})
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rolling-")))
        replicas = [
            await stack.enter_async_context(running_gateway_process(config))
            for _ in range(REPLICA_COUNT)
        ]
        ports = [replica.port for replica in replicas]
        proxy = await stack.enter_async_context(running_proxy(kind, folder / "proxy", *ports))
        clients = await stack.enter_async_context(_open_clients(proxy, topic, size.clients))
        stack.callback(feed.close)
        async with sending(feed, size.rate):
            restarts = [await _restart(replica, clients, size) for replica in replicas]
            await _wait_for_return(clients)
        await feed.flush()
        count = feed.sent_count
        await _wait_for_records(clients, count)
        await asyncio.sleep(1.0)  # for what comes twice
        lost = sum(count - len(set(client.records)) for client in clients)
        twice = sum(len(client.records) - len(set(client.records)) for client in clients)
        return restarts, lost, twice


@asynccontextmanager
async def _open_clients(
    proxy: Proxy, topic: str, count: int
) -> AsyncIterator[Sequence[SecureStream]]:
    path, context = f"/events/{topic}", proxy.create_client_context()
    async with AsyncExitStack() as stack:
        http1 = await stack.enter_async_context(proxy.create_http_client(http2=False))
        clients: list[SecureStream] = []
        for number in range(count):
            if number % 3 == 0:
                clients.append(SecureEventSource(http1, path))
            elif number % 3 == 1:
                if (number // 3) % STREAMS_OF_A_BROWSER == 0:
                    http2 = await stack.enter_async_context(proxy.create_http_client())
                clients.append(SecureEventSource(http2, path))
            else:
                clients.append(SecureWebSocket(f"wss://localhost:{proxy.port}{path}", context))
        for first in range(0, count, CONNECTS_AT_ONCE):
            opening = clients[first : first + CONNECTS_AT_ONCE]
            for client in opening:
                await stack.enter_async_context(client)
            await wait_until(
                lambda opening=opening: all(client.events for client in opening),
                lambda opening=opening: opening[0].describe_state(),
                TIMEOUT_S,
            )
        yield clients


async def _restart(replica: GatewayProcess, clients: Sequence[SecureStream], size: Size) -> Restart:
    before = {client: len(client.end_times) for client in clients}
    expected_count = int((await fetch_metrics(replica)).sum_series("gateway_clients"))

    def list_ended() -> list[SecureStream]:
        return [client for client in clients if len(client.end_times) > before[client]]

    await replica.stop()
    await replica.start()
    if size.waits_for_clients:
        # Clients that are late have not read it yet, and would not be counted.
        await wait_until(
            lambda: len(list_ended()) >= expected_count,
            lambda: f"of {expected_count} clients, {len(list_ended())} were told of the end",
            TIMEOUT_S,
        )
    ended = list_ended()
    if size.waits_for_clients:
        await _wait_for_return(clients)
    ends = {client: client.end_times[before[client]] for client in ended}
    returns = [
        next((at for at in client.request_times if at > ends[client]), float("inf"))
        for client in ended
    ]
    first = min(ends.values(), default=0.0)
    by_second = Counter(int(at - first) for at in returns if at < float("inf"))
    told = [client.end_delays_s[before[client]] for client in ended]
    return Restart(len(ended), max(by_second.values(), default=0), told)


async def _wait_for_records(clients: Sequence[SecureStream], count: int) -> None:
    behind = list(clients)

    def is_met() -> bool:
        """Looks at one that lacks some each time: all of them would take the clients' own time."""
        while behind and len(set(behind[-1].records)) >= count:
            behind.pop()
        return not behind

    await wait_until(is_met, lambda: _describe_missing(behind, count), TIMEOUT_S)


async def _wait_for_return(clients: Sequence[SecureStream]) -> None:
    def list_absent() -> list[str]:
        return [client.describe_state() for client in clients if not client.is_open]

    await wait_until(lambda: not list_absent(), lambda: f"back: {list_absent()[:1]}", TIMEOUT_S)


def _describe_missing(behind: Sequence[SecureStream], count: int) -> str:
    state = behind[-1].describe_state() if behind else ""
    return f"at most {len(behind)} clients lack some of {count} records, such as: {state}"
