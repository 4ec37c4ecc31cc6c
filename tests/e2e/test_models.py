"""Streams of topics whose values have a schema: shown as JSON, written from JSON."""

from __future__ import annotations

import asyncio
import json
import socket
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.serialization import MessageField, SerializationContext
from support.app_server import running_app
from support.gateways import (
    GatewayThread,
    build_config,
    build_route,
    create_http_client,
    running_gateway,
)
from support.records import RecordToSend, produce_records
from support.registry import FakeRegistry
from support.sse import SseEvent, parse_stream

from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

BY_TOPIC = {"subject.name.strategy": topic_subject_name_strategy}
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "region", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
SHOWN = [
    {"id": 1, "region": "eu", "at": "2024-02-29T13:05:00.250Z"},
    {"id": 2, "region": None, "at": "2024-02-29T13:05:00.250Z"},
    {"id": 3, "region": "us", "at": "2024-02-29T13:05:00.250Z"},
]


@pytest.fixture
async def registry() -> FakeRegistry:
    return FakeRegistry()


@pytest.fixture
async def url(registry: FakeRegistry) -> AsyncIterator[str]:
    async with running_app(registry.app) as url:
        yield url


def created(broker: EmbeddedKafka, topic: str) -> str:
    broker.create_topic(topic, 1)
    return topic


def model(name: str, on_invalid: str = "error") -> dict[str, Any]:
    return {"model": name, "catalog": "registry0", "onInvalid": on_invalid}


@asynccontextmanager
async def streaming(
    broker: EmbeddedKafka,
    url: str,
    *topics: dict[str, Any],
    routes: list[dict[str, Any]] | None = None,
) -> AsyncIterator[GatewayThread]:
    catalogs = {"registry0": {"type": "schema-registry", "url": url, "timeout": "30s"}}
    config = build_config(broker.bootstrap, topics, routes, catalogs=catalogs)
    async with running_gateway(config) as gateway:
        yield gateway


async def events(gateway: GatewayThread, path: str, **params: str) -> list[SseEvent]:
    """Those between `begin` and `end`."""
    async with create_http_client(gateway) as http:
        asked = {"from": "earliest", "until": "latest", **params}
        answer = await http.get(path, params=asked)
    assert answer.status_code == 200, answer.text
    found = [event for event in parse_stream(answer.content) if event.event_type != "position"]
    assert (found[0].event_type, found[-1].event_type) == ("begin", "end")
    return found[1:-1]


def by_confluent(serializer: Any, topic: str, value: Any) -> bytes:
    """As Confluent's own client writes it."""
    context = SerializationContext(topic, MessageField.VALUE)
    written: bytes = serializer(value, context)
    return written


async def confluent_avro(url: str, topic: str) -> list[bytes]:
    from confluent_kafka.schema_registry.avro import AvroSerializer

    at = datetime(2024, 2, 29, 13, 5, 0, 250_000, UTC)
    client = SchemaRegistryClient({"url": url})
    write = AvroSerializer(client, json.dumps(ORDER), conf=BY_TOPIC)
    values = [{**shown, "at": at} for shown in SHOWN]
    return [await asyncio.to_thread(by_confluent, write, topic, each) for each in values]


async def test_avro_is_shown_as_json_in_every_format(
    embedded: EmbeddedKafka, registry: FakeRegistry, url: str
):
    topic = created(embedded, "orders")
    data = await confluent_avro(url, topic)
    await produce_records(
        embedded.bootstrap, topic, [*map(RecordToSend, data), RecordToSend(None, b"k")]
    )
    settings = {
        "name": topic,
        "value": model("avro"),
        "transforms": [{"extract-key": "${message.value.region}"}],
    }
    filtered = {
        "when": [{"path": "/eu"}],
        "with": {"topic": topic, "filters": [{"value": {"/region": "eu"}}], "fields": ["/id"]},
    }
    routes = [
        build_route(topic, "value"),
        build_route(topic, "envelope"),
        {"when": [{"path": "/cloud"}], "with": {"topic": topic, "format": "cloudevents"}},
        filtered,
    ]
    async with streaming(embedded, url, settings, routes=routes) as gateway:
        found = await events(gateway, f"/events/{topic}")
        assert [event.event_type for event in found] == ["message"] * 3 + ["delete"]
        assert [event.parse_json() for event in found[:3]] == SHOWN
        found = await events(gateway, f"/records/{topic}")
        assert [json.loads(each.parse_json()["value"]) for each in found[:3]] == SHOWN
        assert [each.parse_json()["key"] for each in found] == ["eu", None, "us", "k"]
        found = await events(gateway, "/cloud")
        assert [each.parse_json()["data"] for each in found[:3]] == SHOWN
        assert [each.parse_json() for each in await events(gateway, "/eu")] == [{"id": 1}]
    assert registry.requests["GET /schemas/ids/1"] <= 2, "once for the gateway, once for us"


@pytest.mark.parametrize("on_invalid", ["error", "skip", "raw"])
async def test_what_is_none_of_the_model_is_shown_as_the_topic_says(
    embedded: EmbeddedKafka, registry: FakeRegistry, url: str, on_invalid: str
):
    topic = created(embedded, "orders")
    good = await confluent_avro(url, topic)
    bad = [b"{}", good[0] + b"!", b"\0\0\0\0\x63x"]  # unframed, too long, of no schema
    await produce_records(
        embedded.bootstrap, topic, list(map(RecordToSend, [good[0], *bad, good[2]]))
    )
    settings = {"name": topic, "value": model("avro", on_invalid)}
    async with streaming(embedded, url, settings) as gateway:
        found = await events(gateway, f"/events/{topic}")
        enveloped = await events(gateway, f"/records/{topic}")
        async with create_http_client(gateway) as http:
            scraped = (await http.get("/metrics")).text
    assert (found[0].parse_json(), found[-1].parse_json()) == (SHOWN[0], SHOWN[2])
    assert [event.event_type for event in found] == [event.event_type for event in enveloped]
    assert "gap" not in {event.event_type for event in found}
    assert f'gateway_invalid_records_total{{topic="{topic}",outcome="{on_invalid}"}}' in scraped
    middle = found[1:-1]
    if on_invalid == "skip":
        assert middle == []
    elif on_invalid == "raw":
        assert [each.parse_json() for each in middle] == [
            {"base64": b64encode(each).decode()} for each in bad
        ]
        assert enveloped[1].parse_json()["value"] == "{}"
    else:
        assert [event.event_type for event in middle] == ["error"] * 3
        told = middle[0].parse_json()
        assert (told["code"], told["topic"], told["offset"]) == ("value-invalid", topic, 1)
        assert "not with 00 and an id" in told["message"]
        assert "too many" in middle[1].parse_json()["message"]
        assert "no schema with the id 99" in middle[2].parse_json()["message"]


async def test_a_registry_that_is_away_holds_up_its_partitions_and_loses_nothing(
    embedded: EmbeddedKafka, registry: FakeRegistry
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    topic, plain = created(embedded, "orders"), created(embedded, "plain")
    async with running_app(registry.app, port):
        data = await confluent_avro(url, topic)
    settings = {"name": topic, "value": model("avro")}
    async with streaming(embedded, url, settings, {"name": plain}) as gateway:
        async with (
            create_http_client(gateway) as http,
            http.stream("GET", f"/events/{topic}") as stream,
        ):
            lines = stream.aiter_lines()

            async def next_data(kind: str) -> Any:
                """Of the next event of that type."""
                async with asyncio.timeout(60):
                    async for line in lines:
                        if line == f"event: {kind}":
                            return json.loads((await anext(lines)).removeprefix("data: "))
                        if kind == "message" and line.startswith('data: {"id"'):
                            return json.loads(line.removeprefix("data: "))
                raise AssertionError(f"no {kind}")

            await next_data("begin")
            await produce_records(embedded.bootstrap, topic, list(map(RecordToSend, data)))
            told = await next_data("error")
            assert told["code"] == "schema-registry"
            await produce_records(embedded.bootstrap, plain, [RecordToSend(b"x")])
            (other,) = await events(gateway, f"/events/{plain}")
            assert other.raw_data == b"x", "others are read as ever"
            async with running_app(registry.app, port):
                assert [await next_data("message") for _ in SHOWN] == SHOWN
        # what is known needs no registry
        assert [each.parse_json() for each in await events(gateway, f"/events/{topic}")] == SHOWN


async def test_what_is_posted_is_written_by_the_latest_schema(
    embedded: EmbeddedKafka, registry: FakeRegistry, url: str
):
    topic = created(embedded, "orders")
    keys = {"model": "long", "onInvalid": "error"}
    settings = {"name": topic, "value": model("avro"), "key": keys}
    writes = {"when": [{"path": "/orders"}], "with": {"topic": topic, "capability": "produce"}}
    reads = {
        "when": [{"path": "/of/{key}"}],
        "with": {"topic": topic, "format": "envelope", "filters": [{"key": "${params.key}"}]},
    }
    async with (
        streaming(
            embedded, url, settings, routes=[writes, reads, build_route(topic, "value")]
        ) as gateway,
        create_http_client(gateway) as http,
    ):

        async def post(value: Any) -> httpx.Response:
            headers = {"content-type": "application/json"}
            return await http.post("/orders", content=json.dumps(value), headers=headers)

        refused = await post(SHOWN[0])
        assert refused.status_code == 400
        assert "no subject" in refused.json()["detail"]
        registry.register_schema(f"{topic}-value", ORDER)
        for _ in range(300):  # what is not there is asked for again after a moment
            posted = await post(SHOWN[0])
            if posted.status_code != 400:
                break
            await asyncio.sleep(0.2)
        assert posted.is_success, posted.text
        bad = await post({**SHOWN[0], "id": "x"})
        assert (bad.status_code, "/id takes a whole number" in bad.json()["detail"]) == (400, True)
        assert [each.parse_json() for each in await events(gateway, f"/events/{topic}")] == [
            SHOWN[0]
        ]
