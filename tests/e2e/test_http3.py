"""Streams of a real browser over HTTP/3, by way of the proxies that have it."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from support.browser import running_browser
from support.gateways import build_config, running_gateway
from support.proxies import ALL_PROXIES, Envoy, Proxy, running_proxy

from gateway.kafka.embedded import EmbeddedKafka

# As many as the proxy lets a browser have. Envoy's own limit was 100, which its file raises.
STREAM_COUNTS = {"caddy": 100, "envoy": 150}
RECORD_COUNT = 20

OPEN_STREAMS = """
    window.live = 0;
    window.counts = Array(arguments[0]).fill(0);
    window.counts.forEach((_, number) => {
      const source = new EventSource("/events/orders");
      source.addEventListener("begin", () => window.live++);
      source.onmessage = () => window.counts[number]++;
    });
"""


@pytest.mark.needs("chromium")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            each,
            id=each.NAME,
            marks=[pytest.mark.needs(each.NAME)] + [pytest.mark.night] * (each is not Envoy),
        )
        for each in ALL_PROXIES
        if each.SPEAKS_HTTP3
    ],
)
async def test_many_streams_are_live_over_one_connection(
    embedded: EmbeddedKafka, tmp_path: Path, kind: type[Proxy]
):
    """Behind Envoy the 101st waited for an end of another one, without an error."""
    stream_count = STREAM_COUNTS[kind.NAME]
    embedded.create_topic("orders", 1)
    config = build_config(embedded.bootstrap, ["orders"], listen={"forwarded": ["127.0.0.1"]})
    async with (
        running_gateway(config) as gateway,
        running_proxy(kind, tmp_path / "proxy", gateway.port) as proxy,
        running_browser(
            f"--ignore-certificate-errors-spki-list={proxy.key_digest}",
            http3_address=f"127.0.0.1:{proxy.port}",
            records_responses=True,
        ) as tab,
        AIOKafkaProducer(bootstrap_servers=embedded.bootstrap) as producer,
    ):
        await tab.open_url(f"https://127.0.0.1:{proxy.port}/health/live")
        await tab.run_script(OPEN_STREAMS, stream_count)
        await tab.wait_for_script(f"return live === {stream_count}")
        for number in range(RECORD_COUNT):
            await producer.send_and_wait("orders", b"%d" % number, partition=0)
        await tab.wait_for_script(f"return counts.every((count) => count === {RECORD_COUNT})")
        responses = await tab.read_responses()
        streams = [each for each in responses if each.path == "/events/orders"]
        assert len(streams) == stream_count
        assert {each.protocol for each in streams} == {"h3"}
        assert len({each.connection for each in streams}) == 1
