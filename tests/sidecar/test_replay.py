"""Replays over the socket: once in a topic, whatever dies; at least once at a back end."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from support.backend import running_backend
from support.brokers import KafkaCluster
from support.dead_letters import get_header, read_committed
from support.gateways import (
    GatewayProcess,
    build_config,
    create_http_client,
    running_gateway_process,
)
from support.kafka_proxy import ApiKey, KafkaProxy
from support.sidecars import running_sidecar, wait_until_ready
from support.waiting import wait_until

from gateway.core.error_code import ErrorCode
from gateway.sidecar.replay.job import FIRST_COPIES
from gateway.sidecar.replay.store import ReplayStore

SIDECAR = (sys.executable, "-m", "gateway", "sidecar", "-c")
LATE = 60.0  # s


def fill_topic(
    kafka: KafkaCluster, topic: str, count: int, *, partitions: int = 1, size: int = 10
) -> None:
    """Values are JSON with the number `n`, in turns over the partitions."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20})
    stamp = int(time.time() * 1000) - 60_000
    for number in range(count):
        value = json.dumps({"n": number, "pad": "x" * size})
        headers = [("h", b"1"), ("h", b"2"), ("empty", None)]
        key = f"k{number % 7}".encode() if number % 3 else None
        while True:
            try:
                producer.produce(
                    topic, value, key, number % partitions, timestamp=stamp, headers=headers
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(LATE) == 0


async def wait_until_over(http: httpx.AsyncClient, id: str) -> dict[str, Any]:
    """It when it runs no more."""
    async with asyncio.timeout(LATE):
        while True:
            answer = await http.get(f"/replays/{id}")
            assert answer.status_code in (200, 503), answer.text
            if answer.status_code == 200 and answer.json()["state"] != "running":
                found: dict[str, Any] = answer.json()
                return found
            await asyncio.sleep(0.05)


async def start_replay(http: httpx.AsyncClient, body: Mapping[str, Any]) -> dict[str, Any]:
    """Once the sidecar has read what replays there are."""
    await wait_until_ready(http, LATE)
    answer = await http.post("/replays", json=body)
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/replays/{answer.json()['id']}"
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture
def section(kafka: KafkaCluster) -> dict[str, Any]:
    """Replays of this test alone."""
    return {"topic": f"replays-{random.getrandbits(40):x}"}


async def test_copies_are_what_the_records_were_and_say_where_they_are_from(kafka, section):
    source, target = (
        kafka.create_unique_topic(partitions=2),
        kafka.create_unique_topic(partitions=2),
    )
    fill_topic(kafka, source, 100, partitions=2)
    async with running_sidecar(kafka.bootstrap, replay=section) as http:
        body = {"topic": source, "destination": "topic", "destinationTopic": target}
        begun = await start_replay(http, body)
        done = await wait_until_over(http, begun["id"])
        listed = (await http.get("/replays")).json()

    assert (done["state"], done["records"], done["progress"]) == ("done", 100, 1.0)
    assert done["delivery"] == "exactly-once"
    assert [item["id"] for item in listed] == [begun["id"]]
    before, after = read_committed(kafka, source, 2), read_committed(kafka, target, 2)
    assert len(after) == 100
    of = {(item.partition(), item.offset()): item for item in before}
    for copy in after:
        place = (
            int(get_header(copy, "X-Replay-Partition")),
            int(get_header(copy, "X-Replay-Offset")),
        )
        record = of.pop(place)
        assert (copy.key(), copy.value()) == (record.key(), record.value())
        assert (copy.timestamp(), copy.partition()) == (record.timestamp(), record.partition())
        assert copy.headers()[:3] == record.headers()
        assert get_header(copy, "X-Replay-Id") == begun["id"].encode()
        assert get_header(copy, "X-Replay-Topic") == source.encode()


async def test_replays_to_a_back_end_go_on_after_a_failure_of_their_store(
    kafka, section, monkeypatch
):
    """The HTTP client was closed then, and every batch failed from then on."""
    read_on, failed = ReplayStore.run, asyncio.Event()

    async def fail_once(store: ReplayStore) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("nobody expects this")
        await read_on(store)

    monkeypatch.setattr(ReplayStore, "run", fail_once)
    source = kafka.create_unique_topic()
    fill_topic(kafka, source, 3)
    async with running_backend() as backend:
        group = {"group": "g", "topics": [source], "backend": {"host": backend.base_url}}
        sections = {"replay": section, "reactive": {"groups": group}}
        async with running_sidecar(kafka.bootstrap, **sections) as http:
            await failed.wait()
            begun = await start_replay(http, {"topic": source, "destination": "backend"})
            done = await wait_until_over(http, begun["id"])
    assert (done["state"], done["records"]) == ("done", 3)


async def test_records_are_produced_after_replays_were_listed(kafka, section):
    """The list took the lock of all conversions and never gave it back: every request with a body,
    and every group, waited until the process was killed."""
    topic = kafka.create_unique_topic()
    fill_topic(kafka, topic, 1)
    async with running_sidecar(kafka.bootstrap, replay=section, producer={}) as http:
        body = {"topic": topic, "destination": "topic", "destinationTopic": topic}
        await wait_until_over(http, (await start_replay(http, body))["id"])
        assert (await http.get("/replays")).json()
        answer = await http.post(f"/producers/{topic}", json={"records": [{"value": "eA=="}]})
        assert answer.is_success, answer.text


async def test_a_stretch_is_replayed_from_one_offset_to_before_another(kafka, section):
    source, target = kafka.create_unique_topic(), kafka.create_unique_topic(partitions=3)
    fill_topic(kafka, source, 50)
    body = {"topic": source, "destination": "topic", "destinationTopic": target}
    async with running_sidecar(kafka.bootstrap, replay=section) as http:
        stretch = {"partition": 0.0, "startOffset": 10.0, "endOffset": 20}
        begun = await start_replay(http, {**body, **stretch})
        assert (await wait_until_over(http, begun["id"]))["records"] == 10
        empty = await start_replay(http, {**body, "startTime": "2100-01-01T00:00:00Z"})
        none = await wait_until_over(http, empty["id"])
        assert (none["state"], none["records"], none["progress"]) == ("done", 0, 1.0)
        backwards = await start_replay(http, {**body, "startOffset": 30, "endOffset": 20})
        assert (await wait_until_over(http, backwards["id"]))["records"] == 0

    offsets = sorted(
        int(get_header(record, "X-Replay-Offset")) for record in read_committed(kafka, target, 3)
    )
    assert offsets == list(range(10, 20))


async def test_a_replay_reports_what_retention_deleted(kafka, section):
    source, target = kafka.create_unique_topic(), kafka.create_unique_topic()
    fill_topic(kafka, source, 30)
    kafka.admin.delete_records(source, {0: 12})
    async with running_sidecar(kafka.bootstrap, replay=section) as http:
        body = {"topic": source, "destination": "topic", "destinationTopic": target}
        begun = await start_replay(http, {**body, "startOffset": 5})
        done = await wait_until_over(http, begun["id"])
    gap = {"partition": 0, "startOffset": 5, "endOffset": 12, "reason": "retention"}
    assert done["gaps"] == [gap]
    assert (done["state"], done["records"]) == ("done", 18)


async def test_a_record_that_is_too_large_for_the_target_ends_no_replay(kafka, section):
    """Its copy has further headers, so a record that its topic took failed the whole replay."""
    source = kafka.create_unique_topic()
    target = kafka.create_unique_topic(configs={"max.message.bytes": "5000"})
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    values = [b"a", os.urandom(4900), os.urandom(5500), os.urandom(5500), b"b"]
    for value in values:
        producer.produce(source, value)
    assert producer.flush(60) == 0
    async with running_sidecar(kafka.bootstrap, replay=section) as http:
        body = {"topic": source, "destination": "topic", "destinationTopic": target}
        begun = await start_replay(http, body)
        done = await wait_until_over(http, begun["id"])
    gap = {"partition": 0, "startOffset": 2, "endOffset": 4, "reason": "too-large"}
    assert done["gaps"] == [gap]
    assert (done["state"], done["records"]) == ("done", 3)
    copies = read_committed(kafka, target)
    assert [copy.value() for copy in copies] == [values[0], values[1], values[4]]
    assert [bool(copy.headers()) for copy in copies] == [True, False, True]


async def test_progress_is_written_amid_records_that_are_too_large(kafka, section):
    """40,000 of them took longer than Kafka waits for a transaction, which began anew for ever."""
    count = FIRST_COPIES + 50  # each is a request of its own
    source = kafka.create_unique_topic()
    target = kafka.create_unique_topic(configs={"max.message.bytes": "150"})
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for _ in range(count):
        producer.produce(source, os.urandom(300))
    assert producer.flush(LATE) == 0
    async with running_sidecar(kafka.bootstrap, replay=section) as http:
        body = {"topic": source, "destination": "topic", "destinationTopic": target}
        begun = await start_replay(http, body)
        done = await wait_until_over(http, begun["id"])
    gap = {"partition": 0, "startOffset": 0, "endOffset": count, "reason": "too-large"}
    assert done["gaps"] == [gap]
    states = [json.loads(record.value()) for record in read_committed(kafka, section["topic"])]
    assert FIRST_COPIES in [state["spans"]["0"][-1] for state in states]


async def test_replays_go_on_when_their_topic_was_deleted(kafka, section):
    """The sidecar looked for the old topic's next offset, and had no replays for ever."""
    source, target = kafka.create_unique_topic(), kafka.create_unique_topic()
    fill_topic(kafka, source, 10)
    body = {"topic": source, "destination": "topic", "destinationTopic": target}
    async with running_sidecar(kafka.bootstrap, replay=section) as http:
        await wait_until_over(http, (await start_replay(http, body))["id"])
        await asyncio.to_thread(kafka.admin.delete_topic, section["topic"])
        async with asyncio.timeout(LATE):
            while True:
                answer = await http.post("/replays", json=body)
                if answer.status_code == 202:
                    break
        await wait_until(lambda: len(read_committed(kafka, target)) == 20, "copies", LATE)


async def test_a_start_that_kafka_does_not_confirm_names_the_replay(kafka, section):
    """It answered that Kafka is away: a client that asked again had two replays."""
    source, target = kafka.create_unique_topic(), kafka.create_unique_topic()
    fill_topic(kafka, source, 10)
    body = {"topic": source, "destination": "topic", "destinationTopic": target}
    async with (
        KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy,
        running_sidecar(proxy.bootstrap, replay=section) as http,
    ):
        await wait_until_ready(http, LATE)
        # Kafka has committed, and the answer does not say so.
        injection = proxy.inject_error(ApiKey.END_TXN, ErrorCode.UNKNOWN_SERVER_ERROR)
        answer = await http.post("/replays", json=body)
        proxy.remove_injection(injection)
        refusal = answer.json()
        assert (answer.status_code, refusal["code"]) == (504, "REPLAY_IN_DOUBT")
        [path] = re.findall(r"GET (\S+)", refusal["description"])
        done = await wait_until_over(http, path.removeprefix("/replays/"))
    assert (done["state"], done["records"]) == ("done", 10)
    assert len(read_committed(kafka, target)) == 10


async def test_what_makes_no_sense_is_refused_with_what_to_do(kafka, section):
    source = kafka.create_unique_topic(partitions=2)
    body = {"topic": source, "destination": "topic", "destinationTopic": source}
    wrong = {
        "add partition": {**body, "startOffset": 1},
        "has 2": {**body, "partition": 2},
        "give one of them": {**body, "partition": 0, "startOffset": 1, "startTime": 0},
        "is no time": {**body, "startTime": "yesterday"},
        "name the topic": {"topic": source, "destination": "topic"},
        "add sidecar.reactive": {"topic": source, "destination": "backend"},
        "did you mean 'partition'": {**body, "partiton": 0},
    }
    async with running_sidecar(kafka.bootstrap, replay=section) as http:
        await wait_until_over(http, (await start_replay(http, body))["id"])
        for problem, fields in wrong.items():
            answer = await http.post("/replays", json=fields)
            assert answer.status_code == 400, (fields, answer.text)
            assert problem in answer.text, (fields, answer.text)
        own = await http.post("/replays", json={**body, "destinationTopic": section["topic"]})
        assert (own.status_code, own.json()["code"]) == (403, "INTERNAL_TOPIC")
        unknown = await http.post("/replays", json={**body, "topic": f"{source}x"})
        assert (unknown.status_code, unknown.json()["code"]) == (404, "UNKNOWN_TOPIC")
        assert (await http.get("/replays/nope")).status_code == 404
        assert (await http.delete("/replays/nope")).status_code == 404


@pytest.fixture
async def two(kafka: KafkaCluster, section: dict[str, Any]):
    """Two sidecars, as processes."""
    config = build_config(kafka.bootstrap_servers, [], [], sidecar={"replay": section})
    async with (
        running_gateway_process(config, command=SIDECAR) as one,
        running_gateway_process(config, command=SIDECAR) as other,
    ):
        yield one, other


async def test_copies_are_there_once_when_owners_are_killed_at_any_moment(kafka, two):
    """Each is killed amid it, and comes back while the other one goes on."""
    count = 60_000
    source, target = (
        kafka.create_unique_topic(partitions=3),
        kafka.create_unique_topic(partitions=3),
    )
    fill_topic(kafka, source, count, partitions=3, size=300)
    body = {"topic": source, "destination": "topic", "destinationTopic": target}
    one, other = two
    async with create_http_client(one) as http:
        id = (await start_replay(http, body))["id"]
    await asyncio.sleep(random.uniform(0.0, 0.5))
    await one.kill()
    owners = await _wait_for_new_owner(other, id, set())
    await asyncio.sleep(random.uniform(0.0, 0.3))
    await one.restart()
    await other.kill()
    await _wait_for_new_owner(one, id, owners)
    async with create_http_client(one) as http:
        done = await wait_until_over(http, id)

    assert (done["state"], done["records"]) == ("done", count)
    copies = read_committed(kafka, target, 3)
    times = Counter(
        (get_header(copy, "X-Replay-Partition"), get_header(copy, "X-Replay-Offset"))
        for copy in copies
    )
    assert len(times) == count
    assert set(times.values()) == {1}
    for partition in range(3):
        of = [copy for copy in copies if copy.partition() == partition]
        offsets = [int(get_header(item, "X-Replay-Offset")) for item in of]
        assert offsets == sorted(offsets)


async def _wait_for_new_owner(gateway: GatewayProcess, id: str, owners: set[str]) -> set[str]:
    """Until somebody else works on it, or it is over."""
    async with create_http_client(gateway) as http, asyncio.timeout(LATE):
        first: set[str] = set(owners)
        while True:
            answer = await http.get(f"/replays/{id}")
            found = answer.json() if answer.status_code == 200 else {"state": "unknown"}
            owner = found.get("owner")
            if found["state"] == "done":
                return first
            if owner is not None and not first:
                first.add(owner)
            elif owner is not None and owner not in first:
                return first | {owner}
            await asyncio.sleep(0.02)


async def test_a_cancelled_replay_writes_nothing_more_from_any_sidecar(kafka, two):
    source, target = kafka.create_unique_topic(), kafka.create_unique_topic()
    fill_topic(kafka, source, 60_000, size=300)
    one, other = two
    body = {"topic": source, "destination": "topic", "destinationTopic": target}
    async with create_http_client(one) as first, create_http_client(other) as second:
        id = (await start_replay(first, body))["id"]
        await wait_until_ready(second)
        answer = await second.delete(f"/replays/{id}")
        assert answer.status_code in (200, 409), answer.text
        copies = len(read_committed(kafka, target))
        done = await wait_until_over(first, id)
        again = await first.delete(f"/replays/{id}")
        assert (again.status_code, again.json()["code"]) == (409, "REPLAY_ENDED")
        assert len(read_committed(kafka, target)) == copies == done["records"]
        if answer.status_code == 200:
            assert done["state"] == "cancelled"


async def test_one_that_is_stopped_is_gone_on_with_by_another_at_once(kafka, two):
    source, target = kafka.create_unique_topic(), kafka.create_unique_topic()
    fill_topic(kafka, source, 60_000, size=300)
    one, other = two
    body = {"topic": source, "destination": "topic", "destinationTopic": target}
    async with create_http_client(one) as http:
        id = (await start_replay(http, body))["id"]
    assert await one.stop() == 0
    async with create_http_client(other) as http:
        done = await wait_until_over(http, id)
    assert (done["state"], done["records"]) == ("done", 60_000)
    assert len(read_committed(kafka, target)) == 60_000


async def test_a_back_end_gets_them_in_batches_and_what_fails_is_a_dead_letter(kafka, section):
    source = kafka.create_unique_topic()
    fill_topic(kafka, source, 100)
    async with running_backend() as backend:
        backend.set_orders(fail=10)
        reactive = {
            "group": f"{source}.group",
            "topics": [kafka.create_unique_topic()],
            "backend": {"host": backend.base_url},
            "valueFormat": "json",
            "maxPollRecords": 30,
            "batchRollbackThreshold": "100%",
        }
        async with running_sidecar(
            kafka.bootstrap, replay=section, reactive={"groups": reactive}
        ) as http:
            body = {"topic": source, "destination": "backend", "startOffset": 50}
            begun = await start_replay(http, body)
            done = await wait_until_over(http, begun["id"])
        assert (done["state"], done["records"], done["deadLetters"]) == ("done", 50, 5)
        assert done["delivery"] == "at-least-once"
        calls = backend.calls
        assert {call["headers"]["x-replay-id"] for call in calls} == {begun["id"]}
        seen = [record["value"]["n"] for call in calls for record in call["records"]]
        assert seen == list(range(50, 100))
        assert calls[0]["records"][0]["headers"]["X-Replay-Offset"] == "50"
    letters = read_committed(kafka, f"{source}.dlq")
    assert [json.loads(letter.value())["n"] for letter in letters] == [50, 60, 70, 80, 90]


@pytest.mark.parametrize("recreated", ["topic", "destinationTopic"])
async def test_a_replay_fails_when_one_of_its_topics_is_created_again(kafka, section, recreated):
    """It went on at its old offset in the new topic, and said `done` without a gap."""
    body = {
        "topic": kafka.create_unique_topic(),
        "destination": "topic",
        "destinationTopic": kafka.create_unique_topic(),
    }
    fill_topic(kafka, body["topic"], 10)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": body["topic"]}
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(body["topic"], b"the replay waits here")
    assert producer.flush(LATE) == 0
    async with running_sidecar(kafka.bootstrap, replay=section) as http:
        id = (await start_replay(http, body))["id"]
        await wait_until(
            lambda: len(read_committed(kafka, body["destinationTopic"])) == 10, "copies"
        )
    producer.abort_transaction()
    kafka.admin.delete_topic(body[recreated])
    kafka.admin.create_topic(body[recreated])
    fill_topic(kafka, body[recreated], 20)
    async with running_sidecar(kafka.bootstrap, replay=section) as http:
        await wait_until_ready(http, LATE)
        failed = await wait_until_over(http, id)
    assert (failed["state"], failed["records"]) == ("failed", 10)
    assert f"{body[recreated]} was deleted and created again" in failed["error"]


async def test_replays_of_one_client_leave_places_to_those_of_others(kafka, section):
    """16 of one client to a back end that was away were all that a sidecar works on at a time."""
    source = kafka.create_unique_topic()
    fill_topic(kafka, source, 1)
    users = {name: {"token": name, "roles": ["kafka:r", "kafka:w"]} for name in ("alice", "bob")}
    bearer = {"headers": {"authorization": "Bearer {credentials}"}}
    guards = {"users": {"type": "inline", "credentials": bearer, "users": users}}
    async with running_backend() as backend:
        backend.set_orders(say=503)
        group = {"group": f"{source}.group", "topics": [source]}
        reactive = {"groups": {**group, "backend": {"host": backend.base_url}}}
        options = {"replay": section, "reactive": reactive, "guarded": {"users": []}}
        async with running_sidecar(kafka.bootstrap, guards=guards, **options) as http:

            async def request_owner(client: str) -> str | None:
                http.headers["authorization"] = f"Bearer {client}"
                body = {"topic": source, "destination": "backend"}
                owner: str | None = (await start_replay(http, body))["owner"]
                return owner

            owners = [await request_owner("alice") for _ in range(9)]
            assert [bool(owner) for owner in owners] == [True] * 8 + [False]
            assert await request_owner("bob")


async def test_a_replay_says_that_no_sidecar_has_its_group(kafka, section):
    """It was `running` for ever, with the owner and the error of a process that was gone."""
    source = kafka.create_unique_topic()
    fill_topic(kafka, source, 1)
    async with running_backend() as backend:
        backend.set_orders(say=503)
        options = {"topics": [source], "backend": {"host": backend.base_url}}
        former, later = ({"groups": {"group": f"{source}.{n}", **options}} for n in (1, 2))
        async with running_sidecar(kafka.bootstrap, replay=section, reactive=former) as http:
            id = (await start_replay(http, {"topic": source, "destination": "backend"}))["id"]
        async with running_sidecar(kafka.bootstrap, replay=section, reactive=later) as http:
            await wait_until_ready(http, LATE)
            async with asyncio.timeout(LATE):
                while True:
                    found = (await http.get(f"/replays/{id}")).json()
                    if f"no group {source}.1 is configured" in (found["error"] or ""):
                        break
                    await asyncio.sleep(0.05)
    assert (found["state"], found["owner"]) == ("running", None)


async def test_a_back_end_misses_none_when_the_owner_is_killed(kafka, section):
    """What it gets twice is what was not noted yet, in order."""
    source, count = kafka.create_unique_topic(), 600
    fill_topic(kafka, source, count)
    async with running_backend() as backend:
        backend.set_orders(delay=0.03)
        reactive = {
            "group": f"{source}.group",
            "topics": [kafka.create_unique_topic()],
            "backend": {"host": backend.base_url},
            "valueFormat": "json",
            "maxPollRecords": 20,
        }
        sections = {"replay": section, "reactive": {"groups": reactive}}
        config = build_config(kafka.bootstrap_servers, [], [], sidecar=sections)
        async with (
            running_gateway_process(config, command=SIDECAR) as one,
            running_gateway_process(config, command=SIDECAR) as other,
        ):
            async with create_http_client(one) as http:
                id = (await start_replay(http, {"topic": source, "destination": "backend"}))["id"]
            await asyncio.sleep(random.uniform(0.0, 0.6))
            await one.kill()
            async with create_http_client(other) as http:
                await wait_until_ready(http)
                done = await wait_until_over(http, id)
        seen = [record["value"]["n"] for call in backend.calls for record in call["records"]]
    assert done["state"] == "done"
    assert set(seen) == set(range(count))
    back = [at for at in range(1, len(seen)) if seen[at] <= seen[at - 1]]
    assert len(back) <= 1, "it goes on in order, from one place"


async def test_a_topic_that_is_compacted_meanwhile_is_replayed_as_far_as_it_is_there(
    retention_kafka, section
):
    """All that the replay was to read last is compacted away while the back end is away."""
    kafka, count = retention_kafka, 240
    configs = {
        "cleanup.policy": "compact", "segment.ms": "300", "min.cleanable.dirty.ratio": "0.01",
    }  # fmt: skip
    source = kafka.create_unique_topic(configs=configs)
    write = RecordProducer(kafka, source)
    write((n, f"kept-{n}" if n % 4 == 0 and n < 200 else f"k{n % 5}") for n in range(count))
    async with running_backend() as backend:
        backend.set_orders(say=503)
        reactive = {
            "group": f"{source}.group",
            "topics": [kafka.create_unique_topic()],
            "backend": {"host": backend.base_url},
            "valueFormat": "json",
            "retryDelay": "50ms",
            "retryDelayMax": "200ms",
        }
        async with running_sidecar(
            kafka.bootstrap, replay=section, reactive={"groups": reactive}
        ) as http:
            id = (await start_replay(http, {"topic": source, "destination": "backend"}))["id"]
            await wait_until(lambda: backend.calls, "the first batch", LATE)
            write((count + n, f"k{n}") for n in range(5))
            async with asyncio.timeout(LATE):
                while True:
                    write([(count + 5, "roll")])
                    left = await asyncio.to_thread(read_committed, kafka, source)
                    there = {item.offset() for item in left if item.offset() < count}
                    if len(there) == 50:
                        break
                    await asyncio.sleep(0.2)
            backend.set_orders()
            done = await wait_until_over(http, id)
        times = Counter(record["offset"] for record in backend.processed_records)
    assert done["state"] == "done"
    assert set(times.values()) == {1}
    # Others were read before they were compacted away; how many is a matter of time.
    assert there <= times.keys() <= set(range(count))
    assert done["records"] == len(times) < count


class RecordProducer:
    """Writes records of 20 kB, with numbers and keys, to one partition."""

    def __init__(self, kafka: KafkaCluster, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20})

    def __call__(self, records: Iterable[tuple[int, str]]) -> None:
        for n, key in records:
            value = json.dumps({"n": n, "pad": "x" * 20_000})
            self._producer.produce(self._topic, value, key, 0)
        assert self._producer.flush(LATE) == 0
