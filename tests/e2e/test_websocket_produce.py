"""Records that clients write over WebSocket: once in Kafka however often they were repeated."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from support.brokers import KafkaCluster
from support.gateways import (
    GatewayThread,
    build_config,
    running_gateway,
    running_gateway_process,
)
from support.tcp_proxy import TcpProxy
from support.topic_gateway import run_gateway_sync
from support.waiting import WAIT_TIMEOUT_S, wait_until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from gateway.kafka.embedded import EmbeddedKafka

ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/orders", {"topic": "orders", "produce": True, "format": "envelope"}),
    ("/of/{customer}", {
        "topic": "orders", "produce": True, "filters": [{"key": "${params.customer}"}],
    }),
    ("/both", {"topics": ["orders", "stock"], "produce": True}),
    ("/closed", {"topic": "orders"}),
]  # fmt: skip


def produce(id: str, **members: Any) -> dict[str, Any]:
    return {"type": "produce", "id": id, "value": id, **members}


async def ask(ws: ClientConnection, message: dict[str, Any]) -> dict[str, Any]:
    """The answer that names the message's id."""
    await ws.send(json.dumps(message))
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while True:
            answer = json.loads(await ws.recv())
            if answer.get("id") == message["id"] and answer["type"] in ("produced", "error"):
                return answer  # type: ignore[no-any-return]


@asynccontextmanager
async def socket(address: str, path: str = "/ws") -> AsyncIterator[ClientConnection]:
    async with connect(f"ws://{address}{path}", max_size=None, proxy=None) as ws:
        yield ws


def address(gateway: GatewayThread) -> str:
    return gateway.base_url.removeprefix("http://")


# What a route lets be written, on the embedded broker.


@pytest.fixture(scope="module")
def shop() -> Iterator[GatewayThread]:
    routes = [{"when": [{"path": path}], "with": made} for path, made in ROUTES]
    asks = {"capability": "produce", "topic": "stock", "replyTo": "orders"}
    asks["correlation"] = {"replyTo": "own-reply-to"}  # type: ignore[assignment]
    routes.append({"when": [{"path": "/ask"}], "with": asks})
    with (
        EmbeddedKafka(topics={"orders": 3, "stock": 1}) as kafka,
        run_gateway_sync(build_config(kafka.bootstrap, ["orders", "stock"], routes)) as gateway,
    ):
        yield gateway


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/ws", {"path": "/closed"}, "forbidden"),
    ("/ws", {"path": "/nowhere"}, "unknown-path"),
    ("/ws", {"path": "nowhere"}, "unknown-path"),
    ("/ws", {"topic": "nowhere"}, "unknown-path"),
    ("/ws", {}, "unknown-path"),
    ("/ws", {"path": "/both"}, "bad-request"),
    ("/ws", {"path": "/both", "topic": "others"}, "bad-request"),
    ("/ws", {"path": "/of/ada", "key": "bob"}, "forbidden"),
    ("/ws", {"path": "/of/ada"}, "forbidden"),
    ("/ws", {"path": "/of/ada", "key": "YWRh"}, "forbidden"),
    ("/ws", {"path": "/orders", "key": "?", "base64": True}, "bad-request"),
    ("/ws", {"path": "/orders", "value": 5, "base64": True}, "bad-request"),
    ("/ws", {"path": "/orders", "headers": {"idempotency-key": "x"}}, "bad-request"),
    ("/ws", {"path": "/orders", "headers": {"Zilla:reply-to": "x"}}, "forbidden"),
    ("/ws", {"path": "/orders", "headers": {"zilla:correlation-id": "x"}}, "forbidden"),
    ("/ws", {"path": "/orders", "headers": {":path": "/x"}}, "forbidden"),
    ("/ws", {"path": "/orders", "headers": {"own-reply-to": "x"}}, "forbidden"),
    ("/closed", {}, "forbidden"),
    ("/of/ada", {"key": "bob"}, "forbidden"),
]


@pytest.mark.parametrize(("path", "members", "code"), REFUSED)
async def test_what_a_route_does_not_let_be_written_is_refused(
    shop: GatewayThread, path: str, members: dict[str, Any], code: str
):
    async with socket(address(shop), path) as ws:
        answer = await ask(ws, produce("1", **members))
        assert (answer["type"], answer["code"]) == ("error", code), answer
        async with asyncio.timeout(WAIT_TIMEOUT_S):  # and the socket goes on
            await ws.send('{"type": "ping"}')
            while json.loads(await ws.recv())["type"] != "pong":
                pass


WRITTEN: list[tuple[dict[str, Any], tuple[Any, Any]]] = [
    ({"key": "ada", "value": "text"}, ("ada", "text")),
    ({"value": ""}, (None, "")),
    ({"key": "", "value": None}, ("", None)),
    ({"key": "ada", "value": {"n": 12345678901234567890123, "é": [1.5, True]}},
     ("ada", '{"n":12345678901234567890123,"é":[1.5,true]}')),
    ({"key": "YWRh", "value": "/w==", "base64": True}, ("ada", {"base64": "/w=="})),
]  # fmt: skip


@pytest.mark.parametrize(("members", "content"), WRITTEN)
async def test_key_and_value_arrive_as_they_were_written(
    shop: GatewayThread, members: dict[str, Any], content: tuple[Any, Any]
):
    async with socket(address(shop), "/orders") as ws:
        produced = await ask(ws, produce("1", headers={"from": "test"}, **members))
        assert produced["type"] == "produced", produced
        where = (produced["topic"], produced["partition"], produced["offset"])
    async with (
        socket(address(shop), "/orders?from=earliest") as ws,
        asyncio.timeout(WAIT_TIMEOUT_S),
    ):
        while True:
            said = json.loads(await ws.recv())
            for record in said.get("records") or [said.get("record")]:
                if record and (record["topic"], record["partition"], record["offset"]) == where:
                    assert (record["key"], record["value"]) == content
                    assert record["headers"] == [["from", "test"]]
                    return


async def test_one_who_writes_to_a_part_of_a_topic_may_write_there(shop: GatewayThread):
    async with socket(address(shop)) as ws, socket(address(shop), "/of/ada") as own:
        assert (await ask(ws, produce("1", path="/of/ada", key="ada")))["type"] == "produced"
        assert (await ask(own, produce("2", key="ada")))["type"] == "produced"
        both = await ask(ws, produce("3", path="/both", topic="stock"))
        assert both["topic"] == "stock"
        assert (await ask(ws, produce("4", topic="orders")))["topic"] == "orders"


# Once, on a real broker.


def values(kafka: KafkaCluster, topic: str, partitions: int) -> list[str]:
    """All values in the topic, by a client that is not the gateway."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "none"})
    try:
        ends = {p: kafka.admin.get_high_watermark(topic, p) for p in range(partitions)}
        consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        found: list[str] = []
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while len(found) < sum(ends.values()):
            assert time.monotonic() < deadline, f"{len(found)} of {ends}"
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                found.append((message.value() or b"").decode())
        return found
    finally:
        consumer.close()


async def until_written(
    proxy: TcpProxy, gateways: list[GatewayThread], message: dict[str, Any], random: Random
) -> int:
    """Send it over sockets that are cut before or after the answer, to any gateway, until one
    answers. How many sockets that took."""
    sockets = 0
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while time.monotonic() < deadline:
        sockets += 1
        host, _, port = address(random.choice(gateways)).rpartition(":")
        proxy.set_target(host, int(port))
        try:
            async with socket(proxy.address) as ws:
                if random.random() < 0.7:
                    proxy.cut_after(random.randrange(80))  # within the answer
                answer = await ask(ws, message)
                if answer["type"] == "produced":
                    return sockets
        except (OSError, EOFError, ConnectionClosed, InvalidHandshake):
            await asyncio.sleep(0.02)
    raise AssertionError(f"never answered: {message}")


@pytest.mark.needs("process")
async def test_what_was_cut_before_its_answer_and_repeated_is_in_kafka_once(
    kafka: KafkaCluster, topic: Callable[..., str]
):
    """Over any gateway, also one that was killed meanwhile and knows nothing any more."""
    name = topic(partitions=3)
    routes = [{"when": [{"path": "/write"}], "with": {"topic": name, "produce": True}}]
    config = build_config(kafka.bootstrap_servers, [name], routes)
    random = Random(4)
    sockets = 0
    async with (
        running_gateway_process(config) as first,
        running_gateway_process(config) as second,
        TcpProxy() as proxy,
    ):
        for n in range(40):
            if n in (15, 30):
                await first.kill()
                await first.start()
            key = {"key": f"k{n}"} if n % 2 else {}
            message = produce(str(n), path="/write", idempotencyKey=f"once-{n}", **key)
            sockets += await until_written(proxy, [first, second], message, random)
    print(f"40 records, {sockets} sockets")
    assert sockets > 60, "hardly anything was cut"
    written = await asyncio.to_thread(values, kafka, name, 3)
    assert sorted(map(int, written)) == list(range(40))


async def test_a_client_that_went_away_finds_its_record_when_it_repeats_it(
    kafka: KafkaCluster, topic: Callable[..., str]
):
    """It is cut when Kafka has the record, and the gateway has not been answered."""
    name = topic(partitions=1)
    routes = [{"when": [{"path": "/write"}], "with": {"topic": name, "produce": True}}]
    message = produce("1", path="/write", idempotencyKey="k")
    async with running_gateway(build_config(kafka.bootstrap_servers, [name], routes)) as gateway:
        async with TcpProxy(*_at(gateway)) as proxy, socket(proxy.address) as ws:
            proxy.set_delay(0.5)  # its answer is on the way when the cut comes
            await ws.send(json.dumps(message))
            await wait_until(lambda: kafka.admin.get_high_watermark(name) == 1, "the record")
            proxy.cut()
        async with socket(address(gateway)) as ws:
            answer = await ask(ws, message)
            assert (answer["offset"], answer.get("repeated")) == (0, True)
    assert await asyncio.to_thread(values, kafka, name, 1) == ["1"]


def _at(gateway: GatewayThread) -> tuple[str, int]:
    host, _, port = address(gateway).rpartition(":")
    return host, int(port)
