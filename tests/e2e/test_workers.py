"""Three processes on one port: to clients they are one gateway, whichever of them answers, also
while one crashes, all of them drain, or what looks after them is gone."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import httpx
import pytest
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.gateways import GatewayProcess, build_config
from support.oracle import StreamOracle, read_records
from support.received import parse_events
from support.tasks import running_task
from support.tcp_proxy import TcpProxy
from support.waiting import WAIT_TIMEOUT_S, wait_until
from support.workers import (
    count_connections,
    find_workers,
    has_ended,
    running_workers,
    wait_for_workers,
)
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from gateway.core.log.record import TopicPartition
from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.needs("process")

CLIENTS = 40
PARTITIONS = 3
START = {TopicPartition("orders", p): 0 for p in range(PARTITIONS)}

kafka = embedded_kafka({"orders": PARTITIONS}, scope="function")


def config(kafka: EmbeddedKafka, **listen: Any) -> dict[str, Any]:
    return build_config(kafka.bootstrap, ["orders"], listen=listen)


async def connected(stack: AsyncExitStack, gateway: GatewayProcess, count: int) -> list[RawClient]:
    """So many clients, each with its first block."""
    url = f"{gateway.base_url}/records/orders"
    made = [RawClient(url) for _ in range(count)]
    for client in made:
        await stack.enter_async_context(client)
    await asyncio.gather(*(client.wait_for_events(1) for client in made))
    return made


def opened(clients: list[RawClient]) -> int:
    """Return how many connections all of them have had."""
    return sum(client.open_count for client in clients)


async def have_all(clients: list[RawClient], oracle: StreamOracle) -> None:
    """Until each has as many records as Kafka; then nothing is lost, twice or out of order."""
    count = len(oracle.list_acked())
    for client in clients:
        await client.wait_for_events(lambda events: len(parse_events(events)) >= count)
        oracle.check_events(client.events, start=START)


async def test_clients_are_spread_and_resume_at_whichever_worker_answers(
    kafka: EmbeddedKafka, oracle: StreamOracle
):
    """Of processes that Python started, not of forks."""
    random = Random(7)
    async with (
        running_workers(config(kafka), is_forked=False) as gateway,
        AsyncExitStack() as stack,
    ):
        made = await connected(stack, gateway, CLIENTS)
        assert all(count_connections(gateway).values()), "a worker has no client"
        rounds = 0
        while rounds < 15 or opened(made) <= 2 * CLIENTS:
            rounds, before = rounds + 1, opened(made)
            await oracle.produce_records("orders", 20)
            for client in random.sample(made, 10):
                client.cut_after(random.randrange(1500), reset=random.random() < 0.5)
            if rounds >= 15:  # few have come back for now: the machine is busy
                await wait_until(lambda before=before: opened(made) > before, "one of them")
        await have_all(made, oracle)
        lines = gateway.log.splitlines()
        assert sum("listening on" in line for line in lines) == 1
        (line,) = [line for line in lines if "reads Kafka on its own" in line]
        assert line.startswith("3 workers;")
        assert await gateway.stop() == 0


@pytest.mark.smoke
async def test_clients_of_a_worker_that_was_killed_go_on_with_the_others(
    kafka: EmbeddedKafka, oracle: StreamOracle
):
    async with running_workers(config(kafka)) as gateway, AsyncExitStack() as stack:
        made = await connected(stack, gateway, CLIENTS)
        async with running_task(write_on(oracle)):
            for n, number in enumerate((1, 3)):
                victim = find_workers(gateway)[number]
                had = count_connections(gateway)[number]
                before = sum(client.open_count for client in made)
                victim.kill()
                await wait_until(
                    lambda had=had, before=before: (
                        sum(client.open_count for client in made) >= before + had
                    ),
                    "its clients are served again",
                )
                await wait_for_workers(gateway, start_count=4 + n)
                assert find_workers(gateway)[number].pid != victim.pid
                assert f"worker {number} ended with status -9" in gateway.log
        await oracle.produce_records("orders", 5)
        await have_all(made, oracle)
        assert await gateway.stop() == 0


async def write_on(oracle: StreamOracle) -> None:
    while True:
        await asyncio.shield(oracle.produce_records("orders", 5))
        await asyncio.sleep(0.02)


async def test_all_workers_drain_and_nothing_is_lost_over_a_restart(
    kafka: EmbeddedKafka, oracle: StreamOracle
):
    async with running_workers(config(kafka)) as gateway, AsyncExitStack() as stack:
        made = await connected(stack, gateway, CLIENTS)
        await oracle.produce_records("orders", 30)
        await have_all(made, oracle)
        processes = find_workers(gateway)
        assert await gateway.stop() == 0
        assert all(map(has_ended, processes.values()))
        assert "Traceback" not in gateway.log, gateway.read_log_tail()
        for client in made:
            await client.stop()
            assert client.events[-1]["event"] == "end"
            assert json.loads(client.events[-1]["data"]) == {"reason": "drain"}
        assert max(c.reconnect_delay for c in made) - min(c.reconnect_delay for c in made) > 1
        await oracle.produce_records("orders", 10)  # while there is no gateway
        await gateway.start()
        await asyncio.gather(*(client.start() for client in made))
        await have_all(made, oracle)


async def test_workers_without_a_supervisor_drain_and_free_the_port(kafka: EmbeddedKafka):
    async with running_workers(config(kafka)) as gateway, AsyncExitStack() as stack:
        made = await connected(stack, gateway, 9)
        processes = find_workers(gateway)
        await gateway.kill()
        await wait_until(lambda: all(map(has_ended, processes.values())), "their end")
        for client in made:
            await client.stop()
            assert json.loads(client.events[-1]["data"]) == {"reason": "drain"}
        await gateway.start()


@pytest.mark.smoke
async def test_the_embedded_kafka_is_one_for_all_workers():
    """What is written by way of one is read at every other."""
    routes = [{"when": [{"path": "/orders"}], "with": {"topic": "orders", "produce": True}}]
    made = {
        "listen": {"port": 0}, "routes": routes,
        "kafka": {"servers": "embedded", "topics": [{"name": "orders"}]},
    }  # fmt: skip
    async with running_workers(made) as gateway, AsyncExitStack() as stack:
        url = f"{gateway.base_url}/orders"
        reading = [await stack.enter_async_context(RawClient(url)) for _ in range(CLIENTS)]
        await asyncio.gather(*(client.wait_for_events(1) for client in reading))
        assert all(count_connections(gateway).values())
        async with socket(gateway.base_url) as ws:
            produced = await ask(ws, {"type": "produce", "id": "1", "path": "/orders", "value": 1})
            assert produced["type"] == "produced"
        for client in reading:
            await client.wait_for_events(lambda events: len(parse_events(events, "value")) == 1)


def socket(url: str) -> connect:
    return connect(f"{url.replace('http', 'ws', 1)}/ws", proxy=None)


async def ask(ws: ClientConnection, message: dict[str, Any]) -> Any:
    """The answer that names the message's id."""
    await ws.send(json.dumps(message))
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while True:
            answer = json.loads(await ws.recv())
            if answer.get("id") == message["id"]:
                return answer


@pytest.mark.smoke
async def test_a_record_that_is_repeated_at_any_worker_is_in_kafka_once(kafka: EmbeddedKafka):
    """Its sockets are cut before or after the answer, and a worker is killed meanwhile: what one
    wrote the others know from Kafka alone."""
    routes = [{"when": [{"path": "/orders"}], "with": {"topic": "orders", "produce": True}}]
    random, sockets, served = Random(3), 0, 0
    made = build_config(kafka.bootstrap, ["orders"], routes)
    async with running_workers(made) as gateway, TcpProxy("127.0.0.1", gateway.port) as proxy:
        for n in range(30):
            if n in (10, 20):
                find_workers(gateway)[n // 10].kill()
                served += 1
            message = {"type": "produce", "id": "1", "path": "/orders", "value": n,
                       "idempotencyKey": f"once-{n}"}  # fmt: skip
            sockets += await repeated(proxy, message | ({"key": f"{n}"} if n % 2 else {}), random)
        await wait_for_workers(gateway, start_count=3 + served)
    assert sockets > 45, "hardly anything was cut"
    written = await read_records(",".join(kafka.bootstrap), "orders", min_records=30)
    assert sorted(int(record.value or b"") for record in written) == list(range(30))


async def test_a_record_that_all_workers_have_under_way_at_once_is_in_kafka_once():
    """Its partition has no leader for a while: what the others are about to write is in no log
    yet, and sockets that wrote before do not look there again."""
    routes = [{"when": [{"path": "/orders"}], "with": {"topic": "orders", "produce": True}}]
    with EmbeddedKafka({"orders": 1}, fetch_version=11) as kafka:
        made = build_config(kafka.bootstrap, ["orders"], routes)
        async with running_workers(made) as gateway, AsyncExitStack() as stack:
            url = gateway.base_url
            sockets = [await stack.enter_async_context(socket(url)) for _ in range(CLIENTS)]
            assert all(count_connections(gateway).values())
            for n, ws in enumerate(sockets):
                assert (await ask(ws, keyed(n)))["offset"] == n
            for n in range(CLIENTS, CLIENTS + 3):
                kafka.lead("orders", 0, None)
                asking = [asyncio.create_task(ask(ws, keyed(n))) for ws in sockets]
                await asyncio.wait(asking, timeout=0.3)  # all of them are under way
                kafka.lead("orders", 0, 1)
                answers = await asyncio.gather(*asking)
                assert {answer.get("offset") for answer in answers} == {n}, answers
        written = await read_records(",".join(kafka.bootstrap), "orders", min_records=CLIENTS + 3)
        assert [int(record.value or b"") for record in written] == list(range(CLIENTS + 3))


def keyed(n: int) -> dict[str, Any]:
    key = {"key": "k", "idempotencyKey": f"once-{n}"}
    return {"type": "produce", "id": f"{n}", "path": "/orders", "value": n, **key}


async def repeated(proxy: TcpProxy, message: dict[str, Any], random: Random) -> int:
    """Until it is answered. How many sockets that took."""
    sockets = 0
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while True:
            sockets += 1
            try:
                async with socket(f"http://{proxy.address}") as ws:
                    if random.random() < 0.6:
                        proxy.cut_after(random.randrange(80))  # within the answer
                    answer = await ask(ws, message)
                    assert answer["type"] == "produced", answer
                    return sockets
            except (OSError, EOFError, ConnectionClosed, InvalidHandshake):
                await asyncio.sleep(0.02)


async def test_while_a_worker_is_being_started_again_and_again_all_who_come_are_served(
    kafka: EmbeddedKafka,
):
    async with running_workers(config(kafka)) as gateway:

        async def crash() -> None:
            while True:
                for process in [find_workers(gateway).get(2)]:
                    if process is not None:
                        process.kill()
                await asyncio.sleep(0.05)

        async with (
            running_task(crash()),
            httpx.AsyncClient(trust_env=False, timeout=WAIT_TIMEOUT_S) as http,
        ):
            await wait_until(lambda: gateway.log.count("worker 2 ended") > 3, "crashes")
            answered = 0
            for _ in range(60):
                url = f"{gateway.base_url}/health/live"
                try:
                    answer = await http.get(url, headers={"Connection": "close"})
                except httpx.TransportError:
                    continue  # it was in the hands of the one that was killed
                answered += answer.status_code == 200
        assert answered > 40
        await gateway.stop()
