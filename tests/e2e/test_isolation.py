"""Each client is sent its own records, whoever else is there, and however alike their views look.

GATEWAY_ISOLATION_CLIENTS and GATEWAY_ISOLATION_RECORDS make the crowd larger; `make isolation`
does, for ten minutes or so of two cores.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from confluent_kafka import Producer
from support.brokers import KafkaCluster
from support.clients.raw import RawClient
from support.clients.wires import WireName, client_for_wire, every_wire
from support.digest_collisions import find_colliding_pairs, find_cross_collision
from support.gateways import (
    build_config,
    running_gateway,
    running_gateway_process,
)
from support.keyed_clients import KeyedClients, build_value
from support.multiplex import MultiplexClient
from support.records import RecordToSend, produce_records
from support.waiting import WAIT_TIMEOUT_S

from gateway.core.channel.filters import Filter, Filters
from gateway.hub.reads.view import View
from gateway.kafka.embedded import EmbeddedKafka

GUARD = "users"
CLIENTS = int(os.environ.get("GATEWAY_ISOLATION_CLIENTS", "500"))
RECORDS = int(os.environ.get("GATEWAY_ISOLATION_RECORDS", "40"))  # to each client
AT_ONCE = 10  # of them
PARTITIONS = 12
WHOLE_LIMIT_S = 3600.0 if CLIENTS > 500 else 600.0
FILES_BESIDE = 500  # that a process has open besides its clients


def own(who: str, fields: Sequence[str] = (), topic: str = "orders") -> View:
    """What a client of this name is shown by a route of its own key."""
    return View((topic,), Filters((Filter(key=who.encode()),)), "value", "error", tuple(fields))


def route(path: str, key: str | None = None, **options: Any) -> dict[str, Any]:
    filters = {} if key is None else {"filters": [{"key": key}]}
    with_ = {"topic": "orders", "format": "value", **filters, **options}
    return {"when": [{"path": path}], "with": with_}


def secret_of(who: str) -> dict[str, Any]:
    return {"id": 1, "secret": f"of {who}"}


def record_of(who: str) -> RecordToSend:
    return RecordToSend(json.dumps(secret_of(who)).encode(), who.encode())


async def heard(client: RawClient, count: int) -> list[Any]:
    """The first records that it was sent, at least so many."""

    def values() -> list[Any]:
        return [json.loads(each["data"]) for each in client.events if each["event"] == "message"]

    await client.wait_for_events(lambda events: len(values()) >= count)
    return values()


@every_wire
async def test_two_clients_on_keys_of_their_own_are_each_sent_their_own_records(
    embedded: EmbeddedKafka, wire: WireName
):
    """A channel was found by a digest of 30 bits of the view. Of two views with the same one, the
    client of the second was sent the records of the first's filter, and none of its own."""
    (names,) = find_colliding_pairs(own, 1)
    embedded.create_topic("orders")
    config = build_config(embedded.bootstrap, ["orders"], [route("/own/{who}", "${params.who}")])
    async with running_gateway(config) as gateway, AsyncExitStack() as stack:
        clients = []
        for name in names:
            client = client_for_wire(wire, RawClient)(f"{gateway.base_url}/own/{name}")
            clients.append(await stack.enter_async_context(client))
            await client.wait_for_events(1)
        await produce_records(embedded.bootstrap, "orders", [record_of(name) for name in names * 3])
        for name, client in zip(names, clients, strict=True):
            assert await heard(client, 3) == [secret_of(name)] * 3


async def test_streams_of_one_socket_and_of_others_are_sent_their_own_under_any_labels(
    embedded: EmbeddedKafka,
):
    """The same with several streams on a socket: two whose views collide, and the same labels the
    other way round on a second socket."""
    (names,) = find_colliding_pairs(own, 1)
    embedded.create_topic("orders")
    config = build_config(embedded.bootstrap, ["orders"], [route("/own/{who}", "${params.who}")])
    async with (
        running_gateway(config) as gateway,
        MultiplexClient(gateway.base_url) as one,
        MultiplexClient(gateway.base_url) as other,
    ):
        streams = [(one, names), (other, names[::-1])]
        for socket, whose in streams:
            for label, who in zip("ab", whose, strict=True):
                await socket.subscribe(label, f"/own/{who}")
        await produce_records(embedded.bootstrap, "orders", map(record_of, names * 3))
        for socket, whose in streams:
            await socket.wait_until(lambda socket=socket: sum(socket.record_counts.values()) == 6)
            for label, who in zip("ab", whose, strict=True):
                assert socket.get_records(label) == [secret_of(who)] * 3


async def test_a_filter_that_a_client_chose_does_not_lead_it_into_the_stream_of_another(
    embedded: EmbeddedKafka,
):
    """Who may filter could look for a key whose view had the digest of somebody else's, without
    asking the gateway, and was sent that one's records, guarded or not."""
    ((victim, key),) = find_colliding_pairs(own, 1)
    embedded.create_topic("orders")
    mine = route("/mine", f"${{guarded['{GUARD}'].identity}}") | {"guarded": {GUARD: []}}
    routes = [mine, route("/search", clientFilters=True)]
    guards = {GUARD: {"type": "inline", "users": {victim: {"token": "of-the-victim"}}}}
    config = build_config(embedded.bootstrap, ["orders"], routes, guards=guards)
    headers = {"Authorization": "Bearer of-the-victim"}
    async with (
        running_gateway(config) as gateway,
        RawClient(f"{gateway.base_url}/mine", headers=headers) as own_client,
    ):
        await own_client.wait_for_events(1)
        async with RawClient(f"{gateway.base_url}/search?filter=key={key}") as other:
            await other.wait_for_events(1)
            await produce_records(embedded.bootstrap, "orders", map(record_of, (victim, key) * 3))
            assert await heard(own_client, 3) == [secret_of(victim)] * 3
            assert await heard(other, 3) == [secret_of(key)] * 3


@pytest.mark.parametrize("masked_first", [False, True])
async def test_a_client_that_is_shown_some_fields_is_not_shown_others_by_another_view(
    embedded: EmbeddedKafka, masked_first: bool
):
    """The fields, too, were those of whoever came first with the digest."""
    whole, masked = find_cross_collision(own, lambda who: own(who, ["/id"]))
    embedded.create_topic("orders")
    key = "${params.who}"
    routes = [route("/own/{who}", key), route("/some/{who}", key, fields=["/id"])]
    config = build_config(embedded.bootstrap, ["orders"], routes)
    async with running_gateway(config) as gateway, AsyncExitStack() as stack:
        expected = {f"/own/{whole}": secret_of(whole), f"/some/{masked}": {"id": 1}}
        clients = {}
        for path in sorted(expected, reverse=masked_first):
            client = clients[path] = RawClient(gateway.base_url + path)
            await stack.enter_async_context(client)
            await client.wait_for_events(1)
        await produce_records(embedded.bootstrap, "orders", map(record_of, (whole, masked) * 3))
        for path, client in clients.items():
            assert await heard(client, 3) == [expected[path]] * 3


@pytest.mark.needs("process")
@pytest.mark.timeout(WHOLE_LIMIT_S)
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_crowd_on_keys_of_their_own_whose_views_all_collide(
    kafka: KafkaCluster, workers: int, capsys: pytest.CaptureFixture[str]
):
    """Each client's view had the digest of another one's; half of them were sent nothing but
    records of others."""
    topic = kafka.create_unique_topic(PARTITIONS)
    allow_open_files(CLIENTS + FILES_BESIDE)
    pairs = find_colliding_pairs(lambda who: own(who, topic=topic), CLIENTS // 2)
    names = [name for pair in pairs for name in pair]
    routes = [route("/own/{who}", "${params.who}", topic=topic)]
    config = build_config(kafka.bootstrap_servers, [topic], routes)
    async with (
        running_gateway_process(config, arguments=["--workers", str(workers)]) as gateway,
        KeyedClients(gateway.base_url, names) as crowd,
    ):
        for first in range(0, RECORDS, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, RECORDS))
            await asyncio.to_thread(write, kafka.bootstrap_servers, topic, names, numbers)
            await crowd.wait_for_records(numbers.stop)
            if crowd.mismatch_count:
                break
        wrong = [f"{client.mismatches[0]}" for client in crowd.clients if client.mismatches]
        none = {"foreign or twice": 0, "missing": 0, "lost connections": 0}
        assert crowd.build_report(RECORDS) == none, wrong[:5]
        with capsys.disabled():
            print(
                f"\n{len(names)} clients, {workers} workers: {crowd.received_count} records,",
                none,
                end=" ",
            )


def write(servers: str, topic: str, names: Sequence[str], numbers: range) -> None:
    """These of everybody's records, acknowledged."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "log_level": 0})
    for name in names:
        for number in numbers:
            while True:
                try:
                    producer.produce(topic, build_value(name, number), name.encode())
                    break
                except BufferError:
                    producer.poll(0.1)
    assert producer.flush(WAIT_TIMEOUT_S) == 0


def allow_open_files(count: int) -> None:
    """To this process, and to those that it starts from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, max(hard, count)))
