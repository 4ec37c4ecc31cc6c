"""A group's consumer by the classic protocol, against a real broker."""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from support.group_members import (
    FAST_OPTIONS,
    PollingMember,
    commit_positions,
    running_librdkafka_member,
    running_member,
    running_member_process,
    wait_until_owned,
)
from support.records import RecordToSend, produce_records
from support.topic_reads import open_cluster
from support.waiting import wait_until

from gateway.core.group import classic_member
from gateway.core.group.assignor import AssignmentPlan, MemberSubscription, assign
from gateway.core.group.classic_member import ClassicMember
from gateway.core.group.consumer_member import ConsumerMember
from gateway.core.group.member import MemberState
from gateway.core.log.record import TopicPartition
from gateway.errors import GroupFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.group.consumer import GroupConsumer
from gateway.kafka.group.consumer_options import MAX_HEARTBEAT_INTERVAL_S, ConsumerOptions

LONG = 60.0  # s; a session's end and more on a busy machine
CLASSIC: dict[str, Any] = {"protocol": "classic", "session_timeout": 6.0}
STICKY = {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 200}


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


def build_numbered(count: int, partitions: int) -> list[RecordToSend]:
    return [RecordToSend(b"%d" % number, partition=number % partitions) for number in range(count)]


def wait_until_shared(members, topic: str, partitions: int):
    """Everything is owned, once, evenly."""

    def is_even() -> bool:
        owned = [tp for one in members for tp in one.owned_partitions]
        whole = sorted(owned) == [TopicPartition(topic, p) for p in range(partitions)]
        loads = [len(one.owned_partitions) for one in members]
        return whole and max(loads) - min(loads) <= 1

    return wait_until(
        is_even, lambda: f"even shares: {[sorted(one.owned_partitions) for one in members]}", LONG
    )


def test_auto_takes_what_the_coordinator_speaks():
    new, old = {68: (0, 1), 11: (2, 9)}, {11: (0, 5)}
    assert isinstance(ConsumerOptions("auto").create_member("g", new), ConsumerMember)
    assert isinstance(ConsumerOptions("auto").create_member("g", old), ClassicMember)
    assert isinstance(ConsumerOptions("classic").create_member("g", new), ClassicMember)
    with pytest.raises(GroupFailed, match="KIP-848"):
        ConsumerOptions("consumer").create_member("g", old)


@pytest.mark.parametrize("session, interval", [(45.0, MAX_HEARTBEAT_INTERVAL_S), (6.0, 2.0)])
def test_heartbeats_fit_into_the_session_where_nothing_is_said(session: float, interval: float):
    made = ConsumerOptions("classic", session_timeout=session).create_member("g", {})
    assert isinstance(made, ClassicMember) and made.heartbeat_interval == interval


@pytest.mark.smoke
async def test_three_share_a_topic_and_every_record_is_read_once(kafka, topic, group):
    name = topic(partitions=6)
    async with open_cluster(kafka.bootstrap, name) as made, AsyncExitStack() as blocks:
        first, second = [
            await blocks.enter_async_context(running_member(made, group, [name], **CLASSIC))
            for _ in range(2)
        ]
        await wait_until_shared([first, second], name, 6)
        await produce_records(kafka.bootstrap, name, build_numbered(300, 6), linger_ms=5)
        revoked_before = [len(one.get_events("revoked")) for one in (first, second)]
        async with running_member(made, group, [name], **CLASSIC) as third:
            read = [first, second, third]
            await wait_until_shared(read, name, 6)
            await produce_records(kafka.bootstrap, name, build_numbered(300, 6), linger_ms=5)
            await wait_until(lambda: sum(len(one.records) for one in read) >= 600, timeout_s=LONG)
        await wait_until_shared([first, second], name, 6)
        await produce_records(
            kafka.bootstrap, name, [RecordToSend(b"last", partition=p) for p in range(6)]
        )
        await wait_until(
            lambda: sum(one.values.count(b"last") for one in read) >= 6, timeout_s=LONG
        )
        offsets = Counter((record.tp, record.offset) for one in read for record in one.records)
        assert len(offsets) == 606 and set(offsets.values()) == {1}
        assert not any(one.get_events("lost") for one in read)
        # Who was there gave up only what the third was to have.
        assert sum(len(tps) for tps in third.get_events("assigned")) == 2
        for one, before in zip((first, second), revoked_before, strict=True):
            assert len(one.get_events("revoked")[before]) == 1


class _SlowMember(PollingMember):
    """Gives nothing up before it may."""

    def __init__(self, consumer: GroupConsumer) -> None:
        super().__init__(consumer)
        self.revoking: frozenset[TopicPartition] = frozenset()
        self.may_revoke = asyncio.Event()

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition]) -> None:
        self.revoking = tps
        await self.may_revoke.wait()
        self.revoking = frozenset()
        await super().on_partitions_revoked(tps)


@asynccontextmanager
async def running_slow_member(made: Cluster, group: str, topic: str) -> AsyncIterator[_SlowMember]:
    one = _SlowMember(GroupConsumer(made, group, ConsumerOptions(**(FAST_OPTIONS | CLASSIC))))
    one.consumer.subscribe([topic], one)
    polling = asyncio.create_task(one.poll_forever())
    try:
        yield one
    finally:
        polling.cancel()
        one.may_revoke.set()
        await asyncio.gather(polling, return_exceptions=True)
        await one.consumer.close()


async def test_nobody_pauses_what_it_keeps_while_a_member_is_still_giving_up(kafka, topic, group):
    """The whole time one member holds up the rebalance, the others wait in JoinGroup; they read
    and commit what they keep, and so does the slow one."""
    name = topic(partitions=6)
    async with open_cluster(kafka.bootstrap, name) as made, AsyncExitStack() as blocks:
        slow = await blocks.enter_async_context(running_slow_member(made, group, name))
        slow.may_revoke.set()
        quick = await blocks.enter_async_context(running_member(made, group, [name], **CLASSIC))
        await wait_until_shared([slow, quick], name, 6)
        slow.may_revoke.clear()
        third = await blocks.enter_async_context(running_member(made, group, [name], **CLASSIC))
        await wait_until(lambda: slow.revoking, "the slow one is to give up", LONG)
        await wait_until(
            lambda: len(quick.owned_partitions) == 2, "the quick one has given up", LONG
        )
        kept = (slow.owned_partitions | quick.owned_partitions) - slow.revoking
        assert len(kept) == 4
        await produce_records(
            kafka.bootstrap, name, [RecordToSend(b"it", partition=tp.partition) for tp in kept]
        )
        read = [slow, quick]
        await wait_until(lambda: sum(one.values.count(b"it") for one in read) == 4, timeout_s=LONG)
        await commit_positions(quick.consumer)
        assert all(one.consumer.state is MemberState.REBALANCING for one in read)
        assert slow.revoking and not third.owned_partitions
        slow.may_revoke.set()
        await wait_until_shared([*read, third], name, 6)


@pytest.mark.parametrize("leads", ["we", "librdkafka"])
async def test_it_shares_a_group_with_librdkafka_whoever_leads(
    kafka, topic, group, leads, monkeypatch
):
    name, plans = topic(partitions=4), list[AssignmentPlan]()

    def record_plan(
        claims: Sequence[MemberSubscription], partitions: Mapping[str, int]
    ) -> AssignmentPlan:
        plans.append(assign(claims, partitions))
        return plans[-1]

    monkeypatch.setattr(classic_member, "assign", record_plan)
    async with open_cluster(kafka.bootstrap, name) as made, AsyncExitStack() as blocks:
        us = running_member(made, group, [name], **CLASSIC)
        them = running_librdkafka_member(kafka.bootstrap_servers, group, [name], **STICKY)
        first, then = (us, them) if leads == "we" else (them, us)
        one = await blocks.enter_async_context(first)
        await wait_until_shared([one], name, 4)
        had = one.owned_partitions
        two = await blocks.enter_async_context(then)
        await wait_until_shared([one, two], name, 4)
        assert one.owned_partitions < had
        assert bool(plans) == (leads == "we")
        await produce_records(kafka.bootstrap, name, build_numbered(40, 4))
        await wait_until(lambda: len(one.values) + len(two.values) >= 40, timeout_s=LONG)
        assert sorted(one.values + two.values) == sorted(b"%d" % n for n in range(40))
        async with running_member(made, group, [name], **CLASSIC) as three:
            await wait_until_shared([one, two, three], name, 4)
        await wait_until_shared([one, two], name, 4)


async def test_what_a_killed_member_had_goes_to_the_others_after_its_session(kafka, topic, group):
    name = topic(partitions=4)
    async with (
        open_cluster(kafka.bootstrap, name) as made,
        running_member(made, group, [name], **CLASSIC) as left,
        running_member_process(
            kafka.bootstrap_servers, group, name, "classic", session_timeout=2.0
        ) as killed,
    ):
        await wait_until_owned(killed, 2)
        await wait_until(lambda: len(left.owned_partitions) == 2, timeout_s=LONG)
        before = len(left.events)
        killed.send_signal(signal.SIGKILL)
        await wait_until_shared([left], name, 4)
        await wait_until(lambda: [kind for kind, _ in left.events[before:]] == ["assigned"])


async def test_a_static_member_that_is_killed_and_back_has_its_own_and_nobody_elses_move(
    kafka, topic, group
):
    name, session_timeout = topic(partitions=4), 60.0  # s; longer than a busy machine starts Python
    async with (
        open_cluster(kafka.bootstrap, name) as made,
        running_member_process(
            kafka.bootstrap_servers, group, name, "classic", "pod-0", session_timeout
        ) as leader,
    ):
        await wait_until_owned(leader, 4)
        async with running_member(made, group, [name], **CLASSIC) as other:
            await wait_until_owned(leader, 2)
            await wait_until(lambda: len(other.owned_partitions) == 2, timeout_s=LONG)
            before = list(other.events)
            leader.send_signal(signal.SIGKILL)
            await leader.wait()
            async with running_member_process(
                kafka.bootstrap_servers, group, name, "classic", "pod-0", session_timeout
            ) as again:
                await wait_until_owned(again, 2)
                assert other.events == before


async def test_a_group_goes_over_to_kip_848_while_its_members_read(kafka, topic, group):
    """One after the other, and back: what Kafka 4 allows by default."""
    name = topic(partitions=4)
    async with open_cluster(kafka.bootstrap, name) as made, AsyncExitStack() as blocks:
        new = await blocks.enter_async_context(AsyncExitStack())
        async with running_member(made, group, [name], **CLASSIC) as old:
            await wait_until_shared([old], name, 4)
            one = await new.enter_async_context(
                running_member(made, group, [name], protocol="consumer")
            )
            await wait_until_shared([old, one], name, 4)
            await produce_records(kafka.bootstrap, name, build_numbered(40, 4))
            await wait_until(lambda: len(old.values) + len(one.values) >= 40, timeout_s=LONG)
        await wait_until_shared([one], name, 4)
        async with running_member(made, group, [name], **CLASSIC) as back:
            await wait_until_shared([one, back], name, 4)
            await new.aclose()
            await wait_until_shared([back], name, 4)
            read = old.values + one.values + back.values
            assert sorted(read) == sorted(b"%d" % n for n in range(40))


async def test_a_group_whose_members_take_another_assignor_says_so(kafka, topic, group):
    name = topic()
    async with open_cluster(kafka.bootstrap, name) as made:
        eager = AIOKafkaConsumer(name, bootstrap_servers=kafka.bootstrap_servers, group_id=group)
        await eager.start()
        try:
            consumer = GroupConsumer(made, group, ConsumerOptions(**CLASSIC))
            consumer.subscribe([name])
            with pytest.raises(GroupFailed, match="cooperative-sticky"):
                await consumer.poll(LONG)
            await consumer.close()
        finally:
            await eager.stop()
