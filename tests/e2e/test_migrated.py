"""Configurations that `gateway migrate` made of Zilla's serve what they served there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from ruamel.yaml import YAML
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.gateways import GatewayThread, create_http_client, running_gateway
from support.migrations import SOURCES, migrate_file
from support.records import RecordToSend, produce_records
from support.service import running_service
from support.waiting import wait_until

from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.asyncio

kafka = embedded_kafka(
    {"deliveries": 2, "articles": 2, "quote-requests": 1, "quote-replies": 1}, scope="function"
)


@asynccontextmanager
async def running_migrated(name: str, kafka: EmbeddedKafka) -> AsyncIterator[GatewayThread]:
    """A gateway with the configuration that a source becomes, on a port of the OS."""
    config = YAML(typ="safe").load(migrate_file(SOURCES / name).text)
    config["listen"] |= {"host": "127.0.0.1", "port": 0}
    config.get("telemetry", {}).get("metrics", {}).pop("otlp", None)  # nobody listens there
    environment = {"KAFKA_BOOTSTRAP_SERVER": kafka.bootstrap[0]}
    async with running_gateway(config, environment=environment) as gateway:
        yield gateway


async def test_the_fan_out_of_zilla_streams_what_its_filters_let_through(kafka: EmbeddedKafka):
    async with running_migrated("sse.kafka.fanout.yaml", kafka) as gateway:
        url = f"{gateway.base_url}/events"
        async with RawClient(f"{url}/eu") as some, RawClient(url) as everything:
            await wait_until(lambda: some.events and everything.events)
            values = [b'{"id": "a", "region": "eu"}', b'{"id": "b", "region": "us"}']
            await produce_records(kafka.bootstrap, "deliveries", map(RecordToSend, values))
            await wait_until(lambda: len(_list_data(everything)) == 2 and _list_data(some) != [])
            assert sorted(_list_data(everything)) == [each.decode() for each in values]
            assert _list_data(some) == [values[0].decode()]


async def test_the_documents_of_zilla_are_written_read_and_deleted(kafka: EmbeddedKafka):
    async with (
        running_migrated("http.kafka.crud.yaml", kafka) as gateway,
        create_http_client(gateway) as http,
    ):
        created = await http.post(
            "/articles", content=b'{"n": 1}', headers={"idempotency-key": "first"}
        )
        assert created.status_code < 300, created.text
        assert (await http.get("/articles/first")).json() == {"n": 1}
        await http.put("/articles/second", content=b'{"n": 2}')
        await http.delete("/articles/first")
        assert (await http.get("/articles/first")).status_code == 404
        async with RawClient(f"{gateway.base_url}/articles") as everything:
            await wait_until(lambda: '{"n": 2}' in _list_data(everything))
            assert '{"n": 1}' not in _list_data(everything)


async def test_the_replies_of_zilla_are_waited_for_and_fetched_later(kafka: EmbeddedKafka):
    async with (
        running_service(kafka.bootstrap, "quote-requests") as service,
        running_migrated("http.kafka.async.yaml", kafka) as gateway,
        create_http_client(gateway) as http,
    ):
        reply = await http.put("/quotes/7", content=b'{"body": "12.50"}')
        assert (reply.status_code, reply.text) == (200, "12.50"), service.requests
        accepted = await http.put(
            "/quotes/8", content=b'{"body": "13"}', headers={"prefer": "respond-async"}
        )
        assert accepted.status_code == 202, accepted.text
        assert accepted.headers["location"].startswith("/quotes/8/")
        later = await http.get(accepted.headers["location"], headers={"prefer": "wait=30"})
        assert (later.status_code, later.text) == (200, "13")
        assert [request.key for request in service.requests] == [b"7", b"8"]


def _list_data(client: RawClient) -> list[str]:
    """The data of the records that a client got."""
    return [each["data"] for each in client.events if each["event"] in ("", "message")]
