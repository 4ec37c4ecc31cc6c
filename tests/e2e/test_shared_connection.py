"""A hundred streams of a real browser over one HTTP/2 connection, by way of real proxies."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from support.browser import Browser, running_browser
from support.gateways import build_config, build_route, running_gateway
from support.proxies import ALL_PROXIES, Nginx, Proxy, running_proxy
from support.tcp_proxy import TcpProxy
from support.waiting import wait_until

from gateway.kafka.embedded import EmbeddedKafka

STREAM_COUNT = 100
RECORD_COUNT = 20
# More than Chromium takes of all streams of a connection, and of one stream, before a page reads.
LARGE_PARTITIONS, LARGE_RECORDS, LARGE_BYTES = 8, 160, 100_000
CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES = 15 << 20, 6 << 20

OPEN_STREAMS = """
    const [readCount] = arguments;
    window.live = 0;
    window.counts = Array(readCount).fill(0);
    window.counts.forEach((_, number) => {
      const source = new EventSource("/events/orders");
      source.addEventListener("begin", () => window.live++);
      source.onmessage = () => window.counts[number]++;
    });
    window.socketCount = 0;
    const socket = new WebSocket("/events/orders");
    socket.onmessage = ({ data }) => (window.socketCount += JSON.parse(data).records?.length ?? 0);
"""
OPEN_UNREAD_STREAMS = """
    const [unreadCount] = arguments;
    window.unread = [];
    for (let number = 0; number < unreadCount; number++) {
      // The browser has equal requests wait for each other, unless it is not to store them.
      const options = { headers: { Accept: "text/event-stream" }, cache: "no-store" };
      const open = async () => {
        const answer = await fetch("/events/large?from=earliest", options);
        // A proxy that takes a busy gateway for gone answers, whole, that one is to come back.
        if (answer.headers.has("content-length")) return setTimeout(open, 1000);
        window.unread.push(answer);
      };
      open();
    }
"""


class SharedConnection(NamedTuple):
    """A browser with a page of the proxy, and the network between the two."""

    tab: Browser
    network: TcpProxy
    producer: AIOKafkaProducer

    async def open_streams(self, unread_count: int) -> None:
        """Open EventSources, and then bodies that nobody reads: those can fill the window."""
        read_count = STREAM_COUNT - unread_count
        await self.tab.run_script(OPEN_STREAMS, read_count)
        await self.tab.wait_for_script(f"return live === {read_count}")
        await self.tab.run_script(OPEN_UNREAD_STREAMS, unread_count)
        await self.tab.wait_for_script(f"return unread.length === {unread_count}")

    async def wait_for_bytes(self, count: int) -> None:
        """Until so many have gone to the browser."""
        await wait_until(
            lambda: self.network.bytes_to_client >= count,
            lambda: f"{self.network.bytes_to_client} of {count} bytes",
        )

    async def produce_orders(self) -> None:
        for number in range(RECORD_COUNT):
            await self.producer.send_and_wait("orders", b"%d" % number, partition=0)

    async def wait_for_orders_of_socket(self) -> None:
        """Until the WebSocket has all."""
        await self.tab.wait_for_script(f"return socketCount === {RECORD_COUNT}")

    async def wait_for_orders(self) -> None:
        """Until every EventSource has each of them once."""
        await self.tab.wait_for_script(f"return counts.every((count) => count === {RECORD_COUNT})")


@asynccontextmanager
async def shared_connection(
    embedded: EmbeddedKafka, folder: Path, kind: type[Proxy]
) -> AsyncIterator[SharedConnection]:
    embedded.create_topic("orders", 1)
    embedded.create_topic("large", LARGE_PARTITIONS)
    routes = [build_route("orders", "value"), build_route("large", "value", compression="none")]
    listen = {"forwarded": ["127.0.0.1"]}
    config = build_config(embedded.bootstrap, ["orders", "large"], routes, listen=listen)
    async with (
        running_gateway(config) as gateway,
        running_proxy(kind, folder / "proxy", gateway.port) as proxy,
        TcpProxy("127.0.0.1", proxy.port) as network,
        running_browser("--ignore-certificate-errors", records_responses=True) as tab,
        AIOKafkaProducer(bootstrap_servers=embedded.bootstrap) as producer,
    ):
        for number in range(LARGE_RECORDS):
            value = os.urandom(LARGE_BYTES // 2).hex().encode()
            await producer.send_and_wait("large", value, partition=number % LARGE_PARTITIONS)
        await tab.open_url(f"https://{network.address}/health/live")
        yield SharedConnection(tab, network, producer)


@pytest.mark.needs("chromium")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            each,
            id=each.NAME,
            marks=[pytest.mark.needs(each.NAME)] + [pytest.mark.night] * (each is not Nginx),
        )
        for each in ALL_PROXIES
    ],
)
async def test_one_of_a_hundred_streams_that_is_not_read_delays_no_other(
    embedded: EmbeddedKafka, tmp_path: Path, kind: type[Proxy]
):
    async with shared_connection(embedded, tmp_path, kind) as shared:
        await shared.open_streams(unread_count=1)
        await shared.wait_for_bytes(STREAM_WINDOW_BYTES)
        await shared.produce_orders()
        await shared.wait_for_orders()
        # The one was held back all the while.
        assert shared.network.bytes_to_client < CONNECTION_WINDOW_BYTES

        responses = await shared.tab.read_responses()
        streams = [each for each in responses if each.path.startswith("/events/")]
        assert len(streams) >= STREAM_COUNT  # more if some had to come back
        assert {each.status for each in streams} == {200}
        assert {each.protocol for each in streams} == {"h2"}
        assert len({each.connection for each in streams}) == 1


@pytest.mark.night
@pytest.mark.needs("chromium", "nginx")
async def test_a_window_full_of_what_is_not_read_stops_all_streams_until_one_is_cancelled(
    embedded: EmbeddedKafka, tmp_path: Path
):
    """Neither the proxy nor the gateway can help: it is the browser that takes no more. A WebSocket
    goes on, which has a connection of its own behind nginx."""
    async with shared_connection(embedded, tmp_path, Nginx) as shared:
        await shared.open_streams(unread_count=3)
        await shared.wait_for_bytes(CONNECTION_WINDOW_BYTES)
        await shared.produce_orders()
        await shared.wait_for_orders_of_socket()
        assert await shared.tab.run_script("return Math.max(...counts)") < RECORD_COUNT
        await shared.tab.run_script("unread[0].body.cancel()")
        await shared.wait_for_orders()
