"""`gateway dlq` asks a sidecar that runs: what is shown, what is retried, what is dropped."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest
from support.backend import running_backend
from support.brokers import KafkaCluster
from support.commands import run_command
from support.dead_letters import read_committed, write_dead_letters
from support.fork_server import run_forked
from support.sidecars import running_sidecar, wait_until_ready

pytestmark = pytest.mark.needs("process")


class Told(NamedTuple):
    code: int
    out: str
    err: str


async def dlq(*arguments: str) -> Told:
    done = await asyncio.to_thread(run_forked, "dlq", *arguments)
    return Told(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    """Of two partitions, and its dead letters."""
    name = kafka.create_unique_topic(partitions=2)
    kafka.create_topic(f"{name}.dlq", 2)
    return name


@asynccontextmanager
async def sidecar(
    kafka: KafkaCluster, topic: str, backend: str = "http://127.0.0.1:1", **group: Any
) -> AsyncIterator[str]:
    """Its address. Its one group is `billing`."""
    section = {
        "group": "billing",
        "topics": [topic],
        "backend": {"host": backend},
        "valueFormat": "json",
        **group,
    }
    async with running_sidecar(
        kafka.bootstrap_servers, deadLetter={}, reactive={"groups": section}
    ) as http:
        await wait_until_ready(http)
        yield str(http.base_url)


async def test_those_of_a_group_are_shown_with_their_reason(kafka, topic):
    write_dead_letters(kafka, topic, [1, 2, 3], "billing")
    write_dead_letters(kafka, topic, [9], "shipping")
    async with sidecar(kafka, topic) as url:
        shown = await dlq("show", topic, "--url", url)
        listed = await dlq("show", topic, "--json", "-n", "2", "--url", url)
        others = await dlq("show", topic, "-g", "shipping", "--json", "--url", url)
        nothing = await dlq("show", "nothing-at-all", "--url", url)
    assert shown.code == 0, shown.err
    assert f"from {topic}-1@1  group billing" in shown.out
    assert '{"n": 1}' in shown.out and "| Boom" in shown.out and "h: " in shown.out
    assert [each["group"] for each in json.loads(listed.out)] == ["billing"] * 2
    assert [each["offset"] for each in json.loads(others.out)] == [9]
    assert nothing.code == 1 and nothing.err.startswith("gateway: ")


async def test_the_back_end_gets_each_once_and_what_fails_again_is_told(kafka, topic):
    write_dead_letters(kafka, topic, range(1, 31), "billing")
    async with (
        running_backend() as backend,
        sidecar(kafka, topic, backend.base_url) as url,
    ):
        backend.set_orders(fail=10)
        first = await dlq("retry", topic, "--url", url)
        backend.set_orders()
        second = await dlq("retry", f"{topic}.dlq", "--group", "billing", "--url", url)
        third = await dlq("retry", topic, "--url", url)
        numbers = Counter(each["value"]["n"] for call in backend.calls for each in call["records"])
        backend.set_orders(say=503)
        write_dead_letters(kafka, topic, [77], "billing")
        away = await dlq("retry", topic, "--url", url)
    assert f"{topic}.dlq: 27 processed, 3 returned" in first.out
    assert f"{topic}.dlq: 3 processed" in second.out
    assert "no dead letters wait" in third.out
    assert [each.code for each in (first, second, third, away)] == [1, 0, 0, 1]
    assert "the back end is away" in away.err
    assert numbers == Counter(range(1, 31)) + Counter({10: 1, 20: 1, 30: 1})


async def test_batches_are_sent_until_none_waits_that_was_not_tried(kafka, topic):
    write_dead_letters(kafka, topic, range(1, 31), "billing")
    async with (
        running_backend() as backend,
        sidecar(kafka, topic, backend.base_url, maxPollRecords=10) as url,
    ):
        backend.set_orders(fail=10)
        told = await dlq("retry", topic, "--last", "--url", url)
    assert (told.code, told.out) == (1, f"{topic}.dlq: 3 parked, 27 processed\n"), told.err


async def test_more_than_a_batch_that_fail_again_are_sent_once(kafka, topic):
    """They came again and again: the command never ended, and sent none of the other partition."""
    numbers = [*range(0, 30, 2), 1]
    write_dead_letters(kafka, topic, numbers, "billing")
    async with (
        running_backend() as backend,
        sidecar(kafka, topic, backend.base_url, maxPollRecords=10) as url,
    ):
        backend.set_orders(fail=2)
        told = await dlq("retry", topic, "--url", url)
        sent = Counter(each["value"]["n"] for call in backend.calls for each in call["records"])
    assert (told.code, told.out) == (1, f"{topic}.dlq: 1 processed, 15 returned\n"), told.err
    assert sent == Counter(numbers)


async def test_records_that_are_dead_letters_twice_hide_no_others(kafka, topic):
    """A batch of second letters counted as the end, and most of the others were not tried."""
    for numbers in (range(4), range(4), range(4, 9)):
        write_dead_letters(kafka, topic, numbers, "billing", partition_count=1)
    async with (
        running_backend() as backend,
        sidecar(kafka, topic, backend.base_url, maxPollRecords=2) as url,
    ):
        backend.set_orders(fail=4)
        told = await dlq("retry", topic, "--url", url)
    assert (told.code, told.out) == (1, f"{topic}.dlq: 9 processed, 4 returned\n"), told.err


async def test_those_are_tried_that_wait_behind_what_was_tried(kafka, topic):
    """A console had begun the pass. Those of another partition were never sent, and "20 processed"
    was the report."""
    write_dead_letters(kafka, topic, range(0, 40, 2), "billing")
    async with (
        running_backend() as backend,
        sidecar(kafka, topic, backend.base_url, maxPollRecords=5) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        backend.set_orders(fail=1)
        for _ in range(3):
            assert (await http.get("/consumers/deadLetter/reactive")).json()["returned"] == 5
        write_dead_letters(kafka, topic, range(1, 61, 2), "billing")
        told = await dlq("retry", topic, "--url", url)
    assert (told.code, told.out) == (1, f"{topic}.dlq: 50 returned\n"), told.err


async def test_what_is_dropped_is_passed_over_and_its_records_stay(kafka, topic):
    write_dead_letters(kafka, topic, [1, 2], "billing")
    async with sidecar(kafka, topic) as url:
        refused = await dlq("drop", topic, "--url", url)
        dropped = await dlq("drop", topic, "--yes", "--url", url)
        shown = await dlq("show", topic, "--url", url)
    assert refused.code == 1
    assert (dropped.code, f"{topic}: 2 dead letters of billing dropped" in dropped.out) == (0, True)
    assert re.fullmatch(f"{topic}: no dead letters of billing wait\n", shown.out)
    assert len(read_committed(kafka, f"{topic}.dlq", 2)) == 2


async def test_a_sidecar_that_is_not_there_is_said():
    result = await run_command("dlq", "show", "orders", "--url", "http://127.0.0.1:1")
    assert (result.exit_code, "no sidecar answers" in result.stderr) == (1, True)
