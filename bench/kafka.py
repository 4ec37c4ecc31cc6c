"""Provide the Kafka of measurements: real brokers on this machine, or librdkafka's mock in tests.

Measurements create topics and stop nodes by these methods only, so that their smoke tests need no
Java.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from support.brokers import FAST_FAILOVER_PROPERTIES, TEST_PROPERTIES, KafkaCluster
from support.kafka_wire import ApiKey, decode_response

from gateway.kafka.embedded import EmbeddedKafka
from gateway.kafka.local import LocalKafka

# The first entry of a partition's index touches a page of a sparse file, which takes tens of ms on
# some disks: of a thousand partitions nobody would be answered for a minute. Without entries a
# fetch scans up to 1 MiB: 8 ms where each batch has one record.
UNINDEXED_PROPERTIES = {"log.index.interval.bytes": str(1 << 20)}


class Kafka(Protocol):
    bootstrap: list[str]

    @property
    def bootstrap_servers(self) -> str:
        """host:port of every broker, with commas."""

    def create_topic(
        self,
        partitions: int = 1,
        leaders: Sequence[int] | None = None,
        *,
        has_followers: bool = True,
    ) -> str:
        """A new topic. leaders: the node that leads each partition; another one follows, unless
        without followers nobody is to lead it when its node is gone."""

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Move the log start of each partition to its offset in `before`."""

    def kill_node(self, node: int) -> None: ...

    def freeze_node(self, node: int) -> None: ...

    async def wait_for_election(self, topic: str, partitions: Sequence[int], node: int) -> None:
        """Return when all of them are led by others than `node`, as those others say."""

    async def wait_until_leaderless(self, topic: str, partition: int, node: int) -> None:
        """Return when all nodes but `node`, which was killed, say that nobody leads it."""

    def restore(self) -> None: ...


class RealKafka:
    def __init__(self, broker: KafkaCluster) -> None:
        self.bootstrap = broker.bootstrap
        self._broker = broker

    @property
    def bootstrap_servers(self) -> str:
        return self._broker.bootstrap_servers

    def create_topic(
        self,
        partitions: int = 1,
        leaders: Sequence[int] | None = None,
        *,
        has_followers: bool = True,
    ) -> str:
        if leaders is None:
            return self._broker.create_unique_topic(partitions)
        return self._broker.create_unique_topic(
            assignment=[self._choose_replicas(n) if has_followers else [n] for n in leaders]
        )

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        self._broker.admin.delete_records(topic, before)

    def kill_node(self, node: int) -> None:
        self._local.get_node(node).kill()

    def freeze_node(self, node: int) -> None:
        self._local.get_node(node).freeze()

    async def wait_for_election(self, topic: str, partitions: Sequence[int], node: int) -> None:
        ports = [n.ports["PLAINTEXT"] for n in self._local.nodes if n.id != node]
        while True:
            for port in ports:
                with suppress(OSError):
                    leaders = await asyncio.to_thread(_fetch_leaders, port, topic)
                    if all(leaders.get(p, -1) not in (-1, node) for p in partitions):
                        return
            await asyncio.sleep(0.01)

    async def wait_until_leaderless(self, topic: str, partition: int, node: int) -> None:
        ports = [n.ports["PLAINTEXT"] for n in self._local.nodes if n.id != node]
        while ports:
            leaders = await asyncio.to_thread(_fetch_leaders, ports[0], topic)
            if leaders[partition] == -1:
                ports.pop(0)
            else:
                await asyncio.sleep(0.01)

    def restore(self) -> None:
        self._broker.restore()

    def delete_topics(self) -> None:
        """Delete what `topic` made."""
        self._broker.delete_topics()

    @property
    def _local(self) -> LocalKafka:
        assert self._broker.local_kafka is not None
        return self._broker.local_kafka

    def _choose_replicas(self, leader: int) -> list[int]:
        """Node 1 is the one that is hurt: it follows nobody, or writes to others would wait."""
        return [leader, {1: 2, 2: 3, 3: 2}[leader]]


class MockKafka:
    def __init__(self, embedded: EmbeddedKafka) -> None:
        self.bootstrap = embedded.bootstrap
        self._embedded = embedded
        self._led_partitions: dict[int, list[tuple[str, int]]] = {}
        self._topic_count = 0
        self._restore_calls: list[Callable[[], None]] = []

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(self.bootstrap)

    def create_topic(
        self,
        partitions: int = 1,
        leaders: Sequence[int] | None = None,
        *,
        has_followers: bool = True,
    ) -> str:
        self._topic_count += 1
        name, leaders = f"bench-{self._topic_count}", leaders or [1] * partitions
        self._embedded.create_topic(name, len(leaders), min(2, len(self.bootstrap)))
        for p, node in enumerate(leaders):
            self._embedded.lead(name, p, node)
            if has_followers:
                self._led_partitions.setdefault(node, []).append((name, p))
        return name

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        self._embedded.delete_records(topic, before)

    def kill_node(self, node: int) -> None:
        self._embedded.down(node)
        self._restore_calls.append(lambda: self._embedded.up(node))
        self._move_leaders(node)

    def freeze_node(self, node: int) -> None:
        self._embedded.delay(node, 30)
        self._restore_calls.append(lambda: self._embedded.delay(node, 0))
        self._move_leaders(node)

    async def wait_for_election(self, topic: str, partitions: Sequence[int], node: int) -> None:
        return

    async def wait_until_leaderless(self, topic: str, partition: int, node: int) -> None:
        """The mock goes on naming a node that is down, which is not there to be asked."""

    def restore(self) -> None:
        while self._restore_calls:
            self._restore_calls.pop()()

    def _move_leaders(self, node: int) -> None:
        for name, p in self._led_partitions.pop(node, []):
            self._embedded.lead(name, p, node + 1)


@contextmanager
def real_kafka(node_count: int, *, has_index: bool = False) -> Iterator[RealKafka]:
    """One broker, or three with fast failover, for the length of the block. indexed: as Kafka does
    by itself, for few partitions with many small batches."""
    properties = TEST_PROPERTIES | ({} if has_index else UNINDEXED_PROPERTIES)
    properties |= FAST_FAILOVER_PROPERTIES if node_count > 1 else {}
    with LocalKafka(node_count, properties=properties) as local:
        yield RealKafka(KafkaCluster(local.bootstrap, local))


def _fetch_leaders(port: int, topic: str) -> dict[int, int]:
    """Who leads each partition, as the broker on this port says (Metadata v4)."""
    name = topic.encode()
    body = struct.pack(">hhih", ApiKey.METADATA, 4, 0, -1)
    body += struct.pack(">ih", 1, len(name)) + name + b"\0"
    with socket.create_connection(("127.0.0.1", port), 0.5) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            answer = decode_response(ApiKey.METADATA, 4, stream.read(size))
    assert answer is not None
    return {each["partition"]: each["leader"] for each in answer["topics"][0]["partitions"]}
