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
from support.consuming import QUICK, Member, foreign, member, owns, process
from support.reading import cluster
from support.records import Sent, produce
from support.until import until

from gateway.core.group import classic_member
from gateway.core.group.assignor import Claim, Plan, assign
from gateway.core.group.classic_member import ClassicMember
from gateway.core.group.consumer_member import ConsumerMember
from gateway.core.group.member import State
from gateway.core.log.record import TopicPartition
from gateway.errors import GroupFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.group.consumer import GroupConsumer
from gateway.kafka.group.protocols import HEARTBEAT, Protocols

LONG = 60.0  # s; a session's end and more on a busy machine
CLASSIC: dict[str, Any] = {"protocol": "classic", "session_timeout": 6.0}
STICKY = {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 200}


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


def numbered(count: int, partitions: int) -> list[Sent]:
    return [Sent(b"%d" % number, partition=number % partitions) for number in range(count)]


def shared(members, topic: str, partitions: int):
    """Everything is owned, once, evenly."""

    def even() -> bool:
        owned = [tp for one in members for tp in one.owned]
        whole = sorted(owned) == [TopicPartition(topic, p) for p in range(partitions)]
        loads = [len(one.owned) for one in members]
        return whole and max(loads) - min(loads) <= 1

    return until(even, lambda: f"even shares: {[sorted(one.owned) for one in members]}", LONG)


def test_auto_takes_what_the_coordinator_speaks():
    new, old = {68: (0, 1), 11: (2, 9)}, {11: (0, 5)}
    assert isinstance(Protocols("auto").member("g", new), ConsumerMember)
    assert isinstance(Protocols("auto").member("g", old), ClassicMember)
    assert isinstance(Protocols("classic").member("g", new), ClassicMember)
    with pytest.raises(GroupFailed, match="KIP-848"):
        Protocols("consumer").member("g", old)


@pytest.mark.parametrize("session, interval", [(45.0, HEARTBEAT), (6.0, 2.0)])
def test_heartbeats_fit_into_the_session_where_nothing_is_said(session: float, interval: float):
    made = Protocols("classic", session_timeout=session).member("g", {})
    assert isinstance(made, ClassicMember) and made.interval == interval


async def test_three_share_a_topic_and_every_record_is_read_once(kafka, topic, group):
    name = topic(partitions=6)
    async with cluster(kafka.bootstrap, name) as made, AsyncExitStack() as blocks:
        first, second = [
            await blocks.enter_async_context(member(made, group, [name], **CLASSIC))
            for _ in range(2)
        ]
        await shared([first, second], name, 6)
        await produce(kafka.bootstrap, name, numbered(300, 6), linger_ms=5)
        async with member(made, group, [name], **CLASSIC) as third:
            read = [first, second, third]
            await shared(read, name, 6)
            await produce(kafka.bootstrap, name, numbered(300, 6), linger_ms=5)
            await until(lambda: sum(len(one.records) for one in read) >= 600, within=LONG)
        await shared([first, second], name, 6)
        await produce(kafka.bootstrap, name, [Sent(b"last", partition=p) for p in range(6)])
        await until(lambda: sum(one.values.count(b"last") for one in read) >= 6, within=LONG)
        offsets = Counter((record.tp, record.offset) for one in read for record in one.records)
        assert len(offsets) == 606 and set(offsets.values()) == {1}
        assert not any(one.heard("lost") for one in read)
        # Who was there gave up only what the third was to have.
        assert sum(len(tps) for tps in third.heard("assigned")) == 2
        assert sum(len(tps) for one in read[:2] for tps in one.heard("revoked")[:1]) <= 3


class _Slow(Member):
    """Gives nothing up before it may."""

    def __init__(self, consumer: GroupConsumer) -> None:
        super().__init__(consumer)
        self.giving_up: frozenset[TopicPartition] = frozenset()
        self.may = asyncio.Event()

    async def revoked(self, tps: frozenset[TopicPartition]) -> None:
        self.giving_up = tps
        await self.may.wait()
        self.giving_up = frozenset()
        await super().revoked(tps)


@asynccontextmanager
async def slow_member(made: Cluster, group: str, topic: str) -> AsyncIterator[_Slow]:
    one = _Slow(GroupConsumer(made, group, **(QUICK | CLASSIC)))
    one.consumer.subscribe([topic], one)
    polling = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        polling.cancel()
        one.may.set()
        await asyncio.gather(polling, return_exceptions=True)
        await one.consumer.close()


async def test_nobody_pauses_what_it_keeps_while_a_member_is_still_giving_up(kafka, topic, group):
    """The whole time one member holds up the rebalance, the others wait in JoinGroup; they read
    and commit what they keep, and so does the slow one."""
    name = topic(partitions=6)
    async with cluster(kafka.bootstrap, name) as made, AsyncExitStack() as blocks:
        slow = await blocks.enter_async_context(slow_member(made, group, name))
        slow.may.set()
        quick = await blocks.enter_async_context(member(made, group, [name], **CLASSIC))
        await shared([slow, quick], name, 6)
        slow.may.clear()
        third = await blocks.enter_async_context(member(made, group, [name], **CLASSIC))
        await until(lambda: slow.giving_up, "the slow one is to give up", LONG)
        await until(lambda: len(quick.owned) == 2, "the quick one has given up", LONG)
        kept = (slow.owned | quick.owned) - slow.giving_up
        assert len(kept) == 4
        await produce(kafka.bootstrap, name, [Sent(b"it", partition=tp.partition) for tp in kept])
        read = [slow, quick]
        await until(lambda: sum(one.values.count(b"it") for one in read) == 4, within=LONG)
        await quick.consumer.commit()
        assert all(one.consumer.state is State.REBALANCING for one in read)
        assert slow.giving_up and not third.owned
        slow.may.set()
        await shared([*read, third], name, 6)


@pytest.mark.parametrize("leads", ["we", "librdkafka"])
async def test_it_shares_a_group_with_librdkafka_whoever_leads(
    kafka, topic, group, leads: str, monkeypatch
):
    name, plans = topic(partitions=4), list[Plan]()

    def plan(claims: Sequence[Claim], partitions: Mapping[str, int]) -> Plan:
        plans.append(assign(claims, partitions))
        return plans[-1]

    monkeypatch.setattr(classic_member, "assign", plan)
    async with cluster(kafka.bootstrap, name) as made, AsyncExitStack() as blocks:
        us = member(made, group, [name], **CLASSIC)
        them = foreign(kafka.servers, group, [name], **STICKY)
        first, then = (us, them) if leads == "we" else (them, us)
        one = await blocks.enter_async_context(first)
        await shared([one], name, 4)
        had = one.owned
        two = await blocks.enter_async_context(then)
        await shared([one, two], name, 4)
        assert one.owned < had
        assert bool(plans) == (leads == "we")
        await produce(kafka.bootstrap, name, numbered(40, 4))
        await until(lambda: len(one.values) + len(two.values) >= 40, within=LONG)
        assert sorted(one.values + two.values) == sorted(b"%d" % n for n in range(40))
        async with member(made, group, [name], **CLASSIC) as three:
            await shared([one, two, three], name, 4)
        await shared([one, two], name, 4)


async def test_what_a_killed_member_had_goes_to_the_others_after_its_session(kafka, topic, group):
    name = topic(partitions=4)
    async with (
        cluster(kafka.bootstrap, name) as made,
        member(made, group, [name], **CLASSIC) as left,
        process(kafka.servers, group, name, "classic") as killed,
    ):
        await owns(killed, 2)
        await until(lambda: len(left.owned) == 2, within=LONG)
        before = len(left.events)
        killed.send_signal(signal.SIGKILL)
        await shared([left], name, 4)
        await until(lambda: [kind for kind, _ in left.events[before:]] == ["assigned"])


async def test_a_static_member_that_is_killed_and_back_has_its_own_and_nobody_elses_move(
    kafka, topic, group
):
    name = topic(partitions=4)
    async with (
        cluster(kafka.bootstrap, name) as made,
        process(kafka.servers, group, name, "classic", "pod-0") as leader,
    ):
        await owns(leader, 4)
        async with member(made, group, [name], **CLASSIC) as other:
            await owns(leader, 2)
            await until(lambda: len(other.owned) == 2, within=LONG)
            before = list(other.events)
            leader.send_signal(signal.SIGKILL)
            await leader.wait()
            async with process(kafka.servers, group, name, "classic", "pod-0") as again:
                await owns(again, 2)
                assert other.events == before


async def test_a_group_goes_over_to_kip_848_while_its_members_read(kafka, topic, group):
    """One after the other, and back: what Kafka 4 allows by default."""
    name = topic(partitions=4)
    async with cluster(kafka.bootstrap, name) as made, AsyncExitStack() as blocks:
        new = await blocks.enter_async_context(AsyncExitStack())
        async with member(made, group, [name], **CLASSIC) as old:
            await shared([old], name, 4)
            one = await new.enter_async_context(member(made, group, [name], protocol="consumer"))
            await shared([old, one], name, 4)
            await produce(kafka.bootstrap, name, numbered(40, 4))
            await until(lambda: len(old.values) + len(one.values) >= 40, within=LONG)
        await shared([one], name, 4)
        async with member(made, group, [name], **CLASSIC) as back:
            await shared([one, back], name, 4)
            await new.aclose()
            await shared([back], name, 4)
            read = old.values + one.values + back.values
            assert sorted(read) == sorted(b"%d" % n for n in range(40))


async def test_a_group_whose_members_take_another_assignor_says_so(kafka, topic, group):
    name = topic()
    async with cluster(kafka.bootstrap, name) as made:
        eager = AIOKafkaConsumer(name, bootstrap_servers=kafka.servers, group_id=group)
        await eager.start()
        try:
            consumer = GroupConsumer(made, group, **CLASSIC)
            consumer.subscribe([name])
            with pytest.raises(GroupFailed, match="cooperative-sticky"):
                await consumer.poll(LONG)
            await consumer.close()
        finally:
            await eager.stop()
