"""The sidecar beside the streams, in two processes on one port: to its callers it is one."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from os import kill
from signal import SIGHUP

import httpx
import pytest
from confluent_kafka.admin import AdminClient
from support.backend import FakeBackend, running_backend
from support.brokers import KafkaCluster
from support.clients.raw import RawClient
from support.dead_letters import read_committed
from support.gateways import GatewayProcess, build_config
from support.reactive import build_settings
from support.received import parse_events
from support.waiting import wait_until
from support.workers import find_workers, running_workers

LONG = 60.0  # s


@pytest.fixture
async def backend() -> AsyncIterator[FakeBackend]:
    async with running_backend() as backend:
        yield backend


async def post(gateway: GatewayProcess, topic: str, value: object, key: str | None = None) -> str:
    """On a connection of its own, which any worker may take."""
    headers = {} if key is None else {"Idempotency-Key": key}
    body = {"valueFormat": "json", "records": [{"key": json.dumps(value), "value": value}]}
    url = f"{gateway.base_url}/producers/{topic}"
    async with httpx.AsyncClient(trust_env=False, timeout=LONG) as http:
        answer = await http.post(url, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.text


def members(kafka: KafkaCluster, group: str) -> int:
    """Those that have partitions."""
    client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    (described,) = client.describe_consumer_groups([group]).values()
    return sum(bool(each.assignment.topic_partitions) for each in described.result(30).members)


async def test_two_workers_write_once_and_share_a_reactive_group_until_they_end(
    kafka: KafkaCluster, topic, backend: FakeBackend
):
    name = topic(partitions=4)
    group = build_settings(backend, name)
    producer = {"idempotency": {"topic": f"idempotency-{uuid.uuid4().hex[:8]}"}}
    sidecar = {"producer": producer, "reactive": {"groups": group}}
    config = build_config(kafka.bootstrap_servers, [name], sidecar=sidecar)
    async with running_workers(config, 2) as gateway:
        async with RawClient(f"{gateway.base_url}/records/{name}") as client:
            await client.wait_for_events(1, LONG)
            async with asyncio.timeout(LONG):
                while await asyncio.to_thread(members, kafka, group["group"]) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            twins = [post(gateway, name, {"n": -1}, "the-key") for _ in range(8)]
            assert len(set(await asyncio.gather(*twins))) == 1
            await asyncio.gather(*(post(gateway, name, {"n": n}) for n in range(100)))
            await wait_until(
                lambda: len({each["value"]["n"] for each in backend.processed_records}) >= 101,
                "all at the back end",
                LONG,
            )
            await client.wait_for_events(lambda events: len(parse_events(events)) >= 101, LONG)
        # At least once: what is not answered in time comes again.
        assert {each["value"]["n"] for each in backend.processed_records} == set(range(-1, 100))

        gateway.write_config({**config, "sidecar": {**sidecar, "producer": {"maxBytes": "2MB"}}})
        kill(gateway.pid, SIGHUP)
        told = "until a restart as before: sidecar"
        await wait_until(lambda: gateway.log.count(told) >= 2, "both to say so", LONG)
        await post(gateway, name, {"n": 100})
        assert len(find_workers(gateway)) == 2
        assert await gateway.stop() == 0
    assert await asyncio.to_thread(members, kafka, group["group"]) == 0
    assert len(await asyncio.to_thread(read_committed, kafka, name, 4)) == 102
