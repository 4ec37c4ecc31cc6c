"""Several consumer instances of one sidecar: of one group under load, and very many."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections import Counter

import httpx
import psutil
import pytest
from support.gateways import build_config, create_http_client, running_gateway_process
from support.instances import ConsumerInstance, generate_group
from support.sidecars import running_sidecar, wait_until_ready

# Of the thousand; GATEWAY_EVERY_INSTANCE=1 for all of them.
EVERY = int(os.environ.get("GATEWAY_EVERY_INSTANCE", "5"))
SIDECAR = (sys.executable, "-m", "gateway", "sidecar", "-c")


async def test_what_one_member_committed_is_no_others_and_nothing_is_lost_in_between(
    kafka, topic, oracle
):
    """Members come and go while records are written; each commits what it got, one partition at a
    time. A record is committed exactly once, whoever got it besides."""
    name, group, total = topic(partitions=4), generate_group(), 1200
    committed: Counter[tuple[int, int]] = Counter()

    async def consume(http: httpx.AsyncClient, until: asyncio.Event) -> None:
        instance = await ConsumerInstance.create_instance(http, group, autoCommitEnable="false")
        await instance.subscribe(name)
        while not until.is_set():
            last: dict[int, list[int]] = {}
            for record in await instance.poll_records(
                timeout_ms=300, format="binary", max_bytes=20_000
            ):
                last.setdefault(record["partition"], []).append(record["offset"])
            for partition, offsets in last.items():
                answer = await instance.commit_offsets({(name, partition): offsets[-1]})
                assert answer.status_code in (200, 409), answer.text
                if answer.status_code == 200:
                    committed.update((partition, offset) for offset in offsets)
        await instance.delete_instance()

    async def write() -> None:
        for _ in range(total // 50):
            await oracle.produce_records(name, 50, fields={"filling": "x" * 200})
            await asyncio.sleep(0.05)

    async with running_sidecar(kafka.bootstrap, consumer={}) as http:
        await wait_until_ready(http)
        ends = [asyncio.Event() for _ in range(3)]
        async with asyncio.timeout(150), asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write())
            tasks.create_task(consume(http, ends[0]))
            await reached(committed, 100)
            tasks.create_task(consume(http, ends[1]))
            await reached(committed, 400)
            ends[0].set()
            await reached(committed, 600)
            tasks.create_task(consume(http, ends[2]))
            await writing
            await reached(committed, total)
            for end in ends:
                end.set()
    assert len(committed) == total
    assert set(committed.values()) == {1}


async def reached(committed: Counter[tuple[int, int]], count: int) -> None:
    while True:
        if len(committed) >= count:
            return
        await asyncio.sleep(0.02)


@pytest.mark.night
async def test_a_thousand_instances_that_are_left_are_ended_and_their_memory_is_given_back(
    kafka, topic
):
    """Every fifth is subscribed: to have a thousand members come and go takes brokers a minute."""
    name = topic(partitions=4)
    config = build_config(kafka.bootstrap, [], [], sidecar={"consumer": {"instanceTimeout": "3s"}})

    async def some(http: httpx.AsyncClient, count: int) -> None:
        async def one(number: int) -> None:
            status = 404
            while status == 404:  # on a busy machine it may have expired before it could subscribe
                instance = await ConsumerInstance.create_instance(http, f"{name}-{number % 100}")
                if number % EVERY:
                    return
                subscription = {"topics": [name]}
                answer = await instance.send_request("POST", "/subscriptions", subscription)
                status = answer.status_code
            assert status == 204, answer.text

        for start in range(0, count, 20):
            await asyncio.gather(*(one(number) for number in range(start, start + 20)))

    async with (
        running_gateway_process(config, command=SIDECAR) as gateway,
        create_http_client(gateway) as http,
    ):
        process = psutil.Process(gateway.pid)
        await some(http, 200)
        await ended(http, 200)
        memory, threads = gateway.memory_bytes, process.num_threads()
        await some(http, 1000)
        assert process.num_threads() == threads
        await ended(http, 1200)
        assert gateway.memory_bytes <= memory * 1.1
        assert process.num_threads() == threads


async def ended(http: httpx.AsyncClient, count: int) -> None:
    """Until so many are, and nothing is left of them at the coordinator's."""
    async with asyncio.timeout(120):
        while True:
            text = (await http.get("/metrics")).text
            found = re.search(r'gateway_consumer_ended_total\{reason="expired"\} (\d+)', text)
            if found is not None and int(found[1]) >= count:
                break
            await asyncio.sleep(0.1)
