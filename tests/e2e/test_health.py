"""Readiness, and how a gateway ends: with a word to every stream and a time to come back."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable

import httpx
import pytest
from support.brokers import KafkaCluster
from support.clients.raw import RawClient
from support.gateways import GatewayProcess, build_config, build_route, running_gateway_process
from support.kafka_proxy import KafkaProxy
from support.oracle import StreamOracle
from support.waiting import wait_until

Topic = Callable[..., str]
EVENT_SOURCE = {"Accept": "text/event-stream", "Sec-Fetch-Mode": "cors"}


async def ask(gateway: GatewayProcess, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        return await http.get(gateway.base_url + path, headers=headers)


async def readiness(gateway: GatewayProcess, status: int, reason: str = "") -> None:
    """Until /health/ready says so."""
    last = ""

    async def look() -> None:
        nonlocal last
        while True:
            answer = await ask(gateway, "/health/ready")
            last = f"{answer.status_code} {answer.text}"
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["cache-control"] == "no-store"
            if answer.status_code == status and reason in answer.text:
                return
            await asyncio.sleep(0.05)

    try:
        await asyncio.wait_for(look(), 40)
    except TimeoutError:
        raise AssertionError(f"/health/ready says {last}, not {status} {reason}") from None


async def test_it_is_ready_while_kafka_is_there_and_its_topics_are_warm(kafka: KafkaCluster):
    """Begun without Kafka, and Kafka without the topic: each is said, and nothing but waiting
    is needed."""
    name = "warmed-before-readiness"
    async with KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as network:
        await network[1].refuse()
        config = build_config(network.bootstrap, [name], kafka={"bootstrap": [name]})
        async with running_gateway_process(config, ready=False) as gateway:
            assert (await ask(gateway, "/health/live")).json() == {"status": "live"}
            await readiness(gateway, 503, "no broker was reached")
            program = await ask(gateway, f"/events/{name}")
            assert program.status_code == 503
            assert int(program.headers["retry-after"]) >= 1
            assert program.json()["title"] == "Kafka is unavailable"
            page = await ask(gateway, f"/events/{name}", **EVENT_SOURCE)
            assert page.status_code == 200
            assert page.text.startswith("retry: ") and "event: end\n" in page.text
            await network[1].unhide()
            await readiness(gateway, 503, f"bootstrap topic {name} is not warm yet")
            try:
                kafka.admin.create_topic(name, 3)
                await readiness(gateway, 200, '"ready"')
                await network[1].refuse()
                await readiness(gateway, 503, "no broker was reached")
                await network[1].unhide()
                await readiness(gateway, 200)
            finally:
                kafka.admin.delete_topic(name)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_told_to_end_it_says_so_to_every_stream_and_ends(
    kafka: KafkaCluster, topic: Topic, number: signal.Signals
):
    name = topic(partitions=3)
    config = build_config(
        kafka.bootstrap_servers, [name], listen={"drainTimeout": "5m"}
    )  # which nobody needs
    async with (
        StreamOracle(kafka.bootstrap_servers) as oracle,
        running_gateway_process(config) as gateway,
    ):
        clients = [RawClient(f"{gateway.base_url}/records/{name}", retry=0.05) for _ in range(20)]
        try:
            await asyncio.gather(*(client.__aenter__() for client in clients))
            await asyncio.gather(*(client.wait_for_events(1) for client in clients))
            await oracle.produce_records(name, 30)
            await asyncio.gather(*(client.wait_for_events(31) for client in clients))
            gateway.send_signal(number)
            await wait_until(lambda: not gateway.is_alive, "the end")
            assert await gateway.stop() == 0
            retries = []
            for client in clients:
                assert json.loads(client.events[-1]["data"]) == {"reason": "drain"}
                assert client.events[-1]["event"] == "end"
                retries.append(client.reconnect_delay)
                assert client.body.endswith(b"\n\n"), client.body[-50:]
            assert max(retries) - min(retries) > 1, "they would all come back at once"
            await asyncio.gather(*(client.stop() for client in clients))
            await oracle.produce_records(name, 10)  # while there is no gateway
            await gateway.start()
            await asyncio.gather(*(client.start() for client in clients))
            await asyncio.gather(
                *(client.wait_for_events(enough(40), within=40) for client in clients)
            )
            for client in clients:
                oracle.check_events(client.events, start=dict.fromkeys(oracle.get_end_offsets(), 0))
        finally:
            await asyncio.gather(*(client.__aexit__() for client in clients))


def enough(count: int) -> Callable[..., bool]:
    return lambda events: sum(each["event"] == "message" for each in events) >= count


async def test_a_client_that_reads_nothing_does_not_hold_up_the_end(
    kafka: KafkaCluster, topic: Topic
):
    name = topic()
    listen = {"drainTimeout": "2s"}
    config = build_config(
        kafka.bootstrap_servers, [name], [build_route(name, "value")], listen=listen
    )
    async with (
        StreamOracle(kafka.bootstrap_servers) as oracle,
        running_gateway_process(config) as gateway,
    ):
        url = f"{gateway.base_url}/events/{name}"
        async with RawClient(url, receive_buffer=4096) as deaf, RawClient(url) as other:
            await deaf.wait_for_events(1)
            await other.wait_for_events(1)
            deaf.stop_reading()
            await oracle.produce_records(name, 3000, fields={"padding": "x" * 2000})
            await other.wait_for_events(3001)
            assert await gateway.stop() == 0
            await other.stop()
            assert other.events[-1]["event"] == "end"


async def test_a_port_in_use_is_told_in_one_line(kafka: KafkaCluster):
    config = build_config(kafka.bootstrap_servers, ["any"])
    async with running_gateway_process(config, ready=False) as first:
        taken = {**config, "listen": {"port": first.port}}
        with pytest.raises(AssertionError, match=r"status 1(.|\n)*cannot listen on") as told:
            async with running_gateway_process(taken, ready=False):
                pass
        assert "Traceback" not in str(told.value)
        await wait_until(lambda: first.is_alive)
