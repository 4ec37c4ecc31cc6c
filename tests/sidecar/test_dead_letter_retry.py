"""Dead letters over the socket: to the back end once more, out to programs, and in from them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from confluent_kafka import Producer
from starlette.applications import Starlette
from support.app_server import running_app
from support.backend import FakeBackend, running_backend
from support.brokers import KafkaCluster
from support.dead_letters import get_header, read_committed, write_dead_letters
from support.registry import FakeRegistry
from support.sidecars import running_sidecar, wait_until_ready
from support.simulated_kafka import SimulatedCluster, SimulatedKafka
from support.virtual_time import run_in_virtual_time
from support.waiting import TurnCounter, wait_until

from gateway.client_memory import ClientMemory, HeldPart
from gateway.config.sections.sidecar import Sidecar
from gateway.core.delivery.verdict import (
    BackendUnavailable,
    BatchResults,
    RecordResult,
    SuspectBatch,
    Verdict,
)
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import FormatError, MemoryFull
from gateway.formats.codec import Codecs, EncodedData
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.fetch.bounded_read import PartitionRead
from gateway.kafka.group.group_offsets import GroupOffsets
from gateway.kafka.produce.transactional_producer import WrittenOffsets
from gateway.kafka.protocol.group_messages import OffsetAndMetadata
from gateway.sidecar.context import Context
from gateway.sidecar.dead_letter_retry import queue as queue_module
from gateway.sidecar.dead_letter_retry import watches as watches_module
from gateway.sidecar.dead_letter_retry.component import DeadLetterComponent
from gateway.sidecar.dead_letter_retry.queue import (
    DeadLetterQueue,
    DeadLetterRetry,
    QueuedDeadLetter,
)
from gateway.sidecar.dead_letter_retry.watches import DeadLetterWatches
from gateway.sidecar.http.requests import ParsedBodyMiddleware
from gateway.sidecar.http.spec import Spec
from gateway.sidecar.http.status import EXCEPTION_HANDLERS
from gateway.sidecar.reactive.dead_letters import DeadLetterMessage
from gateway.sidecar.turns import TURN_S

REACTIVE_PATH = "/consumers/deadLetter/reactive"
ACTIVE_PATH = "/consumers/deadLetter/active"


@dataclass
class DeadLetterSetting:
    """A topic of two partitions, its dead letters, a group and its back end."""

    kafka: KafkaCluster
    backend: FakeBackend
    topic: str
    http: httpx.AsyncClient

    @property
    def group(self) -> str:
        return f"{self.topic}.group"

    def read_letters(self) -> list[Any]:
        return read_committed(self.kafka, f"{self.topic}.dlq", 2)

    def write_sealed(self, numbers: Sequence[int], group: str | None = None) -> None:
        write_dead_letters(self.kafka, self.topic, numbers, group or self.group)

    def write_foreign(self, value: bytes, key: bytes | None = None) -> None:
        """A letter of the offset 9, from no group that is known."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        headers = [("X-Origin-Topic", self.topic), ("X-Origin-Partition", b"1")]
        headers += [("X-Origin-Offset", b"9"), ("X-Origin-Timestamp", b"1")]
        producer.produce(f"{self.topic}.dlq", value, key, partition=1, headers=headers)
        assert producer.flush(60) == 0

    def list_delivered(self) -> list[int]:
        return [record["value"]["n"] for call in self.backend.calls for record in call["records"]]

    async def request_redelivery(self, **params: Any) -> dict[str, Any]:
        """Ask again while another request is under way."""
        while (answer := await self.http.get(REACTIVE_PATH, params=params)).status_code == 409:
            pass
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def build_sections(self) -> dict[str, Any]:
        group = {
            "group": self.group,
            "topics": [self.topic],
            "backend": {"host": self.backend.base_url},
            "valueFormat": "json",
            "maxPollRecords": 8,
            "autoOffsetReset": "latest",
        }
        return {"deadLetter": {}, "reactive": {"groups": group}, "consumer": {}}


@pytest.fixture
async def setting(kafka: KafkaCluster) -> AsyncIterator[DeadLetterSetting]:
    topic = kafka.create_unique_topic(partitions=2)
    kafka.create_topic(f"{topic}.dlq", 2)
    async with running_backend() as backend:
        found = DeadLetterSetting(kafka, backend, topic, httpx.AsyncClient())
        async with running_sidecar(kafka.bootstrap, **found.build_sections()) as http:
            found.http = http
            await wait_until_ready(http)
            yield found


@pytest.mark.smoke
async def test_what_is_processed_is_done_with_and_what_fails_goes_behind_the_others(setting):
    setting.write_sealed(range(1, 7))
    setting.backend.set_orders(fail=3)

    first = await setting.request_redelivery()

    assert (first["processed"], first["returned"], first["parked"]) == (4, 2, 0)
    failed = [record for record in first["records"] if not record["processed"]]
    assert {item["stacktrace"] for item in failed} == {"Boom: line 1"}
    call = setting.backend.calls[0]
    assert {record["topic"] for record in call["records"]} == {setting.topic}
    assert call["headers"]["x-consumer-group"] == setting.group
    setting.backend.set_orders()
    second = await setting.request_redelivery(group=setting.group, topic=setting.topic)
    assert [record["retries"] for record in second["records"]] == [2, 2]
    assert second["processed"] == 2
    third = await setting.request_redelivery()
    assert third["records"] == []
    assert sorted(setting.list_delivered()) == [1, 2, 3, 3, 4, 5, 6, 6]
    back = [
        letter
        for letter in setting.read_letters()
        if get_header(letter, "X-Dead-Letter-Retries") == b"1"
    ]
    assert sorted(json.loads(item.value())["n"] for item in back) == [3, 6]
    assert all(item.headers()[:2] == [("h", b"1"), ("h", None)] for item in back)


async def test_dead_letters_of_a_topic_that_was_created_again_are_not_passed_over(setting):
    """What is committed was of the former topic, and is not above the end of the new one."""
    setting.write_sealed(range(4))
    assert (await setting.request_redelivery())["processed"] == 4
    topic = f"{setting.topic}.dlq"
    await asyncio.to_thread(setting.kafka.admin.delete_topic, topic)
    setting.kafka.create_topic(topic, 2)
    setting.write_sealed(range(10, 14))

    async with asyncio.timeout(60):  # for a moment metadata is of the former topic
        while len(setting.list_delivered()) < 8:
            await setting.http.get(REACTIVE_PATH)

    assert sorted(setting.list_delivered()) == [0, 1, 2, 3, 10, 11, 12, 13]


async def test_all_are_sent_before_those_that_failed_are_sent_again(setting):
    """A partition with more failing ones than a batch kept those of the others from any retry."""
    setting.write_sealed([*range(0, 20, 2), 1])
    setting.backend.set_orders(fail=2)

    while (await setting.request_redelivery())["untried"]:
        pass

    assert sorted(setting.list_delivered()) == [0, 1, *range(2, 20, 2)]
    assert (await setting.request_redelivery())["returned"] == 8


async def test_a_back_end_that_is_late_gets_smaller_batches(setting):
    """Each request sent the same batch again, which was late again."""
    sections = setting.build_sections()
    sections["reactive"]["groups"]["backend"]["timeout"] = "1s"
    setting.write_sealed([1, 2, 3, 4])
    setting.backend.set_orders(hold=[3])
    outcomes: dict[int, str] = {}
    async with (
        running_sidecar(setting.kafka.bootstrap, **sections) as http,
        asyncio.timeout(120),
    ):
        await wait_until_ready(http)
        while len(outcomes) < 4:
            answer = await http.get(REACTIVE_PATH)
            found = answer.json()["records"] if answer.is_success else ()
            outcomes |= {each["record"]["offset"]: each["outcome"] for each in found}
    assert outcomes[3] == "returned"


async def test_at_the_last_retry_what_fails_is_passed_over_and_stays_in_its_topic(setting):
    setting.write_sealed([3, 4])
    setting.backend.set_orders(fail=3)

    last = await setting.request_redelivery(lastretry=True)

    assert (last["processed"], last["parked"]) == (1, 1)
    assert (await setting.request_redelivery())["records"] == []
    assert len(setting.read_letters()) == 2


async def test_nothing_changes_while_the_back_end_is_away(setting):
    setting.write_sealed([1, 2])
    setting.backend.set_orders(say=503, after=7)
    answer = await setting.http.get(REACTIVE_PATH)
    assert (answer.status_code, answer.json()["code"]) == (503, "BACKEND_UNAVAILABLE")
    assert answer.headers["retry-after"] == "7"
    setting.backend.set_orders()
    assert (await setting.request_redelivery())["processed"] == 2


async def test_two_sidecars_that_are_asked_at_once_leave_dead_letters_to_each_other(setting):
    """Each fenced the other by its next request: hardly any was done, and the back end got each
    dozens of times."""
    setting.write_sealed(range(40))
    setting.backend.set_orders(delay=0.3)

    async def retry_all(http: httpx.AsyncClient) -> list[httpx.Response]:
        answers: list[httpx.Response] = []
        while not any(each.is_success and each.json()["left"] == 0 for each in answers):
            answers.append(await http.get(REACTIVE_PATH))
            await asyncio.sleep(0.05)
        return answers

    async with (
        running_sidecar(setting.kafka.bootstrap, **setting.build_sections()) as other,
        asyncio.timeout(60),
    ):
        await wait_until_ready(other)
        each = await asyncio.gather(retry_all(setting.http), retry_all(other))

    refused = [answer for answers in each for answer in answers if not answer.is_success]
    assert {(answer.status_code, answer.json()["code"]) for answer in refused} == {
        (409, "RETRIED_ELSEWHERE")
    }
    assert all(int(answer.headers["Retry-After"]) > 0 for answer in refused)
    assert len(setting.list_delivered()) <= 3 * 40


async def test_one_whose_schema_is_missing_is_not_waited_for(kafka):
    """Each request began to wait anew, so it was a 503, and it kept all others of its batch."""
    topic = kafka.create_unique_topic(partitions=2)
    kafka.create_topic(f"{topic}.dlq", 2)
    async with running_app(FakeRegistry().app) as url, running_backend() as backend:
        setting = DeadLetterSetting(kafka, backend, topic, httpx.AsyncClient())
        sections = setting.build_sections()
        sections["reactive"]["groups"]["keyFormat"] = "avro"
        catalogs = {"registry": {"type": "schema-registry", "url": url}}
        async with running_sidecar(kafka.bootstrap, catalogs=catalogs, **sections) as http:
            setting.http = http
            await wait_until_ready(http)
            setting.write_foreign(b"{}", key=b"\0\0\0\0\x63\x02")
            (found,) = (await setting.request_redelivery())["records"]
    assert (found["outcome"], found["retries"]) == ("returned", 1)
    assert "no schema with the id 99" in found["stacktrace"]


async def test_one_that_is_too_large_to_come_again_holds_up_no_other(kafka):
    """Its stack trace was longer than before, so that no retry of any dead letter succeeded."""
    topic = kafka.create_unique_topic(partitions=2)
    kafka.create_topic(f"{topic}.dlq", 2, configs={"max.message.bytes": "5000"})
    async with running_backend() as backend:
        setting = DeadLetterSetting(kafka, backend, topic, httpx.AsyncClient())
        async with running_sidecar(kafka.bootstrap, **setting.build_sections()) as http:
            setting.http = http
            await wait_until_ready(http)
            setting.write_foreign(os.urandom(4800))
            setting.write_sealed([1, 3])
            backend.set_orders(fail=1)
            found = await setting.request_redelivery()
    outcomes = {each["record"]["offset"]: each["outcome"] for each in found["records"]}
    assert outcomes == {9: "parked", 1: "returned", 3: "returned"}


async def test_commits_that_change_nothing_keep_no_retry_out(setting):
    """One connection that repeated its commit had three of four retries refused."""
    setting.write_sealed([1, 2, 3])
    offsets = [{"partition": 1, "offset": 0}]
    body = {"group": setting.group, "topic": setting.topic, "offsets": offsets}
    requests = [setting.http.post(f"{ACTIVE_PATH}/offsets", json=body) for _ in range(9)]
    assert {answer.status_code for answer in await asyncio.gather(*requests)} == {204}
    again = [setting.http.post(f"{ACTIVE_PATH}/offsets", json=body) for _ in range(9)]
    *_, retry = await asyncio.gather(*again, setting.http.get(REACTIVE_PATH))
    assert (retry.status_code, retry.json()["processed"]) == (200, 2)


async def test_the_one_that_the_back_end_stumbles_over_does_not_keep_the_others(setting):
    setting.write_sealed([1, 2, 3, 4])
    setting.backend.set_orders(stumble=[3])
    result = await setting.request_redelivery()
    assert (result["processed"], result["returned"]) == (3, 1)
    setting.backend.set_orders(stumble=[3], well=False)
    answer = await setting.http.get(REACTIVE_PATH)
    assert answer.status_code == 503, answer.text
    assert len(setting.read_letters()) == 5


async def test_a_retry_that_is_under_way_is_not_waited_for(setting):
    """Requests waited behind each other without a bound, and each was done, though its client had
    gone: the back end got the same dead letters as often."""
    setting.write_sealed([1])
    setting.backend.set_orders(hold=[1])
    first = asyncio.create_task(setting.request_redelivery())
    await wait_until(lambda: setting.backend.arrived_count == 1)
    answer = await setting.http.get(REACTIVE_PATH)
    assert (answer.status_code, answer.json()["code"]) == (409, "RETRIED_ELSEWHERE")
    assert int(answer.headers["Retry-After"]) > 0
    setting.backend.set_orders()
    assert (await first)["processed"] == 1
    assert (await setting.request_redelivery())["records"] == []


async def test_who_waits_for_dead_letters_keeps_nobody_from_a_retry(setting):
    """A wait of five minutes held the lock of the group and its topic, also for a client that had
    gone."""
    first = asyncio.create_task(setting.request_redelivery(timeout=120_000))
    for _ in range(4):
        assert (await setting.request_redelivery())["records"] == []
    assert not first.done()
    setting.write_sealed([1])
    assert (await first)["processed"] == 1


async def test_letters_of_other_groups_are_passed_over(setting):
    setting.write_sealed([1, 2], group="another")
    setting.write_sealed([3])
    assert [
        record["record"]["offset"] for record in (await setting.request_redelivery())["records"]
    ] == [3]
    assert (await setting.request_redelivery())["records"] == []


async def test_a_program_gets_dead_letters_until_it_has_committed_them(setting):
    setting.write_sealed([1, 2, 3])
    asked = {"group": setting.group, "topic": setting.topic, "valueFormat": "json"}
    first = (await setting.http.get(ACTIVE_PATH, params=asked)).json()
    again = (await setting.http.get(ACTIVE_PATH, params={**asked, "maxRecords": 1})).json()
    assert sorted(item["value"]["n"] for item in first) == [1, 2, 3]
    assert again == first[:1]
    one = next(item for item in first if item["value"]["n"] == 1)
    assert (one["topic"], one["partition"], one["offset"]) == (setting.topic, 1, 1)
    assert (one["stacktrace"], one["retries"], one["group"]) == ("Boom", 0, setting.group)
    assert one["headers"] == {"h": ["1", None]}
    offsets = [item["deadLetter"] for item in first if item["partition"] == 1]
    body = {"group": setting.group, "topic": setting.topic, "offsets": offsets}
    answer = await setting.http.post(f"{ACTIVE_PATH}/offsets", json=body)
    assert answer.status_code == 204, answer.text
    left = (await setting.http.get(ACTIVE_PATH, params=asked)).json()
    assert [item["value"]["n"] for item in left] == [2]


async def test_what_a_program_hands_in_is_the_record_as_kafka_has_it(setting):
    paused = await setting.http.post(f"/reactive/{setting.group}/pause")
    assert paused.is_success, "the group would have dead letters of its own of what is no JSON"
    producer = Producer({"bootstrap.servers": setting.kafka.bootstrap_servers})
    producer.produce(setting.topic, b"\xff\x00", b"\xfe", 1, headers=[("h", b"\x80"), ("h", b"2")])
    producer.produce(setting.topic, b"fine", b"k", 1)
    assert producer.flush(60) == 0
    place = {"topic": setting.topic, "partition": 1}
    items = [
        {
            "record": {**place, "offset": 0, "value": "as it was shown"},
            "processed": False,
            "stacktrace": "it broke",
            "correlationId": "c1",
        },
        {"record": {**place, "offset": 1}, "processed": True},
        {"record": {**place, "offset": 77.0, "value": "Z29uZQ=="}, "processed": False},
    ]
    answer = await setting.http.post(ACTIVE_PATH, params={"group": setting.group}, json=items)
    assert (answer.status_code, answer.json()) == (200, {"written": 2, "processed": 1})

    first, second = setting.read_letters()
    assert (first.key(), first.value()) == (b"\xfe", b"\xff\x00")
    assert first.headers()[:2] == [("h", b"\x80"), ("h", b"2")]
    assert get_header(first, "X-Origin-Offset") == b"0"
    assert get_header(first, "StackTrace") == b"it broke"
    assert get_header(first, "X-Correlation-Id") == b"c1"
    assert (second.value(), get_header(second, "X-Origin-Offset")) == (b"gone", b"77")


async def test_what_kafka_has_no_longer_is_written_and_shown_as_it_was_handed_in(kafka):
    """Numbers were written and shown as doubles, a binary header as the text of a Python dict."""
    topic = kafka.create_unique_topic()
    value = b'{"price":1.10,"big":123456789012345678901234567890,"u":18446744073709551617}'
    body = b"""[{"record": {"topic": "%s", "partition": 0, "offset": 5, "value": %s,
        "headers": {"bin": {"base64": "AP/+"}, "more": ["a", null, {"base64": "/w=="}]}},
        "processed": false}]""" % (topic.encode(), value)
    sections: dict[str, Any] = {"deadLetter": {}, "consumer": {"valueFormat": "json"}}
    async with running_sidecar(kafka.bootstrap, **sections) as http:
        await wait_until_ready(http)
        answer = await http.post(
            ACTIVE_PATH,
            params={"group": "g"},
            content=body,
            headers={"Content-Type": "application/json"},
        )
        assert answer.is_success, answer.text
        wanted = {"group": "g", "topic": topic, "timeout": 10_000}
        shown = await http.get(ACTIVE_PATH, params=wanted)
    assert value in shown.content
    (letter,) = shown.json()
    assert letter["headers"]["bin"] == {"base64": "AP/+"}
    assert letter["headers"]["more"] == ["a", None, {"base64": "/w=="}]


async def test_large_letters_come_and_are_handed_in_some_at_a_time(setting):
    """10,000 records of a megabyte each were read into memory, both ways."""
    value = json.dumps("x" * 900_000).encode()
    producer = Producer({"bootstrap.servers": setting.kafka.bootstrap_servers})
    producer.produce(setting.topic, value, b"k", 1)
    for _ in range(6):
        producer.produce(f"{setting.topic}.dlq", value, b"k", 1)
    assert producer.flush(60) == 0
    asked = {"group": setting.group, "topic": setting.topic}
    everything = {**asked, "max_bytes": 1 << 30, "maxRecords": 10_000}
    answer = await setting.http.get(ACTIVE_PATH, params=everything)
    assert [item["offset"] for item in answer.json()] == [0, 1, 2, 3]

    place = {"topic": setting.topic, "partition": 1, "offset": 0}
    items = [{"record": place, "processed": False}] * 40
    answer = await setting.http.post(ACTIVE_PATH, params={"group": "g"}, json=items)
    assert answer.status_code == 413, answer.text
    assert "hand in 37 of them at once" in answer.text


async def test_a_record_that_its_topic_of_dead_letters_does_not_take_is_named(kafka):
    topic = kafka.create_unique_topic()
    kafka.create_topic(f"{topic}.dlq", configs={"max.message.bytes": "5000"})
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in (os.urandom(5500), b"small", b"x" * 9000):
        producer.produce(topic, value)
    assert producer.flush(60) == 0
    place = {"topic": topic, "partition": 0}
    items = [{"record": {**place, "offset": offset}, "processed": False} for offset in (0, 1, 2)]
    async with running_sidecar(kafka.bootstrap, deadLetter={}) as http:
        await wait_until_ready(http)
        answer = await http.post(ACTIVE_PATH, params={"group": "g"}, json=items)
    assert (answer.status_code, answer.json()["code"]) == (413, "RECORDS_TOO_LARGE")
    assert f"{topic}-0 offset 0" in answer.text
    letters = read_committed(kafka, f"{topic}.dlq")
    assert [letter.value() for letter in letters] == [b"small", b"x" * 9000]


async def test_what_makes_no_sense_is_refused_with_what_to_do(setting):
    unknown = await setting.http.get(REACTIVE_PATH, params={"group": "nobody"})
    assert unknown.status_code == 400
    assert setting.group in unknown.text
    place = {"topic": setting.topic, "partition": 1, "offset": 5}
    wrong = [{"record": place, "processed": False}]
    answer = await setting.http.post(ACTIVE_PATH, params={"group": "g"}, json=wrong)
    assert answer.status_code == 400
    assert "hand in its value" in answer.text
    # Their dead letters became topics without end, with as many partitions as Kafka's own.
    refusals = {f"{setting.topic}.dlq": "DEAD_LETTER_TOPIC", "__consumer_offsets": "INTERNAL_TOPIC"}
    for topic, code in refusals.items():
        wrong = [{"record": {**place, "topic": topic, "value": "eA=="}, "processed": False}]
        answer = await setting.http.post(ACTIVE_PATH, params={"group": "g"}, json=wrong)
        assert answer.json()["code"] == code, answer.text
    asked = {"group": "g", "topic": setting.kafka.create_unique_topic()}
    answer = await setting.http.get(ACTIVE_PATH, params=asked)
    assert answer.status_code == 404
    assert "has no dead letters" in answer.text
    setting.write_sealed([1])
    for unfit in ({"partition": 9, "offset": 1}, {"partition": 1, "offset": 99}):
        # Behind the end, letters that came later would be passed over.
        body = {"group": setting.group, "topic": setting.topic, "offsets": [unfit]}
        answer = await setting.http.post(f"{ACTIVE_PATH}/offsets", json=body)
        assert answer.status_code == 400, answer.text


def create_component(kafka: SimulatedKafka, codecs: Any) -> tuple[DeadLetterComponent, Context]:
    """Return a component alone, whose Kafka is simulated."""

    async def authorize(*_: object) -> str:
        return ""

    context = Context(
        cast(Any, SimpleNamespace(sidecar=Sidecar.model_validate({"deadLetter": {}}))),
        cast(Cluster, SimulatedCluster(kafka)),
        codecs,
        authorize,
        Spec(["dead_letter_retry"]),
    )
    return DeadLetterComponent(context), context


@dataclass
class SimulatedTransactions:
    """Commits at once, and notes it. `is_begun` are offsets of a retry that Kafka completes."""

    context: Context
    committed: list[dict[TopicPartition, int]]
    is_begun: dict[TopicPartition, int] = field(default_factory=dict)

    async def start(self) -> None:
        await self._commit({tp: OffsetAndMetadata(offset) for tp, offset in self.is_begun.items()})

    async def commit(self, *, group: str, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        assert group == "g.dlq"
        await self._commit(offsets)
        self.committed.append({tp: each.offset for tp, each in offsets.items()})

    async def _commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        group = GroupOffsets(self.context.cluster.coordinators, "g.dlq")
        await group.commit(offsets, lambda _: None)


def create_http_client(component: DeadLetterComponent, context: Context) -> httpx.AsyncClient:
    app = Starlette(routes=component.routes, exception_handlers=EXCEPTION_HANDLERS)
    transport = httpx.ASGITransport(ParsedBodyMiddleware(app, context.client_memory))
    return httpx.AsyncClient(transport=transport, base_url="http://sidecar")


async def test_values_that_are_handed_in_are_encoded_in_turns():
    """200 records of a schema with many branches held up all other requests for 16 s."""

    counts: list[int] = []

    class SlowCodecs(Codecs):
        def encode_cached(self, *args: Any) -> EncodedData:
            counts.append(turns.count)
            time.sleep(TURN_S)
            return EncodedData(b"")

    kafka = SimulatedKafka(random.Random(1))
    kafka.create_topic("orders", 1)
    records: list[dict[str, Any]] = [
        {"topic": "orders", "partition": 0, "offset": offset, "value": "eA=="}
        for offset in range(10)
    ]
    del records[-1]["value"]
    items = [{"record": record, "processed": False} for record in records]
    async with create_http_client(*create_component(kafka, SlowCodecs())) as http:
        with TurnCounter() as turns:
            answer = await http.post(ACTIVE_PATH, params={"group": "g"}, json=items)
    assert "[9].record: is not in Kafka any more" in answer.text
    assert len(set(counts)) == 9


def create_letters(
    count: int, *, through: int
) -> tuple[SimulatedKafka, list[TopicPartition], dict[str, Any]]:
    """Write letters to each of two partitions, and build a commit of the group `g` up to one."""
    kafka = SimulatedKafka(random.Random(1))
    kafka.create_topic("orders.dlq", 2)
    tps = [TopicPartition("orders.dlq", number) for number in range(2)]
    for tp in tps:
        kafka.append_records(tp, [b"it"] * count)
    offsets = [{"partition": tp.partition, "offset": through} for tp in tps]
    return kafka, tps, {"group": "g", "topic": "orders", "offsets": offsets}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_positions_are_committed_again_as_a_retry_has_changed_them(monkeypatch, is_restarted):
    """Of a partition that was quiet for 7 days, dead letters came again that were processed.

    And what a retry committed after the look at the positions was taken back. And a sidecar that
    was restarted knew of no group until the next dead letter, though its program polled.
    """
    kafka, tps, body = create_letters(2, through=0)
    kept: list[dict[TopicPartition, int]] = []

    async def play() -> None:
        component, context = create_component(kafka, Codecs())
        transactions = SimulatedTransactions(context, kept)
        by_id = {"dead-letters-g-orders.dlq": transactions}
        monkeypatch.setattr(context, "create_transactions", by_id.__getitem__)
        async with create_http_client(component, context) as http:
            answer = await http.post(f"{ACTIVE_PATH}/offsets", json=body)
        assert answer.status_code == 204, answer.text
        if is_restarted:
            component, context = create_component(kafka, Codecs())
            monkeypatch.setattr(context, "create_transactions", by_id.__getitem__)
            async with create_http_client(component, context) as http:
                params = {"group": "g", "topic": "orders"}
                answer = await http.get(ACTIVE_PATH, params=params)
            assert answer.status_code == 200, answer.text
        kept.clear()
        transactions.is_begun = {tps[1]: 2}
        running = asyncio.create_task(component.run())
        await asyncio.sleep(24 * 3600.0)  # of virtual time
        running.cancel()

    run_in_virtual_time(play())
    assert kept == [{tps[0]: 1, tps[1]: 2}] * 23


def test_a_commit_takes_back_no_retry(monkeypatch):
    """`gateway dlq drop` asked, and set back what a retry had committed meanwhile: those that it
    had returned were there twice."""
    kafka, tps, body = create_letters(9, through=4)
    committed: list[dict[TopicPartition, int]] = []

    async def play() -> None:
        component, context = create_component(kafka, Codecs())
        transactions = SimulatedTransactions(context, committed)
        transactions.is_begun = {tps[1]: 7}
        monkeypatch.setattr(context, "create_transactions", lambda _: transactions)
        async with create_http_client(component, context) as http:
            sent = [http.post(f"{ACTIVE_PATH}/offsets", json=body) for _ in range(2)]
            answers = await asyncio.gather(*sent)
        assert [answer.status_code for answer in answers] == [409, 409]
        assert f"dead letters of {tps[1]} meanwhile" in answers[0].json()["message"]

    run_in_virtual_time(play())
    assert committed == [{tps[0]: 5}] * 2


def test_positions_that_cannot_be_kept_keep_no_others_from_it(monkeypatch, caplog):
    """One group's name was too long for a transactional id: no position was kept any more, and
    each retry was a 500, as the HTTP client was closed."""
    kafka = SimulatedKafka(random.Random(1))
    kept: dict[str, list[dict[TopicPartition, int]]] = {"a": [], "b": []}

    async def play() -> None:
        component, context = create_component(kafka, Codecs())

        def create_transactions(id: str) -> SimulatedTransactions:
            topic = id.removeprefix("dead-letters-g-").removesuffix(".dlq")
            if kept["b"] and topic == "a":
                raise FormatError("a name is too long for Kafka")
            return SimulatedTransactions(context, kept[topic])

        monkeypatch.setattr(context, "create_transactions", create_transactions)
        async with create_http_client(component, context) as http:
            place = {"partition": 0, "offset": 0}
            body = {"group": "g", "topic": "a", "offsets": [place]}
            for unfit in ({"group": "g" * 256}, {"offsets": [place] * 10_001}):
                answer = await http.post(f"{ACTIVE_PATH}/offsets", json={**body, **unfit})
                assert answer.status_code == 400, answer.text
            for topic in kept:
                kafka.create_topic(f"{topic}.dlq", 1)
                kafka.append_records(TopicPartition(f"{topic}.dlq", 0), [b"it"])
                answer = await http.post(f"{ACTIVE_PATH}/offsets", json={**body, "topic": topic})
                assert answer.status_code == 204, answer.text
        running = asyncio.create_task(component.run())
        await asyncio.sleep(24 * 3600.0)  # of virtual time
        assert not running.done()
        running.cancel()

    run_in_virtual_time(play())
    assert [len(each) for each in kept.values()] == [1, 24]  # and by the requests
    assert caplog.text.count("Kafka may forget the positions of g in a.dlq") == 1


def create_queue(
    kafka: SimulatedKafka, reads: asyncio.Semaphore, group: str = "g"
) -> DeadLetterQueue:
    cluster = cast(Cluster, SimulatedCluster(kafka))
    return DeadLetterQueue(cluster, "orders.dlq", group, ".dlq", reads)


async def wait_for_letters(
    kafka: SimulatedKafka, reads: asyncio.Semaphore, memory: ClientMemory
) -> Sequence[QueuedDeadLetter]:
    watches = DeadLetterWatches(cast(Cluster, SimulatedCluster(kafka)), memory)
    return await watches.fetch_dead_letters(create_queue(kafka, reads), 10, 1 << 20, 300.0)


def test_portions_of_dead_letters_are_read_by_few_requests_at_a_time():
    """200 requests for one dead letter each held 17 MiB at the same time, before any counted."""

    async def play() -> None:
        kafka = SimulatedKafka(random.Random(1))
        kafka.create_topic("orders.dlq", 1)
        reads = asyncio.Semaphore(1)
        waiting = asyncio.create_task(wait_for_letters(kafka, reads, ClientMemory()))
        await asyncio.sleep(10.0)  # of virtual time
        async with reads:  # who waits for a dead letter does not read
            kafka.append_records(TopicPartition("orders.dlq", 0), [b"it"])
            await asyncio.sleep(10.0)
            assert not waiting.done()
        (found,) = await waiting
        assert found.record.value == b"it"

    run_in_virtual_time(play())


def test_who_looks_through_a_long_queue_lets_others_read_in_between(monkeypatch):
    """Requests of a group without dead letters read those of all others, and everybody waited."""
    order: list[str] = []

    async def read_one(cluster: object, tp: TopicPartition, offset: int) -> PartitionRead:
        order.append(tp.topic)
        await asyncio.sleep(1.0)  # of virtual time
        return PartitionRead([], offset + 1)

    monkeypatch.setattr(queue_module, "read_committed", read_one)

    async def play() -> None:
        kafka, reads = SimulatedKafka(random.Random(1)), asyncio.Semaphore(1)
        scans = []
        for topic in ("a.dlq", "b.dlq"):
            kafka.create_topic(topic, 1)
            kafka.append_records(TopicPartition(topic, 0), [b""] * 3)
            cluster = cast(Cluster, SimulatedCluster(kafka))
            queue = DeadLetterQueue(cluster, topic, "g", ".dlq", reads)
            scans.append(queue.fetch_dead_letters(1, 1))
        await asyncio.gather(*scans)

    run_in_virtual_time(play())
    assert order == ["a.dlq", "b.dlq"] * 3


def test_who_has_dead_letters_does_not_wait_to_read_more(monkeypatch):
    """120 requests each kept up to 4 MiB while they waited for each other, which was in no account:
    the process grew to three times its limit."""
    tp = TopicPartition("orders.dlq", 0)

    async def read_one(cluster: object, tp: TopicPartition, offset: int) -> PartitionRead:
        await asyncio.sleep(1.0)  # of virtual time
        return PartitionRead([Record(tp, offset, -1, 0, None, b"v", ())], offset + 1)

    monkeypatch.setattr(queue_module, "read_committed", read_one)

    async def play() -> None:
        kafka = SimulatedKafka(random.Random(1))
        kafka.create_topic(tp.topic, 1)
        kafka.append_records(tp, [b"v"] * 3)
        queue = create_queue(kafka, asyncio.Semaphore(1))
        fetched = await asyncio.gather(*(queue.fetch_dead_letters(10, 1000) for _ in range(2)))
        assert [len(letters) for letters, _ in fetched] == [3, 1]
        assert [offsets[tp] for _, offsets in fetched] == [3, 1]

    run_in_virtual_time(play())


def test_headers_count_for_what_is_read_at_a_time(monkeypatch):
    """One request with 100 places held 1.4 GiB of empty headers, counted as 20 MiB."""
    tp = TopicPartition("orders.dlq", 0)

    async def read_all(cluster: object, tp: TopicPartition, offset: int) -> PartitionRead:
        headers = (("a", b""),) * 1000
        records = [Record(tp, n, -1, 0, None, b"v", headers) for n in range(offset, 9)]
        return PartitionRead(records, 9)

    monkeypatch.setattr(queue_module, "read_committed", read_all)

    async def play() -> None:
        kafka = SimulatedKafka(random.Random(1))
        kafka.create_topic(tp.topic, 1)
        kafka.append_records(tp, [b"v"] * 9)
        queue = create_queue(kafka, asyncio.Semaphore(1))
        letters, _ = await queue.fetch_dead_letters(10, 200_000)
        assert len(letters) == 3

    run_in_virtual_time(play())


def test_dead_letters_that_come_while_others_are_read_stay_in_the_queue(monkeypatch):
    """They were read behind the end that was asked for, dropped, and committed as done."""
    tp = TopicPartition("orders.dlq", 0)
    kafka = SimulatedKafka(random.Random(1))
    kafka.create_topic(tp.topic, 1)
    kafka.append_records(tp, [b"early"])
    read_as_it_is = queue_module.read_committed

    async def read_late(cluster: Cluster, tp: TopicPartition, offset: int) -> PartitionRead:
        kafka.append_records(tp, [b"late"])
        return await read_as_it_is(cluster, tp, offset)

    monkeypatch.setattr(queue_module, "read_committed", read_late)

    async def play() -> None:
        queue = create_queue(kafka, asyncio.Semaphore(1))
        (letter,), next_offsets = await queue.fetch_dead_letters(10, 1000)
        assert (letter.record.value, next_offsets) == (b"early", {tp: 1})

    run_in_virtual_time(play())


def test_a_wait_for_dead_letters_asks_kafka_twice_a_minute():
    """Each asked it 60 times a second: a thousand of them stalled everybody's requests."""

    async def play() -> None:
        kafka = SimulatedKafka(random.Random(1))
        kafka.create_topic("orders.dlq", 2)
        waiting = asyncio.create_task(wait_for_letters(kafka, asyncio.Semaphore(), ClientMemory()))
        await asyncio.sleep(200.0)  # of virtual time
        assert kafka.request_count < 20
        kafka.append_records(TopicPartition("orders.dlq", 1), [b"it"])
        (found,) = await waiting
        assert (found.record.value, found.record.tp.partition) == (b"it", 1)

    run_in_virtual_time(play())


def test_a_position_that_is_committed_meanwhile_is_not_beyond_the_end(monkeypatch):
    """The whole log was listed again, as if the topic had been created again."""
    committed_with_topics = GroupOffsets.committed_with_topics

    async def play() -> None:
        kafka = SimulatedKafka(random.Random(1))
        kafka.create_topic("orders.dlq", 1)
        tp = TopicPartition("orders.dlq", 0)
        kafka.append_records(tp, [b"it"] * 5)

        async def commit_and_look(offsets: GroupOffsets, tps: Any) -> Any:
            kafka.append_records(tp, [b"it"])
            await offsets.commit({tp: OffsetAndMetadata(6)}, lambda _: None)
            return await committed_with_topics(offsets, tps)

        monkeypatch.setattr(GroupOffsets, "committed_with_topics", commit_and_look)
        ranges = await create_queue(kafka, asyncio.Semaphore()).fetch_ranges()
        assert ranges == {tp: range(6, 6)}

    run_in_virtual_time(play())


def test_those_who_wait_for_dead_letters_of_a_topic_share_a_consumer(monkeypatch):
    """Each had one, with all partitions, in no account: 480 of them took 524 MiB. And each dead
    letter of whatever group made all of them look for theirs."""

    def parse(record: Record) -> DeadLetterMessage:
        group = (record.value or b"").decode()
        return DeadLetterMessage(record.tp, 0, 0, None, b"", (), group, "", "", "")

    for module in (queue_module, watches_module):
        monkeypatch.setattr(module, "parse_message", parse)
    tp = TopicPartition("orders.dlq", 9)

    async def play() -> None:
        kafka, memory = SimulatedKafka(random.Random(1)), ClientMemory()
        kafka.create_topic(tp.topic, 10)
        watches = DeadLetterWatches(cast(Cluster, SimulatedCluster(kafka)), memory)
        waiting = [
            asyncio.create_task(
                watches.fetch_dead_letters(
                    create_queue(kafka, asyncio.Semaphore(), f"g{number}"), 1, 1, 300.0
                )
            )
            for number in range(50)
        ]
        await asyncio.sleep(10.0)  # of virtual time
        assert 0 < memory.by_part[HeldPart.FETCHED] < 50_000
        count = kafka.request_count
        kafka.append_records(tp, [b"others"])
        await asyncio.sleep(10.0)
        assert kafka.request_count - count < 5
        kafka.append_records(tp, [b"g7"])
        (found,) = await waiting[7]
        assert found.message.group == "g7"
        assert sum(task.done() for task in waiting) == 1
        await asyncio.sleep(300.0)
        assert [task.result() for task in waiting if task is not waiting[7]] == [[]] * 49
        assert memory.by_part[HeldPart.FETCHED] == 0

    run_in_virtual_time(play())


def test_there_must_be_memory_for_the_partitions_whose_dead_letters_are_waited_for():
    async def play() -> None:
        kafka = SimulatedKafka(random.Random(1))
        kafka.create_topic("orders.dlq", 10)
        memory = ClientMemory(100_000)
        with memory.reserve(HeldPart.FETCHED, 50_000), pytest.raises(MemoryFull):
            await wait_for_letters(kafka, asyncio.Semaphore(), memory)

    run_in_virtual_time(play())


async def test_what_the_back_end_was_not_asked_about_is_not_committed():
    """It fails at the batch and takes the first one alone; then it is away."""
    verdicts = [SuspectBatch("no"), BatchResults([RecordResult(True)]), BackendUnavailable("away")]
    committed = []

    async def post(*_: object) -> Verdict:
        return verdicts.pop(0)

    async def encode(_: object) -> Any:
        return SimpleNamespace(body=b"", sent=[1], complete_verdict=lambda verdict: verdict)

    async def commit(writes: object, **options: object) -> WrittenOffsets:
        committed.append(options["offsets"])
        return {}

    tp = TopicPartition("orders.dlq", 0)
    message = SimpleNamespace(
        retries=0, origin=tp, offset=0, key=None, correlation_id=None, traceability_id=None
    )
    letters: Any = [
        SimpleNamespace(
            origin=tp, message=message, record=SimpleNamespace(tp=tp, next_offset=number)
        )
        for number in (1, 2, 3)
    ]
    pieces: list[Any] = [
        SimpleNamespace(group="billing", offsets_group="billing.dlq", mark_offsets=dict),
        SimpleNamespace(post=post),
        SimpleNamespace(encode=encode),
        SimpleNamespace(record=lambda event: None),
    ]
    transactions: Any = SimpleNamespace(commit=commit)
    retry = DeadLetterRetry(*pieces)
    await retry.retry_batch(transactions, letters, {tp: 3}, last=False)
    assert committed == [{tp: 1}]
