"""A reactive group's world: what is written for it, and what came of each record."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from support.backend import FakeBackend
from support.brokers import KafkaCluster

KEY_COUNT = 7
BACKEND_TIMEOUT_S = 2.0  # for the answer to a batch


def build_settings(backend: FakeBackend, topic: str, **options: Any) -> dict[str, Any]:
    """The section of one group, quick where waits are."""
    return {
        "group": f"group-{uuid.uuid4().hex[:8]}",
        "topics": [topic],
        "autoOffsetReset": "earliest",
        "keyFormat": "string",
        "valueFormat": "json",
        "retryDelay": "50ms",
        "retryDelayMax": "500ms",
        "heartbeatInterval": "500ms",
        "backend": {"host": backend.base_url, "timeout": f"{BACKEND_TIMEOUT_S:g}s"},
        **options,
    }


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """One in a dead letter topic."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]

    @property
    def header_texts(self) -> dict[str, str]:
        return {name: (text or b"").decode() for name, text in self.headers}

    @property
    def origin(self) -> tuple[str, int, int]:
        said = self.header_texts
        partition, offset = int(said["X-Origin-Partition"]), int(said["X-Origin-Offset"])
        return said["X-Origin-Topic"], partition, offset


class ReactiveWorld:
    """topic: a new one; its dead letters go with it, see `close`."""

    def __init__(
        self,
        kafka: KafkaCluster,
        backend: FakeBackend,
        partition_count: int = 3,
        *,
        replication: int = 1,
    ) -> None:
        self.kafka = kafka
        self.backend = backend
        self.topic = kafka.create_unique_topic(partitions=partition_count, replication=replication)
        self.partition_count = partition_count
        self.written_count = 0
        # each record once, also where a broker is killed while it is written
        options = {"linger.ms": 5, "enable.idempotence": True}
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **options})

    @property
    def dead_topic(self) -> str:
        return f"{self.topic}.dlq"

    def close(self) -> None:
        if self.kafka.admin.topic_exists(self.dead_topic):
            self.kafka.admin.delete_topic(self.dead_topic)

    def write_records(self, count: int) -> None:
        """Records with the numbers that are next, of seven keys; returns when Kafka has them."""
        for n in range(self.written_count, self.written_count + count):
            self._producer.produce(
                self.topic,
                json.dumps({"n": n}).encode(),
                f"k{n % KEY_COUNT}".encode(),
                headers=[("tag", b"a"), ("tag", b"b"), ("n", str(n).encode())],
            )
        assert self._producer.flush(60) == 0
        self.written_count += count

    def write_raw(self, key: bytes | None, value: bytes | None, **options: Any) -> None:
        self._producer.produce(self.topic, value, key, **options)
        assert self._producer.flush(60) == 0

    async def read_dead_letters(self) -> list[DeadLetterRecord]:
        """All dead letters there are now, in each partition's order."""
        if not self.kafka.admin.topic_exists(self.dead_topic):
            return []
        return await asyncio.to_thread(self._read_records, self.dead_topic)

    def _read_records(self, topic: str) -> list[DeadLetterRecord]:
        consumer = Consumer(
            {"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": "reader"}
        )
        try:
            found = consumer.list_topics(topic, 30).topics[topic].partitions
            places = [Place(topic, number, 0) for number in found]
            # By the admin client, which asks again when a partition has a new leader.
            left = sum(self.kafka.admin.get_high_watermark(topic, number) for number in found)
            consumer.assign(places)
            dead: list[DeadLetterRecord] = []
            while len(dead) < left:
                record = consumer.poll(30)
                assert record is not None and record.error() is None, record
                headers = record.headers() or []
                dead.append(
                    DeadLetterRecord(record.partition(), record.key(), record.value(), headers)
                )
            return dead
        finally:
            consumer.close()

    async def wait_until_settled(self, timeout_s: float = 60.0) -> None:
        """Until every record was processed or is among the dead letters."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while missing := await self.list_missing():
            assert asyncio.get_running_loop().time() < deadline, f"not settled: {missing[:20]}"
            await asyncio.sleep(0.1)

    async def list_missing(self) -> list[int]:
        """Numbers of which nothing came."""
        done = get_numbers(self.backend.processed_records)
        left = set(range(self.written_count)) - set(done)
        if left:
            left -= {int(each.header_texts.get("n", -1)) for each in await self.read_dead_letters()}
        return sorted(left)

    async def fetch_committed(self, group_id: str) -> int:
        """What the group has, of all partitions."""
        places = [Place(self.topic, number) for number in range(self.partition_count)]
        return await asyncio.to_thread(
            _sum_committed, self.kafka.bootstrap_servers, group_id, places
        )

    def check_order(self) -> None:
        """Of each key, no record was processed for the first time before an earlier one."""
        first: dict[int, list[int]] = defaultdict(list)
        seen: set[int] = set()
        for n in get_numbers(self.backend.processed_records):
            if n not in seen:
                seen.add(n)
                first[n % KEY_COUNT].append(n)
        for key, order in first.items():
            assert order == sorted(order), f"records of key k{key} overtook: {order}"

    def count_repeated(self) -> int:
        """How many times a record was processed another time."""
        return sum(
            times - 1 for times in Counter(get_numbers(self.backend.processed_records)).values()
        )

    def list_unexplained(self) -> list[int]:
        """Numbers that were processed again although the first time was answered well."""
        answered: set[int] = set()
        again: list[int] = []
        for call in self.backend.calls:
            for record, done in zip(call["records"], call["processed"] or (), strict=False):
                n = record["value"]["n"]
                if done and n in answered:
                    again.append(n)
            if call["said"] == "good":
                pairs = zip(call["records"], call["processed"], strict=True)
                answered |= {record["value"]["n"] for record, done in pairs if done}
        return again


def _sum_committed(servers: str, group_id: str, partitions: Sequence[Place]) -> int:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group_id})
    try:
        return sum(max(0, place.offset) for place in consumer.committed(list(partitions), 30))
    finally:
        consumer.close()


def get_numbers(records: Iterable[Mapping[str, Any]]) -> list[int]:
    return [each["value"]["n"] for each in records if isinstance(each["value"], dict)]
