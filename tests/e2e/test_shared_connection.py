"""A hundred streams of a real browser over one HTTP/2 connection, by way of a real proxy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from support.browser import running_browser
from support.gateways import build_config, build_route, running_gateway
from support.proxies import Caddy, Nginx, Proxy, running_proxy
from support.tcp_proxy import TcpProxy

from gateway.kafka.embedded import EmbeddedKafka

READ_COUNT = 99
RECORD_COUNT = 20
LARGE_PARTITIONS, LARGE_RECORDS, LARGE_BYTES = 8, 20, 100_000  # 16 MB: more than any window

OPEN_STREAMS = """
    window.live = 0;
    window.counts = Array(arguments[0]).fill(0);
    window.counts.forEach((_, number) => {
      const source = new EventSource("/events/orders");
      source.addEventListener("begin", () => window.live++);
      source.onmessage = () => window.counts[number]++;
    });
    // A body that nobody reads: its window closes, and the proxy holds the rest of it back.
    fetch("/events/large?from=earliest", { headers: { Accept: "text/event-stream" } })
      .then((response) => (window.unread = response));
"""


@pytest.mark.needs("chromium")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(each, id=each.NAME, marks=pytest.mark.needs(each.NAME))
        for each in (Caddy, Nginx)
    ],
)
async def test_one_of_a_hundred_streams_that_is_not_read_delays_no_other(
    embedded: EmbeddedKafka, tmp_path: Path, kind: type[Proxy]
):
    embedded.create_topic("orders", 1)
    embedded.create_topic("large", LARGE_PARTITIONS)
    routes = [
        build_route("orders", "value"),
        build_route("large", "value", compression="none"),
    ]
    config = build_config(
        embedded.bootstrap, ["orders", "large"], routes, listen={"forwarded": ["127.0.0.1"]}
    )
    async with (
        running_gateway(config) as gateway,
        running_proxy(kind, tmp_path / "proxy", gateway.port) as proxy,
        TcpProxy("127.0.0.1", proxy.port) as network,
        running_browser("--ignore-certificate-errors") as tab,
        AIOKafkaProducer(bootstrap_servers=embedded.bootstrap) as producer,
    ):
        for number in range(LARGE_RECORDS * LARGE_PARTITIONS):
            value = os.urandom(LARGE_BYTES // 2).hex().encode()
            await producer.send_and_wait("large", value, partition=number % LARGE_PARTITIONS)
        await tab.open_url(f"https://{network.address}/health/live")
        await tab.run_script(OPEN_STREAMS, READ_COUNT)
        await tab.wait_for_script(f"return window.live === {READ_COUNT} && window.unread?.ok")
        for number in range(RECORD_COUNT):
            await producer.send_and_wait("orders", b"%d" % number, partition=0)
        await tab.wait_for_script(f"return counts.every((count) => count === {RECORD_COUNT})")
        protocols = await tab.run_script(
            "return [...new Set(performance.getEntries().map((each) => each.nextHopProtocol))]"
        )
        assert "h2" in protocols and "http/1.1" not in protocols
        assert network.connection_count <= 2  # a browser opens one to spare
