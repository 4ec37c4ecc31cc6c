"""Restart three replicas one by one behind a proxy: `python -m bench.rolling`.

A third of the clients each are EventSources over HTTP/1.1, EventSources that share connections over
HTTP/2 as those of a browser do, and WebSockets; all by TLS. Records are written all the time. Each
replica is ended by SIGTERM and started again, and the next one follows when it is ready and its
clients are back. Every client must have every record once, and come back at the time that it was
told, so that no second has much more than its share.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from support.clients.secure import SecureEventSource, SecureStream, SecureWebSocket
from support.gateways import GatewayProcess, build_config, running_gateway
from support.proxies import HaProxy, Nginx, Proxy, running_proxy
from support.waiting import wait_until

from gateway.hub.wires.end_retry import END_RETRY_RANGE_S

from .figure import Figure
from .kafka import Kafka, real_kafka
from .producer import Producer
from .results import format_number

PROXIES: dict[str, type[Proxy]] = {kind.NAME: kind for kind in (Nginx, HaProxy)}
REPLICA_COUNT = 3
STREAMS_OF_A_BROWSER = 30
CONNECTS_AT_ONCE = 50
TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Size:
    """rate: records a second. waits: for all to be back before the next replica is restarted."""

    clients: int = 1000
    rate: float = 2.0
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


async def measure(kafka: Kafka, kind: type[Proxy], size: Size = Size()) -> list[Figure]:
    """Raises AssertionError if a record was lost or came twice."""
    restarts, lost, twice = await run_rolling_restart(kafka, kind, size)
    where = f"{kind.NAME}, {size.clients} clients"
    figures = [
        Figure(f"{where}: records lost", lost, "records"),
        Figure(f"{where}: records twice", twice, "records"),
    ]
    for number, restart in enumerate(restarts, 1):
        ratio = restart.peak_count / restart.even_count
        what = f"{where}: restart {number}, most reconnects of a second to the even spread"
        figures += [
            Figure(f"{where}: restart {number}, clients ended", restart.ended_count, "clients"),
            Figure(what, ratio, "times", restart.ended_count),
        ]
    return figures


async def run_rolling_restart(
    kafka: Kafka, kind: type[Proxy], size: Size
) -> tuple[list[Restart], int, int]:
    """The restarts, and how many records were lost and came twice, at all clients together."""
    topic, producer = kafka.create_topic(3), Producer(kafka.bootstrap_servers)
    config = build_config(kafka.bootstrap_servers, [topic], listen={"forwarded": ["127.0.0.1"]})
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rolling-")))
        replicas = [
            await stack.enter_async_context(running_gateway(config)) for _ in range(REPLICA_COUNT)
        ]
        ports = [replica.port for replica in replicas]
        proxy = await stack.enter_async_context(running_proxy(kind, folder / "proxy", *ports))
        clients = await stack.enter_async_context(_open_clients(proxy, topic, size.clients))
        async with producer.produce_steadily(topic, 3, size.rate):
            restarts = [await _restart(replica, clients, size) for replica in replicas]
            await _wait_for_return(clients)
        count = producer.sent_count
        await wait_until(
            lambda: all(len(set(client.records)) >= count for client in clients),
            lambda: _describe_missing(clients, count),
            TIMEOUT_S,
        )
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
    await replica.stop()
    await replica.start()
    ended = [client for client in clients if len(client.end_times) > before[client]]
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


async def _wait_for_return(clients: Sequence[SecureStream]) -> None:
    await wait_until(
        lambda: all(client.is_open for client in clients),
        lambda: f"{sum(not client.is_open for client in clients)} are not back",
        TIMEOUT_S,
    )


def _describe_missing(clients: Sequence[SecureStream], count: int) -> str:
    behind = [client for client in clients if len(set(client.records)) < count]
    return f"{len(behind)} clients lack some of {count} records: {behind[0].describe_state()}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.rolling", description=__doc__)
    parser.add_argument("--proxy", action="append", choices=PROXIES, help="may be repeated")
    parser.add_argument("--clients", type=int, default=Size.clients, help="default %(default)s")
    parser.add_argument("--rate", type=float, default=Size.rate, help="records a second")
    asked = parser.parse_args(arguments)
    with real_kafka(1) as kafka:
        for name in asked.proxy or PROXIES:
            size = Size(asked.clients, asked.rate)
            for figure in asyncio.run(measure(kafka, PROXIES[name], size)):
                print(f"{figure.what}: {format_number(figure.value)} {figure.unit}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
