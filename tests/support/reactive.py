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
from support.backend import Backend
from support.brokers import Broker

KEYS = 7


def settings(backend: Backend, topic: str, **options: Any) -> dict[str, Any]:
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
        "backend": {"host": backend.base_url, "timeout": "2s"},
        **options,
    }


@dataclass(frozen=True, slots=True)
class Dead:
    """One in a dead letter topic."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]

    @property
    def said(self) -> dict[str, str]:
        return {name: (text or b"").decode() for name, text in self.headers}

    @property
    def origin(self) -> tuple[str, int, int]:
        said = self.said
        partition, offset = int(said["X-Origin-Partition"]), int(said["X-Origin-Offset"])
        return said["X-Origin-Topic"], partition, offset


class World:
    """topic: a new one; its dead letters go with it, see `close`."""

    def __init__(
        self, kafka: Broker, backend: Backend, partitions: int = 3, *, replication: int = 1
    ) -> None:
        self.kafka = kafka
        self.backend = backend
        self.topic = kafka.topic(partitions=partitions, replication=replication)
        self.partitions = partitions
        self.written = 0
        # each record once, also where a broker is killed while it is written
        options = {"linger.ms": 5, "enable.idempotence": True}
        self._producer = Producer({"bootstrap.servers": kafka.servers, **options})

    @property
    def dead_topic(self) -> str:
        return f"{self.topic}.dlq"

    def close(self) -> None:
        if self.kafka.admin.exists(self.dead_topic):
            self.kafka.admin.delete_topic(self.dead_topic)

    def write(self, count: int) -> None:
        """Records with the numbers that are next, of seven keys; returns when Kafka has them."""
        for n in range(self.written, self.written + count):
            self._producer.produce(
                self.topic,
                json.dumps({"n": n}).encode(),
                f"k{n % KEYS}".encode(),
                headers=[("tag", b"a"), ("tag", b"b"), ("n", str(n).encode())],
            )
        assert self._producer.flush(60) == 0
        self.written += count

    def raw(self, key: bytes | None, value: bytes | None, **options: Any) -> None:
        self._producer.produce(self.topic, value, key, **options)
        assert self._producer.flush(60) == 0

    async def dead(self) -> list[Dead]:
        """All dead letters there are now, in each partition's order."""
        if not self.kafka.admin.exists(self.dead_topic):
            return []
        return await asyncio.to_thread(self._read, self.dead_topic)

    def _read(self, topic: str) -> list[Dead]:
        consumer = Consumer({"bootstrap.servers": self.kafka.servers, "group.id": "reader"})
        try:
            found = consumer.list_topics(topic, 30).topics[topic].partitions
            places = [Place(topic, number, 0) for number in found]
            left = sum(consumer.get_watermark_offsets(place, 30)[1] for place in places)
            consumer.assign(places)
            dead: list[Dead] = []
            while len(dead) < left:
                record = consumer.poll(30)
                assert record is not None and record.error() is None, record
                headers = record.headers() or []
                dead.append(Dead(record.partition(), record.key(), record.value(), headers))
            return dead
        finally:
            consumer.close()

    async def settled(self, within: float = 60.0) -> None:
        """Until every record was processed or is among the dead letters."""
        deadline = asyncio.get_running_loop().time() + within
        while missing := await self.missing():
            assert asyncio.get_running_loop().time() < deadline, f"not settled: {missing[:20]}"
            await asyncio.sleep(0.1)

    async def missing(self) -> list[int]:
        """Numbers of which nothing came."""
        done = numbers(self.backend.done)
        left = set(range(self.written)) - set(done)
        if left:
            left -= {int(each.said.get("n", -1)) for each in await self.dead()}
        return sorted(left)

    async def committed(self, group: str) -> int:
        """What the group has, of all partitions."""
        places = [Place(self.topic, number) for number in range(self.partitions)]
        return await asyncio.to_thread(_committed, self.kafka.servers, group, places)

    def check_order(self) -> None:
        """Of each key, no record was processed for the first time before an earlier one."""
        first: dict[int, list[int]] = defaultdict(list)
        seen: set[int] = set()
        for n in numbers(self.backend.done):
            if n not in seen:
                seen.add(n)
                first[n % KEYS].append(n)
        for key, order in first.items():
            assert order == sorted(order), f"records of key k{key} overtook: {order}"

    def repeated(self) -> int:
        """How many times a record was processed another time."""
        return sum(times - 1 for times in Counter(numbers(self.backend.done)).values())

    def unexplained(self) -> list[int]:
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


def _committed(servers: str, group: str, places: Sequence[Place]) -> int:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    try:
        return sum(max(0, place.offset) for place in consumer.committed(list(places), 30))
    finally:
        consumer.close()


def numbers(records: Iterable[Mapping[str, Any]]) -> list[int]:
    return [each["value"]["n"] for each in records if isinstance(each["value"], dict)]
