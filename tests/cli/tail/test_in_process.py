"""Topics by a gateway in this process: its settings, and its answers as they are made."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from gateway.cli.kafka_connection import KafkaSource
from gateway.cli.tail.in_process import InProcessTransport, build_settings
from gateway.errors import ConfigError, GatewayError


def test_servers_and_topics_make_one_route():
    settings = build_settings(["orders", "payments"], KafkaSource(None, ["a:9092", "b:9092"]))
    assert settings.kafka.servers == ("a:9092", "b:9092")
    assert [topic.name for topic in settings.kafka.topics] == ["orders", "payments"]
    (route,) = settings.routes
    assert route.with_.format == "envelope"
    assert route.with_.client_filters and route.with_.client_fields


def test_a_configuration_gives_its_kafka_and_what_it_says_of_the_topics(tmp_path: Path):
    file = tmp_path / "gateway.yaml"
    file.write_text(
        "kafka:\n  servers: [c:9092]\n  bootstrap: [orders]\n  topics:\n"
        "    - {name: orders, isolation: read_uncommitted}\n    - {name: other}\n"
        "  security: {tls: {}}\n"
    )
    kafka = build_settings(["orders", "new"], KafkaSource(file, None)).kafka
    assert (kafka.servers, kafka.bootstrap) == (("c:9092",), ())
    assert [(t.name, t.isolation) for t in kafka.topics] == [
        ("orders", "read_uncommitted"), ("new", "read_committed"),
    ]  # fmt: skip
    assert kafka.security.tls is not None


def test_what_cannot_be_read_is_told(tmp_path: Path):
    file = tmp_path / "gateway.yaml"
    file.write_text("kafka: {servers: embedded}\n")
    with pytest.raises(GatewayError, match="embedded in the gateway; give --servers"):
        build_settings(["t"], KafkaSource(file, None))
    file.write_text("kafka: {}\n")
    with pytest.raises(ConfigError):
        build_settings(["t"], KafkaSource(file, None))
    with pytest.raises(GatewayError, match="'abc' is not host:port"):
        build_settings(["t"], KafkaSource(None, ["abc"]))


START = {"type": "http.response.start", "status": 200, "headers": []}


async def test_an_answer_comes_as_it_is_made_and_no_faster_than_it_is_read():
    sent = []

    async def app(scope, receive, send):
        await send(START)
        for n in range(100):
            await send({"type": "http.response.body", "body": b"%d" % n, "more_body": True})
            sent.append(n)

    async with (
        httpx.AsyncClient(transport=InProcessTransport(app)) as http,
        http.stream("GET", "http://x/y?z=1") as answer,
    ):
        assert await anext(answer.aiter_raw()) == b"0"
        await asyncio.sleep(0)
        assert len(sent) < 5


@pytest.mark.parametrize("error", [None, RuntimeError("broken")])
async def test_an_application_that_ends_before_its_answer_does_is_a_cut(error):
    async def app(scope, receive, send):
        await send(START)
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        if error is not None:
            raise error

    async with httpx.AsyncClient(transport=InProcessTransport(app)) as http:
        with pytest.raises(httpx.ReadError, match="broken" if error else "ended"):
            await http.get("http://x/y")


async def test_a_reader_that_leaves_ends_the_application():
    ended = asyncio.Event()

    async def app(scope, receive, send):
        try:
            await send(START)
            await receive()
        finally:
            ended.set()

    async with (
        httpx.AsyncClient(transport=InProcessTransport(app)) as http,
        http.stream("GET", "http://x/y"),
    ):
        pass
    await asyncio.wait_for(ended.wait(), 30)
