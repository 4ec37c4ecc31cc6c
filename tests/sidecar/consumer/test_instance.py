"""One consumer instance over a simulated Kafka, in virtual time."""

from __future__ import annotations

import asyncio
import logging
import random
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.simulated_kafka import SimulatedCluster, SimulatedKafka
from support.virtual_time import run_in_virtual_time

from gateway.client_memory import ClientMemory, HeldPart
from gateway.config.sections.sidecar import Consumer
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import GroupFailed, PartitionFailed
from gateway.kafka.group.consumer_options import OffsetReset
from gateway.kafka.protocol.group_messages import OffsetAndMetadata
from gateway.sidecar.consumer.instance import (
    CONSUMER_BYTES,
    PARTITION_BYTES,
    ConsumerInstance,
)
from gateway.sidecar.consumer.instance_options import InstanceOptions
from gateway.sidecar.http.status import StatusError

ZERO = TopicPartition("orders", 0)


class InstanceWorld:
    """A topic of ten records, and an instance."""

    def __init__(
        self,
        *,
        classic: bool = False,
        record_bytes: int = 2,
        reset: OffsetReset = "earliest",
        identity: str = "",
    ) -> None:
        self.kafka = SimulatedKafka(random.Random(0), is_classic=classic)
        self.kafka.create_topic("orders", 1)
        self.kafka.append_records(ZERO, [b"x" * record_bytes] * 10)
        self.memory = ClientMemory()
        self.cluster = SimulatedCluster(self.kafka)
        self.instance = ConsumerInstance(
            self.cluster,  # type: ignore[arg-type]
            Consumer.model_validate({"sessionTimeout": "6s", "heartbeatInterval": "1s"}),
            "g", "one",
            InstanceOptions("one", None, None, None, reset, "read_committed", True, 1, 1.0),
            dialect="", identity=identity, client_memory=self.memory,
        )  # fmt: skip

    async def poll_records(self, max_bytes: int = 1 << 20) -> list[Record]:
        """Return what a request for records would."""
        async with self.answering(max_bytes) as records:
            return records

    @asynccontextmanager
    async def answering(self, max_bytes: int = 1 << 20) -> AsyncIterator[list[Record]]:
        async with self.instance.lock_for_poll(5.0) as wait:
            gone = asyncio.get_running_loop().create_future()
            yield await self.instance.poll(wait, max_bytes, 1, asyncio.Event(), gone)

    async def lose_partitions(self) -> None:
        """Lose all partitions, and have them again."""
        self.kafka.expire_member(self.kafka.member_ids[0])
        await asyncio.sleep(5.0)
        assert self.instance.assignment

    @property
    def committed_offset(self) -> int | None:
        """The group's offset, or None."""
        found = self.kafka.committed.get((self.kafka.topics["orders"].id, 0))
        return None if found is None else found.offset


def test_records_of_a_partition_that_went_and_came_back_are_not_committed():
    """While a slow client read its answer, the partition may have been another member's, which
    got further; the older offset was committed over its own."""

    async def play() -> None:
        world = InstanceWorld()
        kafka = asyncio.create_task(world.kafka.run_expiry())
        world.instance.subscribe(["orders"])
        async with world.answering() as found:
            await world.lose_partitions()
            world.instance.mark_returned(found)  # the answer is written only now
        world.kafka.append_records(ZERO, [b"{}"])
        await world.poll_records()
        await asyncio.sleep(3.0)
        assert world.committed_offset == 0  # where it began
        await world.instance.unsubscribe()
        kafka.cancel()

    run_in_virtual_time(play())


def test_records_that_were_fetched_ahead_count_and_are_dropped_if_there_is_no_memory():
    """An instance keeps what a fetch brought, however little of it was polled: 8 polls of one
    record left 1.2 GB, which counted nowhere."""

    async def play() -> None:
        world = InstanceWorld(record_bytes=10_000)
        await world.instance.assign([ZERO])
        found = await world.poll_records(max_bytes=1)
        held = world.memory.by_part[HeldPart.FETCHED]
        assert 9 * 10_000 <= held - CONSUMER_BYTES - PARTITION_BYTES <= 9 * 10_500
        world.memory.limit = held // 2
        while len(found) < 9:
            found += await world.poll_records(max_bytes=1)
            await asyncio.sleep(0)
            assert world.memory.total < held // 2
        assert [record.offset for record in found] == list(range(9))
        assert world.memory.releases[HeldPart.FETCHED] > 1
        await world.instance.unsubscribe()
        assert world.memory.total == 0

    run_in_virtual_time(play())


def test_partitions_count_and_are_refused_if_there_is_no_memory():
    """320 instances with 1,000 partitions each took 700 MiB, with `memory: 256MiB`."""

    async def play() -> None:
        world = InstanceWorld()
        kafka = asyncio.create_task(world.kafka.run_expiry())
        world.kafka.create_topic("clicks", 1000)
        tps = [TopicPartition("clicks", number) for number in range(1000)]
        await world.instance.assign(tps)
        held = world.memory.by_part[HeldPart.FETCHED]
        assert held > 500_000
        world.memory.limit = 2 * held
        await world.instance.assign(tps[:10])
        with pytest.raises(StatusError) as refused:
            await world.instance.assign([*tps, ZERO])
        assert (refused.value.status, refused.value.code) == (503, "MEMORY_FULL")
        assert len(world.instance.assignment) == 10
        await world.instance.unsubscribe()
        assert world.memory.total == 0

        with world.memory.reserve(HeldPart.FETCHED, held // 2):
            world.instance.subscribe(["clicks"])
            await asyncio.sleep(30.0)
            # The group gave it too many.
            assert not world.instance.is_subscribed
            with pytest.raises(StatusError, match="memory has no space"):
                await world.poll_records()
        world.instance.subscribe(["orders"])
        assert await world.poll_records()
        await world.instance.unsubscribe()
        kafka.cancel()

    run_in_virtual_time(play())


def test_a_member_gets_partitions_however_much_memory_another_client_has():
    """One client took all memory of partitions: members of others left at the next rebalance."""

    async def play() -> None:
        world = InstanceWorld(identity="alice")
        kafka = asyncio.create_task(world.kafka.run_expiry())
        world.kafka.create_topic("clicks", 100)
        world.memory.limit = 800_000
        world.instance.subscribe(["clicks"])
        with (
            world.memory.reserve(HeldPart.FETCHED, 180_000, "mallory"),
            world.memory.reserve(HeldPart.FETCHED, 90_000, "mallet"),
        ):
            await asyncio.sleep(30.0)
            assert len(world.instance.assignment) == 100
            await world.poll_records()
        await world.instance.unsubscribe()
        assert world.memory.total == 0
        kafka.cancel()

    run_in_virtual_time(play())


def test_nothing_is_remembered_of_partitions_that_are_not_assigned():
    """Instances without a subscription committed 1,000 offsets each, which took 0.5 MB each, and
    one that assigned other partitions each time remembered them all."""

    async def play() -> None:
        world = InstanceWorld()
        world.kafka.create_topic("clicks", 20_000)
        tps = [TopicPartition("clicks", number) for number in range(20_000)]
        await world.instance.assign([ZERO])
        tracemalloc.start()
        for start in range(0, 20_000, 1000):
            chosen = tps[start : start + 1000]
            await world.instance.assign(chosen)
            await world.instance.assign([ZERO])
            await world.instance.commit(dict.fromkeys(chosen, OffsetAndMetadata(0)))
            world.kafka.committed.clear()
            if not start:
                first = tracemalloc.get_traced_memory()[0]
        taken = tracemalloc.get_traced_memory()[0] - first
        tracemalloc.stop()
        assert taken < 500_000, taken
        await world.instance.unsubscribe()

    run_in_virtual_time(play())


def test_polls_of_a_partition_that_failed_add_no_memory():
    """Each raised the same error, and it kept 6 KB of frames of each."""

    async def play() -> None:
        world = InstanceWorld(reset="none")
        await world.instance.assign([ZERO])
        depths = set()
        for _ in range(10):
            with pytest.raises(PartitionFailed) as failed:
                await world.poll_records()
            depths.add(len(failed.traceback))
        assert max(depths) < 20, depths
        await world.instance.unsubscribe()

    run_in_virtual_time(play())


def test_records_that_were_written_are_committed_with_the_next_poll():
    async def play() -> None:
        world = InstanceWorld()
        kafka = asyncio.create_task(world.kafka.run_expiry())
        world.instance.subscribe(["orders"])
        world.instance.mark_returned(await world.poll_records())
        world.kafka.append_records(ZERO, [b"{}"])
        await world.poll_records()
        await asyncio.sleep(3.0)
        assert world.committed_offset == 10
        await world.instance.unsubscribe()
        kafka.cancel()

    run_in_virtual_time(play())


def test_what_a_client_commits_is_not_taken_back_by_what_was_returned():
    """A client that had passed over records came back to the offset before them."""

    async def play() -> None:
        world = InstanceWorld()
        kafka = asyncio.create_task(world.kafka.run_expiry())
        world.instance.subscribe(["orders"])
        world.instance.mark_returned((await world.poll_records())[:4])
        await world.instance.commit({ZERO: OffsetAndMetadata(8)})
        world.kafka.append_records(ZERO, [b"{}"])
        await world.poll_records()
        await asyncio.sleep(6.0)
        assert world.committed_offset == 8
        await world.instance.seek({ZERO: 5})
        await world.poll_records()
        await asyncio.sleep(6.0)
        assert world.committed_offset == 5  # the client went back itself
        await world.instance.unsubscribe()
        kafka.cancel()

    run_in_virtual_time(play())


def test_a_log_that_begins_again_is_committed_from_its_own_records():
    """The commit of a client in a topic that was recreated since counted in the new one, whose
    records up to there were passed over."""

    async def play() -> None:
        world = InstanceWorld()
        kafka = asyncio.create_task(world.kafka.run_expiry())
        world.instance.subscribe(["orders"])
        found = await world.poll_records()
        world.instance.mark_returned(found[:4])
        await world.instance.commit({ZERO: OffsetAndMetadata(8)})
        world.instance.mark_returned(found[:2])  # without a seek: of another log
        world.kafka.append_records(ZERO, [b"{}"])
        await world.poll_records()
        await asyncio.sleep(6.0)
        assert world.committed_offset == 2
        await world.instance.unsubscribe()
        kafka.cancel()

    run_in_virtual_time(play())


@pytest.mark.parametrize("classic", [False, True])
def test_an_instance_whose_group_was_denied_for_a_while_is_polled_as_before(classic, caplog):
    """Every poll was a 409 until the sidecar was started anew."""
    caplog.set_level(logging.INFO)

    async def play() -> None:
        world = InstanceWorld(classic=classic)
        kafka = asyncio.create_task(world.kafka.run_expiry())
        world.instance.subscribe(["orders"])
        world.instance.mark_returned(await world.poll_records())
        world.kafka.is_denied = True
        with pytest.raises(GroupFailed):
            await world.poll_records()
        assert not world.instance.assignment
        world.kafka.is_denied = False
        await asyncio.sleep(6.0)
        again = await world.poll_records()
        assert [record.offset for record in again] == list(range(10))
        world.instance.mark_returned(again)
        await world.instance.unsubscribe()
        assert world.committed_offset == 10
        kafka.cancel()

    run_in_virtual_time(play())
    for label in ("group=g ", "commits of group=g instance=one "):
        messages = [message for message in caplog.messages if message.startswith(label)]
        assert len(messages) == 2 and "cause=access-denied: " in messages[0], messages
