"""Members of consumer groups for tests: ours in this process or in one of their own, and
librdkafka's."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from support.tasks import running_task

from gateway.core.log.record import Record, TopicPartition
from gateway.errors import KafkaError, NotOwned
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.group.consumer import ConsumerOptions, GroupConsumer
from gateway.kafka.group.group_offsets import GroupOffsets
from gateway.kafka.protocol.group_messages import OffsetAndMetadata

_TESTS_DIRECTORY = str(Path(__file__).parents[1])
FAST_OPTIONS: dict[str, Any] = {"heartbeat_interval": 0.2, "auto_offset_reset": "earliest"}


async def commit_positions(consumer: GroupConsumer) -> None:
    """Commit the positions that are not committed yet, but of partitions lost meanwhile."""
    offsets = {
        tp: OffsetAndMetadata(state.position, state.epoch)
        for tp, state in consumer.prefetcher.states.items()
        if state.position is not None and state.position != state.committed
    }
    with suppress(NotOwned):
        await consumer.commit(offsets)


async def fetch_committed(
    consumer: GroupConsumer, tps: Collection[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata]:
    coordinators = consumer.prefetcher.cluster.coordinators
    return await GroupOffsets(coordinators, consumer.group).committed(tps)


class PollingMember:
    """Polls until its block ends; commits what it returned when it gives a partition up.

    events: what its listener heard: (`assigned | revoked | lost`, partitions).
    """

    def __init__(self, consumer: GroupConsumer) -> None:
        self.consumer = consumer
        self.records: list[Record] = []
        self.events: list[tuple[str, frozenset[TopicPartition]]] = []
        self.commit_error: KafkaError | None = None

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]

    @property
    def owned_partitions(self) -> frozenset[TopicPartition]:
        return self.consumer.assignment

    def get_events(self, kind: str) -> list[frozenset[TopicPartition]]:
        return [tps for name, tps in self.events if name == kind]

    async def on_partitions_assigned(self, tps: frozenset[TopicPartition]) -> None:
        self.events.append(("assigned", tps))

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition]) -> None:
        await commit_positions(self.consumer)
        self.events.append(("revoked", tps))

    async def on_partitions_lost(self, tps: frozenset[TopicPartition]) -> None:
        self.events.append(("lost", tps))
        try:
            await self.consumer.commit(dict.fromkeys(tps, 0))
        except KafkaError as exc:
            self.commit_error = exc

    async def poll_forever(self) -> None:
        while True:
            self.records += await self.consumer.poll(1.0)


@asynccontextmanager
async def running_member(
    cluster: Cluster, group: str, topics: Any, *, leave: bool = True, **options: Any
) -> AsyncIterator[PollingMember]:
    """A member that polls; closed at the end of the block."""
    made = PollingMember(GroupConsumer(cluster, group, ConsumerOptions(**(FAST_OPTIONS | options))))
    made.consumer.subscribe(topics, made)
    try:
        async with running_task(made.poll_forever()):
            yield made
    finally:
        await made.consumer.close(leave)


async def wait_for_coordinator(cluster: Cluster, group: str) -> None:
    """Return when the group's coordinator answers: a broker's first group waits for its topic."""
    await GroupOffsets(cluster.coordinators, group).committed([])


class LibrdkafkaMember:
    """librdkafka's member of a group, polling in a thread."""

    def __init__(self, servers: str, group: str, topics: Sequence[str], **options: Any) -> None:
        own = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": group} | own | options)
        self.owned_partitions: frozenset[TopicPartition] = frozenset()
        self.values: list[bytes | None] = []
        self._stop_event = threading.Event()
        self._consumer.subscribe(
            list(topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_revoke,
        )
        self._thread = threading.Thread(target=self._poll_forever)
        self._thread.start()

    def close(self) -> None:
        self._stop_event.set()
        self._thread.join()

    def _poll_forever(self) -> None:
        while not self._stop_event.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.values.append(message.value())
                self._consumer.commit(message, asynchronous=True)
        self._consumer.close()

    def _on_assign(self, consumer: Consumer, partitions: Collection[Any]) -> None:
        consumer.incremental_assign(list(partitions))
        self.owned_partitions |= {TopicPartition(each.topic, each.partition) for each in partitions}

    def _on_revoke(self, consumer: Consumer, partitions: Collection[Any]) -> None:
        consumer.incremental_unassign(list(partitions))
        self.owned_partitions -= {TopicPartition(each.topic, each.partition) for each in partitions}


@asynccontextmanager
async def running_librdkafka_member(
    servers: str, group: str, topics: Sequence[str], **options: Any
) -> AsyncIterator[LibrdkafkaMember]:
    made = LibrdkafkaMember(servers, group, topics, **options)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.close)


@asynccontextmanager
async def running_member_process(
    servers: str,
    group: str,
    topic: str,
    protocol: str = "auto",
    instance_id: str = "",
    session_timeout: float = 6.0,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A member in a process of its own, that says `owns N` whenever that changes, and commits."""
    made = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "support.group_members", servers, group, topic, protocol, instance_id,
        str(session_timeout),
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": _TESTS_DIRECTORY},
    )  # fmt: skip
    try:
        yield made
    finally:
        if made.returncode is None:
            made.kill()
        await made.wait()


async def wait_until_owned(process: asyncio.subprocess.Process, count: int) -> None:
    """Return when the process said so."""
    assert process.stdout is not None
    async with asyncio.timeout(60):
        async for line in process.stdout:
            if line == b"owns %d\n" % count:
                return
    raise AssertionError(f"the process ended before it owned {count}")


async def _main(
    servers: str, group: str, topic: str, protocol: str, instance_id: str, session_timeout: str
) -> None:
    how: dict[str, Any] = {"protocol": protocol, "instance_id": instance_id or None}
    if protocol == "classic":
        how["session_timeout"] = float(session_timeout)
    async with Cluster(ClusterSettings(servers.split(","))) as cluster:
        consumer = GroupConsumer(cluster, group, ConsumerOptions(**(FAST_OPTIONS | how)))
        said = -1
        consumer.subscribe([topic])
        while True:
            await consumer.poll(0.1)
            await commit_positions(consumer)
            if (now := len(consumer.assignment)) != said:
                said = now
                print(f"owns {said}", flush=True)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
