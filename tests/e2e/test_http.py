"""What HTTP sees of a gateway: heads, topics of a path, history, streams of several topics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from support.brokers import KafkaCluster
from support.clients.client import ReceivedEvent
from support.clients.raw import RawClient
from support.gateways import GatewayProcess, create_http_client
from support.oracle import StreamOracle
from support.raw_http import RawConnection, build_request
from support.topic_gateway import TopicNames, build_topic_config, run_gateway_sync, topic_fixture
from support.waiting import wait_until

Topic = Callable[..., str]


@pytest.fixture(scope="module")
def gateway(session_kafka: KafkaCluster, names: TopicNames) -> Iterator[GatewayProcess]:
    with run_gateway_sync(build_topic_config(session_kafka.bootstrap_servers, names)) as gateway:
        yield gateway


topic = topic_fixture()


@pytest.fixture
async def http(gateway: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with create_http_client(gateway) as http:
        yield http


def records(client: RawClient) -> list[ReceivedEvent]:
    return [each for each in client.events if each["event"] == "message"]


def said(client: RawClient, name: str) -> list[dict[str, Any]]:
    return [json.loads(each["data"]) for each in client.events if each["event"] == name]


async def ended(client: RawClient) -> str:
    """The reason of its `end`; it does not come back."""
    await client.wait_for_events(lambda events: events and events[-1]["event"] == "end")
    await client.stop()
    return str(said(client, "end")[-1]["reason"])


def is_stream(headers: httpx.Headers | dict[str, str]) -> None:
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-store, no-transform"
    assert headers["x-accel-buffering"] == "no"
    assert {each.strip() for each in headers["vary"].split(",")} == {
        "Origin",
        "Accept",
        "Accept-Encoding",
        "Available-Dictionary",
    }


# -- heads -------------------------------------------------------------------------


async def test_a_stream_says_that_nobody_may_keep_or_change_it(
    gateway: GatewayProcess, topic: Topic
):
    async with RawClient(f"{gateway.base_url}/value/{topic()}") as client:
        await client.wait_for_events(1)
        head = client.responses[0]
        is_stream(head.headers)
        assert "content-length" not in head.headers
        assert "server" not in head.headers
        first = client.body.decode().splitlines()
        assert first[0].startswith("retry: ") and first[1] == "event: begin"
        assert first[2].startswith("data: {") and first[3].startswith("id: ") and first[4] == ""


async def test_head_answers_as_get_would_and_keeps_the_connection(
    gateway: GatewayProcess, topic: Topic
):
    with RawConnection(gateway.port) as wire:
        wire.send_bytes(build_request(f"/value/{topic()}", method="HEAD"))
        answer = wire.read_head()
        assert answer.status == 200
        is_stream(answer.headers)
        wire.send_bytes(build_request("/value/no-such-topic", method="HEAD"))
        assert wire.read_head().status == 404
        wire.send_bytes(build_request("/health/live"))
        assert wire.read_response().status == 200


async def test_a_path_cannot_choose_a_topic_that_is_not_configured(
    http: httpx.AsyncClient, kafka: KafkaCluster
):
    """A route with `topic: ${params.topic}` once served every topic of the cluster, the
    consumers' offsets among them."""
    other = kafka.create_unique_topic()
    for path in (f"/value/{other}", "/value/__consumer_offsets", f"/merged/{other}/{other}"):
        answer = await http.get(path)
        assert answer.status_code == 404, path
        assert "served here" in answer.json()["detail"]


async def test_it_begins_and_ends_where_it_is_told(
    gateway: GatewayProcess, topic: Topic, oracle: StreamOracle
):
    name = topic(partitions=3)
    await oracle.produce_records(name, 30)
    middle = datetime.now(UTC).isoformat()
    await until_later(middle)
    await oracle.produce_records(name, 20)
    for query, count in {
        "from=earliest&until=latest": 50,
        "from=earliest&until=7": 7,
        f"from={middle}&until=latest": 20,
        f"from=earliest&until={middle}": 30,
        "from=-1h&until=latest": 50,
    }.items():
        query = query.replace("+", "%2B")
        async with RawClient(f"{gateway.base_url}/records/{name}?{query}") as client:
            assert await ended(client) == "until", query
            assert len(records(client)) == count, query
            if count == 50:
                oracle.check_events(client.events, start=dict.fromkeys(oracle.get_end_offsets(), 0))


async def until_later(instant: str) -> None:
    then = datetime.fromisoformat(instant).timestamp()
    await wait_until(lambda: datetime.now(UTC).timestamp() > then + 0.005)


# -- where a stream begins and ends ----------------------------------------------------


async def test_a_route_with_an_hour_of_history_gives_no_more_of_it(
    gateway: GatewayProcess, topic: Topic, oracle: StreamOracle
):
    name = topic(configs={"retention.ms": "-1"})
    old = int((datetime.now(UTC).timestamp() - 7200) * 1000)
    await oracle.produce_records(name, 5, timestamp=old)
    young = await oracle.produce_records(name, 5)
    async with RawClient(f"{gateway.base_url}/recent/{name}?from=earliest&until=latest") as client:
        await ended(client)
        told = [json.loads(each["data"])["offset"] for each in records(client)]
        assert told == [acked.offset for acked in young]


@pytest.mark.smoke
async def test_two_topics_come_in_one_stream_and_resume_together(
    gateway: GatewayProcess, topic: Topic, oracle: StreamOracle
):
    one, two = topic(partitions=2), topic(partitions=3)
    async with RawClient(f"{gateway.base_url}/merged/{one}/{two}") as client:
        await client.wait_for_events(1)
        assert said(client, "begin")[0]["partitions"] == {one: 2, two: 3}
        await oracle.produce_records(one, 20)
        await oracle.produce_records(two, 20)
        await client.wait_for_events(lambda events: len(records(client)) == 40)
        client.cut()
        await oracle.produce_records(two, 20)
        await oracle.produce_records(one, 20)
        await client.wait_for_events(lambda events: len(records(client)) == 80)
        start = oracle.get_start_offsets(one, 2) | oracle.get_start_offsets(two, 3)
        oracle.check_events(client.events, start=dict.fromkeys(start, 0))
