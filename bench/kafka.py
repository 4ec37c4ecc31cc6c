"""The Kafka that is measured on: real brokers of this machine, or librdkafka's mock in tests.

A measurement asks for topics and hurts nodes by these verbs alone, so that its smoke test
needs no Java.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from support.brokers import PROPERTIES, Broker
from support.kafka_wire import Api, decode

from gateway.kafka.embedded import EmbeddedKafka
from gateway.kafka.local import LocalKafka

# The first entry of a partition's index touches a page of a sparse file, which takes tens of ms on
# some disks: of a thousand partitions nobody would be answered for a minute. Without entries a
# fetch scans up to 1 MiB: 8 ms where each batch has one record.
UNINDEXED = {"log.index.interval.bytes": str(1 << 20)}


class Kafka(Protocol):
    bootstrap: list[str]

    @property
    def servers(self) -> str:
        """host:port of every broker, with commas."""

    def topic(self, partitions: int = 1, leaders: Sequence[int] | None = None) -> str:
        """A new topic. leaders: the node that leads each partition; another one follows."""

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Move the log start of each partition to its offset in `before`."""

    def kill(self, node: int) -> None: ...

    def freeze(self, node: int) -> None: ...

    async def elected(self, topic: str, partitions: Sequence[int], node: int) -> None:
        """Return when all of them are led by others than `node`, as those others say."""

    def heal(self) -> None: ...


class RealKafka:
    def __init__(self, broker: Broker) -> None:
        self.bootstrap = broker.bootstrap
        self._broker = broker

    @property
    def servers(self) -> str:
        return self._broker.servers

    def topic(self, partitions: int = 1, leaders: Sequence[int] | None = None) -> str:
        if leaders is None:
            return self._broker.topic(partitions)
        return self._broker.topic(assignment=[self._replicas(node) for node in leaders])

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        self._broker.admin.delete_records(topic, before)

    def kill(self, node: int) -> None:
        self._local.node(node).kill()

    def freeze(self, node: int) -> None:
        self._local.node(node).freeze()

    async def elected(self, topic: str, partitions: Sequence[int], node: int) -> None:
        ports = [n.ports["PLAINTEXT"] for n in self._local.nodes if n.id != node]
        while True:
            for port in ports:
                with suppress(OSError):
                    leaders = await asyncio.to_thread(_leaders, port, topic)
                    if all(leaders.get(p, -1) not in (-1, node) for p in partitions):
                        return
            await asyncio.sleep(0.01)

    def heal(self) -> None:
        self._broker.heal()

    def forget_topics(self) -> None:
        """Delete what `topic` made."""
        self._broker.forget_topics()

    @property
    def _local(self) -> LocalKafka:
        assert self._broker.local is not None
        return self._broker.local

    def _replicas(self, leader: int) -> list[int]:
        """Node 1 is the one that is hurt: it follows nobody, or writes to others would wait."""
        return [leader, {1: 2, 2: 3, 3: 2}[leader]]


class MockKafka:
    def __init__(self, embedded: EmbeddedKafka) -> None:
        self.bootstrap = embedded.bootstrap
        self._embedded = embedded
        self._led: dict[int, list[tuple[str, int]]] = {}
        self._count = 0
        self._undo: list[Callable[[], None]] = []

    @property
    def servers(self) -> str:
        return ",".join(self.bootstrap)

    def topic(self, partitions: int = 1, leaders: Sequence[int] | None = None) -> str:
        self._count += 1
        name, leaders = f"bench-{self._count}", leaders or [1] * partitions
        self._embedded.create_topic(name, len(leaders), min(2, len(self.bootstrap)))
        for p, node in enumerate(leaders):
            self._embedded.lead(name, p, node)
            self._led.setdefault(node, []).append((name, p))
        return name

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        self._embedded.delete_records(topic, before)

    def kill(self, node: int) -> None:
        self._embedded.down(node)
        self._undo.append(lambda: self._embedded.up(node))
        self._elect(node)

    def freeze(self, node: int) -> None:
        self._embedded.delay(node, 30)
        self._undo.append(lambda: self._embedded.delay(node, 0))
        self._elect(node)

    async def elected(self, topic: str, partitions: Sequence[int], node: int) -> None:
        return

    def heal(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _elect(self, node: int) -> None:
        for name, p in self._led.pop(node, []):
            self._embedded.lead(name, p, node + 1)


@contextmanager
def real_kafka(nodes: int, *, indexed: bool = False) -> Iterator[RealKafka]:
    """One broker, or three with fast failover, for the length of the block. indexed: as Kafka does
    by itself, for few partitions with many small batches."""
    properties = PROPERTIES if indexed else {**PROPERTIES, **UNINDEXED}
    with LocalKafka(nodes, properties=properties, fast_failover=nodes > 1) as local:
        yield RealKafka(Broker(local.bootstrap, local))


def _leaders(port: int, topic: str) -> dict[int, int]:
    """Who leads each partition, as the broker on this port says (Metadata v4)."""
    name = topic.encode()
    body = struct.pack(">hhih", Api.METADATA, 4, 0, -1)
    body += struct.pack(">ih", 1, len(name)) + name + b"\0"
    with socket.create_connection(("127.0.0.1", port), 0.5) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            answer = decode(Api.METADATA, 4, stream.read(size))
    assert answer is not None
    return {each["partition"]: each["leader"] for each in answer["topics"][0]["partitions"]}
