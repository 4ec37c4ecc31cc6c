"""Read a topic as a member of a consumer group, and note when records come and states change."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from support.group_members import commit_positions

from gateway.core.group.member import MemberState
from gateway.core.log.record import TopicPartition
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.group.consumer import GroupConsumer
from gateway.kafka.protocol.requests import (
    Api,
    FieldReader,
    FieldWriter,
    KafkaRequest,
)

COMMIT_INTERVAL_S = 0.2
STATE_INTERVAL_S = 0.002  # between two looks at a member's state


class Arrival(NamedTuple):
    """A record came. Times are those of `time.monotonic()`."""

    at: float
    partition: int
    member: int


@dataclass
class GroupReader:
    """A member that reads, and commits regularly.

    Attributes:
        consumer: The member.
        number: Its number among those of a run.
        arrivals: Where it notes the records; all members of a run share one list.
        states: When its state changed, and to what.
    """

    consumer: GroupConsumer
    number: int
    arrivals: list[Arrival]
    states: list[tuple[float, MemberState]] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, topic: str) -> None:
        """Join the group, and read until `stop`."""
        self.consumer.subscribe([topic], self)
        self._tasks = [
            asyncio.create_task(self._poll_records()),
            asyncio.create_task(self._commit_regularly()),
            asyncio.create_task(self._note_states()),
        ]

    async def stop(self, leaves: bool) -> None:
        """Stop reading. Without leaving, the coordinator hears nothing, as after kill -9."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.consumer.close(leaves)

    async def on_partitions_assigned(self, tps: frozenset[TopicPartition]) -> None:
        """Do nothing."""

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition]) -> None:
        """Commit, so that the next owner reads nothing twice."""
        await commit_positions(self.consumer)

    async def on_partitions_lost(self, tps: frozenset[TopicPartition]) -> None:
        """Do nothing."""

    async def _poll_records(self) -> None:
        while True:
            for record in await self.consumer.poll(1.0):
                self.arrivals.append(Arrival(time.monotonic(), record.tp.partition, self.number))

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            await commit_positions(self.consumer)

    async def _note_states(self) -> None:
        while True:
            state = self.consumer.state
            if not self.states or self.states[-1][1] is not state:
                self.states.append((time.monotonic(), state))
            await asyncio.sleep(STATE_INTERVAL_S)


async def set_group_timeouts(
    cluster: Cluster, group: str, session_timeout_s: float, heartbeat_interval_s: float
) -> None:
    """Set the session timeout and the heartbeat interval of a group by KIP-848."""
    await cluster.metadata.refresh("bench")
    node = min(cluster.metadata.brokers)
    values = {
        "consumer.session.timeout.ms": f"{session_timeout_s * 1000:.0f}",
        "consumer.heartbeat.interval.ms": f"{heartbeat_interval_s * 1000:.0f}",
    }
    errors = await cluster.connections.send(
        node, ConnectionRole.CONTROL, _AlterConfigsRequest(group, values)
    )
    assert not any(errors), f"the group's timeouts cannot be set: {errors}"


@dataclass
class _AlterConfigsRequest(KafkaRequest[tuple[int, ...]]):
    """IncrementalAlterConfigs of a group, a resource that librdkafka does not know (KIP-848)."""

    API = Api(key=44, name="IncrementalAlterConfigs", lowest=0, highest=1, first_flexible=1)

    group: str
    values: dict[str, str]

    def write_body(self, out: FieldWriter, version: int) -> None:
        out.array(1)
        out.i8(32)  # a group
        out.string(self.group)
        out.array(len(self.values))
        for name, value in self.values.items():
            out.string(name)
            out.i8(0)  # set
            out.string(value)
            out.tags()
        out.tags()
        out.i8(0)  # not only to validate

    def read_body(self, read: FieldReader, version: int) -> tuple[int, ...]:
        read.i32()
        return tuple(read.i16() for _ in range(read.array()))
