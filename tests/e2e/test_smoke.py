"""The real program, as an operator starts it: each of README.md's promises to clients once.

What else is true of each is shown by the tests that README.md names beside it.
"""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from support.clients.fast_reconnect import FastReconnectClient
from support.clients.raw import RawClient
from support.gateways import (
    GatewayProcess,
    build_config,
    build_route,
    create_http_client,
    running_gateway_process,
)
from support.multiplex import MultiplexClient
from support.oracle import StreamOracle, read_records
from support.received import GapEvent, parse_events
from support.waiting import wait_until

from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.smoke

SIDECAR = {"producer": {"valueFormat": "string"}}


@pytest.fixture
def kafka() -> Any:
    with EmbeddedKafka({"orders": 2}, fetch_version=11) as kafka:
        yield kafka


@pytest.fixture
async def gateway(kafka: EmbeddedKafka) -> AsyncIterator[GatewayProcess]:
    routes = [
        build_route("orders", "envelope", produce=True),
        {
            "when": [{"path": "/orders", "method": "POST"}],
            "with": {"topic": "orders", "capability": "produce"},
        },
    ]
    config = build_config(kafka.bootstrap, ["orders"], routes, sidecar=SIDECAR)
    async with running_gateway_process(config) as gateway:
        yield gateway


@pytest.fixture
async def oracle(kafka: EmbeddedKafka) -> AsyncIterator[StreamOracle]:
    async with StreamOracle(kafka.bootstrap[0]) as oracle:
        yield oracle


def has_records(client: RawClient, count: int) -> Callable[[Any], bool]:
    return lambda _: sum(each["event"] == "message" for each in client.events) >= count


async def test_a_stream_begins_with_the_partitions_that_can_be_read_and_the_other_joins_it(
    kafka: EmbeddedKafka, gateway: GatewayProcess, oracle: StreamOracle
):
    kafka.lead("orders", 1, None)
    await gateway.restart(ready=False)
    async with RawClient(f"{gateway.base_url}/records/orders") as client:
        await client.wait_for_events(1)
        assert client.events[0]["event"] == "begin"
        await oracle.produce_records("orders", 5, partition=0)
        await client.wait_for_events(has_records(client, 5))
        kafka.lead("orders", 1, 1)
        await client.wait_for_events(lambda _: client.events[-1]["event"] == "ready")
        await oracle.produce_records("orders", 5, partition=1)
        await client.wait_for_events(has_records(client, 10))
        oracle.check_events(client.events)


async def test_a_client_goes_on_exactly_where_it_was_over_a_cut_and_a_kill(
    gateway: GatewayProcess, oracle: StreamOracle
):
    async with FastReconnectClient(f"{gateway.base_url}/records/orders") as client:
        await client.wait_for_events(1)
        client.cut_after(700)
        await oracle.produce_records("orders", 20)
        await client.wait_for_events(has_records(client, 20))
        await wait_until(lambda: client.open_count == 2, "it comes back")
        await gateway.kill()
        await oracle.produce_records("orders", 20)
        await gateway.start()
        await client.wait_for_events(has_records(client, 40))
        oracle.check_events(client.events)
        assert client.open_count >= 3


async def test_what_kafka_deleted_is_one_gap_with_its_bounds(
    kafka: EmbeddedKafka, gateway: GatewayProcess, oracle: StreamOracle
):
    async with RawClient(f"{gateway.base_url}/records/orders") as client:
        await client.wait_for_events(1)
        await oracle.produce_records("orders", 3, partition=0)
        await client.wait_for_events(has_records(client, 3))
        token = client.last_event_id
    await gateway.kill()
    await oracle.produce_records("orders", 10, partition=0)
    kafka.delete_records("orders", {0: 8})
    await gateway.start()
    url = f"{gateway.base_url}/records/orders"
    async with RawClient(url, last_event_id=token) as client:
        await client.wait_for_events(has_records(client, 5))
        gaps = [each for each in parse_events(client.events) if isinstance(each, GapEvent)]
        assert [(gap.start, gap.end, gap.reason) for gap in gaps] == [(3, 8, "retention")]


async def test_a_client_that_stops_reading_delays_nobody_and_gets_all(
    gateway: GatewayProcess, oracle: StreamOracle
):
    url = f"{gateway.base_url}/records/orders"
    async with RawClient(url, receive_buffer=4096) as slow, RawClient(url) as quick:
        for client in (slow, quick):
            await client.wait_for_events(1)
        slow.stop_reading()
        for count in range(100, 500, 100):
            await oracle.produce_records("orders", 100, fields={"pad": "x" * 10_000})
            await quick.wait_for_events(has_records(quick, count))
        assert not has_records(slow, 400)(None)
        slow.resume_reading()
        await slow.wait_for_events(has_records(slow, 400))
        oracle.check_events(slow.events)


async def test_who_follows_is_told_of_the_end_and_the_program_ends_well(
    gateway: GatewayProcess,
):
    async with RawClient(f"{gateway.base_url}/records/orders") as client:
        await client.wait_for_events(1)
        gateway.send_signal(signal.SIGTERM)
        await client.wait_for_events(2)
        end = client.events[-1]
        assert (end["event"], json.loads(end["data"])) == ("end", {"reason": "drain"})
        await client.stop()
    assert await gateway.stop() == 0


async def test_a_record_that_is_repeated_is_in_kafka_once(
    kafka: EmbeddedKafka, gateway: GatewayProcess
):
    """By HTTP and by WebSocket, over a kill of the gateway that wrote it."""
    again = {"Idempotency-Key": "http"}
    for is_repeated in (False, True):
        async with create_http_client(gateway) as http:
            answer = await http.post("/orders", content=b"1", headers=again)
            assert answer.status_code == (200 if is_repeated else 201)
        async with MultiplexClient(gateway.base_url) as socket:
            await socket.send_message(
                "produce", id="p", path="/records/orders", value="2", idempotencyKey="socket"
            )
            produced = await socket.wait_for_message("p", "produced")
            assert bool(produced.get("repeated")) == is_repeated
        if not is_repeated:
            await gateway.restart()
    written = await read_records(",".join(kafka.bootstrap), "orders", min_records=2)
    assert len(written) == 2


async def test_the_sidecar_writes_and_reads_for_its_application(
    kafka: EmbeddedKafka, gateway: GatewayProcess
):
    async with create_http_client(gateway) as http:
        body = {"records": [{"key": "k", "value": "of the sidecar"}]}
        answer = await http.post("/producers/orders", json=body)
        assert answer.status_code == 200, answer.text
    (written,) = await read_records(",".join(kafka.bootstrap), "orders", min_records=1)
    assert (written.key, written.value) == (b"k", b"of the sidecar")


async def test_a_signal_takes_over_the_configuration_and_streams_go_on(
    kafka: EmbeddedKafka, gateway: GatewayProcess, oracle: StreamOracle
):
    async with RawClient(f"{gateway.base_url}/records/orders") as client:
        await client.wait_for_events(1)
        routes = [*gateway.config["routes"], {**build_route("orders", "value")}]
        gateway.write_config({**gateway.config, "routes": routes})
        gateway.send_signal(signal.SIGHUP)
        await wait_until(lambda: "configuration reloaded" in gateway.log, gateway.read_log_tail)
        async with RawClient(f"{gateway.base_url}/events/orders") as other:
            await other.wait_for_events(1)
            await oracle.produce_records("orders", 3)
            for each in (client, other):
                await each.wait_for_events(has_records(each, 3))
        assert client.open_count == 1
