"""`gateway dlq` against a real broker: what is shown, what is retried, what is dropped."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from ruamel.yaml import YAML
from support.backend import running_backend
from support.brokers import KafkaCluster
from support.dead_letters import read_committed, write_dead_letters
from support.fork_server import ForkedCommand, run_forked
from support.gateways import build_config
from support.waiting import wait_until

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


@pytest.fixture
def config(kafka: KafkaCluster, topic: str, tmp_path: Path) -> Callable[..., str]:
    def made(backend: str = "http://127.0.0.1:1") -> str:
        group = {
            "group": "billing",
            "topics": [topic],
            "backend": {"host": backend},
            "valueFormat": "json",
        }
        sidecar = {"deadLetter": {}, "reactive": {"groups": group}}
        file = tmp_path / "gateway.yaml"
        with file.open("w") as out:
            YAML().dump(build_config(kafka.bootstrap_servers, [], [], sidecar=sidecar), out)
        return str(file)

    return made


async def test_what_there_is_is_listed_by_group_and_shown_with_its_reason(kafka, topic, config):
    file = config()
    write_dead_letters(kafka, topic, [1, 2, 3], "billing")
    write_dead_letters(kafka, topic, [9], "shipping")

    listed = await dlq("list", "-c", file, "--json")

    assert listed.code == 0, listed.err
    counts = {each["group"]: each for each in map(json.loads, listed.out.splitlines())
              if each["topic"] == f"{topic}.dlq"}  # fmt: skip
    assert counts.keys() == {"billing", "shipping"}, listed.out + listed.err
    assert counts["billing"]["waiting"] == counts["billing"]["total"] == 3
    assert counts["billing"]["reason"] == "Boom"
    assert counts["shipping"]["waiting"] == 1
    table = await dlq("list", "-c", file, "--group", "billing")
    assert re.search(rf"{topic}\.dlq +billing +3 +3 +\d+ s +Boom", table.out), table.out
    several = await dlq("show", topic, "-c", file)
    assert (several.code, "billing, shipping; give --group" in several.err) == (1, True)
    shown = await dlq("show", topic, "-c", file, "-g", "billing")
    assert f"from {topic}-1@1" in shown.out
    assert '{"n": 1}' in shown.out and "| Boom" in shown.out
    lines = (await dlq("show", topic, "-c", file, "-g", "billing", "--json", "-n", "2")).out
    assert [json.loads(each)["group"] for each in lines.splitlines()] == ["billing"] * 2


async def test_each_goes_back_to_its_topic_once_also_when_it_is_killed_amid_it(
    kafka, topic, config, tmp_path
):
    file, count = config(), 4000
    write_dead_letters(kafka, topic, range(count), "billing")
    command = ForkedCommand(
        ["dlq", "retry", topic, "-c", file, "--to", "topic"], os.environ, tmp_path / "log"
    )
    await wait_until(lambda: command.poll() is not None or read_committed(kafka, topic, 2))
    command.kill()
    command.wait()

    told = await dlq("retry", topic, "-c", file, "--to", "topic")

    assert told.code == 0, told.err
    copies = read_committed(kafka, topic, 2)
    times = Counter(json.loads(each.value())["n"] for each in copies)
    assert len(times) == count
    assert set(times.values()) == {1}
    for each in copies[:50]:
        number = json.loads(each.value())["n"]
        assert (each.partition(), each.key()) == (number % 2, f"k{number}".encode())
        assert each.headers() == [("h", b"1"), ("h", None), ("X-Dead-Letter-Retries", b"1")]
    again = await dlq("retry", topic, "-c", file, "--to", "topic", "-g", "billing")
    assert (again.code, "no dead letters wait" in again.out) == (0, True)


async def test_one_that_its_topic_does_not_take_holds_up_no_other(kafka, topic, config):
    """All of the batch were refused, each time that they were retried."""
    kafka.create_topic(f"{topic}.small", configs={"max.message.bytes": "5000"})
    kafka.create_topic(f"{topic}.small.dlq")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(f"{topic}.small.dlq", os.urandom(6000))
    producer.produce(f"{topic}.small.dlq", b"small")
    assert producer.flush(60) == 0

    arguments = (f"{topic}.small", "-c", config(), "-g", "billing", "--to", "topic")
    told = await dlq("retry", *arguments)

    assert told.code == 1
    assert f"{topic}.small.dlq-0 offset 0 is not copied: too large for the topic" in told.err
    assert "1 copied, 1 parked" in told.out
    assert [each.value() for each in read_committed(kafka, f"{topic}.small")] == [b"small"]


async def test_the_back_end_gets_each_once_and_what_fails_again_is_told(kafka, topic, config):
    write_dead_letters(kafka, topic, range(1, 31), "billing")
    async with running_backend() as backend:
        file = config(backend.base_url)
        backend.set_orders(fail=10)
        first = await dlq("retry", topic, "-c", file, "--limit", "5")
        second = await dlq("retry", topic, "-c", file)
        backend.set_orders()
        third = await dlq("retry", topic, "-c", file)
        numbers = Counter(each["value"]["n"] for call in backend.calls for each in call["records"])
        backend.set_orders(say=503)
        write_dead_letters(kafka, topic, [77], "billing")
        away = await dlq("retry", topic, "-c", file)
    outcomes = [Counter(dict(_counts(each.out))) for each in (first, second)]
    # of partition 0, the first, the limit lets 2, 4, 6, 8 and 10 through
    assert outcomes == [{"processed": 4, "returned": 1}, {"processed": 23, "returned": 3}]
    assert (second.code, third.code, away.code) == (1, 0, 1)
    assert "the back end is away" in away.err
    assert numbers == Counter(range(1, 31)) + Counter({10: 2, 20: 1, 30: 1})


def _counts(out: str) -> list[tuple[str, int]]:
    return [(name, int(count)) for count, name in re.findall(r"(\d+) (processed|returned)", out)]


async def test_what_is_dropped_is_passed_over_and_only_purged_records_are_gone(
    kafka, topic, config
):
    file = config()
    write_dead_letters(kafka, topic, [1, 2], "billing")
    refused = await dlq("drop", topic, "-c", file)
    assert refused.code == 1
    dropped = await dlq("drop", topic, "-c", file, "--yes")
    assert (dropped.code, "2 dropped" in dropped.out) == (0, True)
    assert "no dead letters" in (await dlq("show", topic, "-c", file, "-g", "billing")).out
    everything = await dlq("show", topic, "-c", file, "-g", "billing", "--all", "--json")
    assert len(everything.out.splitlines()) == 2
    assert len(read_committed(kafka, f"{topic}.dlq", 2)) == 2

    purged = await dlq("drop", topic, "-c", file, "--yes", "--purge", "-g", "billing")

    assert purged.code == 0, purged.err
    assert read_committed(kafka, f"{topic}.dlq", 2) == []


async def test_a_topic_without_dead_letters_is_said_so_and_a_slip_of_usage_too(config):
    file = config()
    unknown = await dlq("show", "nothing-at-all", "-c", file)
    assert (unknown.code, "no dead letters" in unknown.err) == (1, True)
    usage = await dlq("retry", "orders", "-c", file, "--to", "topic", "--last")
    assert usage.code == 2
