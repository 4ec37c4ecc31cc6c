"""A record's way from its producer to the browser, as a tracing back end sees it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from aiokafka import AIOKafkaProducer
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.gateways import GatewayThread, build_config, running_gateway
from support.multiplex import MultiplexClient
from support.otlp import OtlpCollector, running_collector
from support.waiting import wait_until

from gateway.kafka.embedded import EmbeddedKafka
from gateway.telemetry.traceparent import parse

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
UNSAMPLED = f"00-{TRACE}-{SPAN}-00"
ROUTES = [
    {"when": [{"path": "/of/{key}"}], "with": {"topic": "orders", "produce": True,
     "format": "envelope", "filters": [{"key": "${params.key}"}]}},
]  # fmt: skip

kafka = embedded_kafka({"orders": 1}, scope="function")


@pytest.fixture
def back() -> Iterator[OtlpCollector]:
    with running_collector() as made:
        yield made


@asynccontextmanager
async def traced(
    kafka: EmbeddedKafka, back: OtlpCollector, **traces: Any
) -> AsyncIterator[GatewayThread]:
    telemetry = {"traces": {"otlp": back.url, "sample": "100%", **traces}}
    config = build_config(kafka.bootstrap, ["orders"], ROUTES, telemetry=telemetry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")  # ms
        async with running_gateway(config) as running:
            yield running


async def produce(kafka: EmbeddedKafka, key: str, *traceparents: str | None) -> None:
    """A record with each of these."""
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
        for n, told in enumerate(traceparents):
            headers = [] if told is None else [("traceparent", told.encode())]
            await producer.send_and_wait("orders", b"%d" % n, key.encode(), headers=headers)


def messages(client: RawClient) -> list[dict[str, Any]]:
    return [json.loads(e["data"]) for e in client.events if e["event"] == "message"]


async def test_a_record_is_followed_from_its_producer_to_its_clients(
    kafka: EmbeddedKafka, back: OtlpCollector
):
    async with traced(kafka, back) as running:
        url = running.base_url + "/of/ada"
        clients = [RawClient(url) for _ in range(3)]
        other = RawClient(running.base_url + "/of/bob")
        async with clients[0], clients[1], clients[2], other:
            await asyncio.gather(*(client.wait_for_events(1) for client in [*clients, other]))
            await produce(kafka, "ada", None, UNSAMPLED, PARENT, "junk")
            await wait_until(lambda: all(len(messages(each)) == 4 for each in clients), "all")
            await wait_until(lambda: _clients(back) >= 3, "the deliveries")
        await running.drain()
    delivered = back.find_spans("deliver")
    assert _clients(back) == 3, "of one record, to those who have it, once each"
    assert {span.trace_id for span in delivered} == {TRACE}
    assert {span.parent_id for span in delivered} == {SPAN}
    assert {span.links for span in delivered} == {((TRACE, SPAN),)}
    assert all(span.attributes["messaging.kafka.offset"] == 2 for span in delivered)
    assert all(span.attributes["http.route"] == "/of/{key}" for span in delivered)
    assert back.find_spans("kafka Fetch") and back.resource["service.name"] == "test"


def _clients(back: OtlpCollector) -> int:
    return sum(span.attributes["gateway.clients"] for span in back.find_spans("deliver"))


async def test_a_request_is_a_span_until_its_answer_begins_and_shows_no_secret(
    kafka: EmbeddedKafka, back: OtlpCollector
):
    async with traced(kafka, back) as running:
        path, headers = "/of/ada?from=live&token=s3cret", {"traceparent": PARENT}
        async with RawClient(running.base_url + path, headers=headers) as client:
            await client.wait_for_events(1)  # and it goes on
            await wait_until(lambda: back.find_spans("GET /of"), "the span")
        async with httpx.AsyncClient(trust_env=False) as http:
            await http.get(running.base_url + "/none")
        await wait_until(lambda: _of_path(back, "/none"), "the other")
        await running.drain()
    (span,) = back.find_spans("GET /of")
    assert (span.name, span.trace_id, span.parent_id) == ("GET /of/{key}", TRACE, SPAN)
    assert span.attributes == {
        "http.request.method": "GET",
        "http.route": "/of/{key}",
        "http.response.status_code": 200,
        "url.path": "/of/ada",
        "url.query": "from=live&token=***",
    }
    (refused,) = _of_path(back, "/none")
    assert refused.attributes["http.response.status_code"] == 404 and refused.parent_id == ""
    assert not any(b"s3cret" in body for _, _, body in back.requests)


def _of_path(back: OtlpCollector, path: str) -> list[Any]:
    return [span for span in back.spans if span.attributes.get("url.path") == path]


async def test_what_a_client_writes_is_followed_to_who_reads_it(
    kafka: EmbeddedKafka, back: OtlpCollector
):
    async with traced(kafka, back) as running:
        url = running.base_url + "/of/ada"
        async with RawClient(url) as client, MultiplexClient(running.base_url, "/of/ada") as socket:
            await client.wait_for_events(1)
            headers = {"traceparent": PARENT}
            await socket.send_message("produce", id="1", key="ada", value="a", headers=headers)
            await socket.wait_for_message("1", "produced")
            await wait_until(lambda: messages(client), "the record")
            (message,) = messages(client)
            await wait_until(lambda: back.find_spans("deliver"), "its delivery")
        await running.drain()
    (sent,) = back.find_spans("send")
    assert (sent.trace_id, sent.parent_id, sent.links) == (TRACE, SPAN, ((TRACE, SPAN),))
    written = parse(dict(message["headers"])["traceparent"].encode())
    assert written is not None and f"{written.span_id:016x}" == sent.span_id
    for delivered in back.find_spans("deliver"):
        assert (delivered.trace_id, delivered.parent_id) == (TRACE, sent.span_id)
        assert sent.started_at_ns <= delivered.ended_at_ns
    assert back.find_spans("kafka Produce")


async def test_a_back_end_that_is_away_harms_nobody(kafka: EmbeddedKafka, back: OtlpCollector):
    async with traced(kafka, back, otlp="http://127.0.0.1:9") as running:
        async with RawClient(running.base_url + "/of/ada") as client:
            await client.wait_for_events(1)
            await produce(kafka, "ada", *[PARENT] * 50)
            await wait_until(lambda: len(messages(client)) == 50, "all")
        await running.drain()


OFF = """
import asyncio, sys
import httpx
from gateway.config import loads
from gateway.web.app.app import create_app

async def main():
    app = create_app(loads("kafka: {servers: ['127.0.0.1:9']}"))
    async with app.lifespan():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as http:
            assert (await http.get("/metrics")).status_code == 200

asyncio.run(main())
print([name for name in sys.modules if name.startswith(("opentelemetry", "google.protobuf"))])
"""


@pytest.mark.smoke
@pytest.mark.needs("process")
def test_without_traces_opentelemetry_is_not_even_imported():
    done = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
