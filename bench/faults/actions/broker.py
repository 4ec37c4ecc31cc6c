"""Faults of the brokers and of the layout of partitions."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gateway.core.log.record import TopicPartition
from gateway.kafka.local.node import KafkaNode

from ..clients import FaultClient
from ..machine import CLOCK_NODE, SMALL_DISK_NODE
from ..schedule import PlannedFault
from ..views import CLOCKED, LEDGER, PRICES, SOLO, TRIMMED, UNCLEAN
from ..world import World
from .effects import (
    EFFECT_TIMEOUT_S,
    FaultAction,
    FaultNotPossible,
    ask_kafka,
    clients_away,
    poll_effect,
    wait_for_effect,
)
from .reassignments import reassign_partitions

RETURN_TIMEOUT_S = 90.0
RESTART_TIMEOUT_S = 5.0  # a broker that does not end by then is killed
MAX_PARTITIONS = 12
# A broker refuses records whose time is more than an hour ahead of its clock.
BROKER_CLOCK_STEPS_S = (3600, -1800, 36_000)
CLOCK_TOLERANCE_S = 30
LOST_RECORDS = 15  # written to the leader alone, before an unclean election


def _choose_node(world: World, fault: PlannedFault) -> KafkaNode:
    return world.kafka.get_node(1 + fault.choice % 3)


def _describe_partitions(world: World, topics: Iterable[str]) -> dict[TopicPartition, Any]:
    """Return leader, replicas and replicas in sync of each partition, as a live broker has them."""
    with contextlib.suppress(KafkaException):
        found = world.cluster.admin.client.list_topics(timeout=5).topics
        return {
            TopicPartition(name, number): partition
            for name in topics
            if name in found
            for number, partition in found[name].partitions.items()
        }
    return {}


async def _wait_until_led_by_others(world: World, node: KafkaNode) -> int:
    """Wait until a node leads nothing that has other replicas; returns how much there is."""
    topics = (LEDGER, TRIMMED, PRICES)
    count = 0

    def is_led_by_others() -> bool:
        nonlocal count
        found = _describe_partitions(world, topics)
        count = len(found)
        return bool(found) and all(each.leader not in (node.id, -1) for each in found.values())

    await poll_effect(is_led_by_others, f"other leaders than node {node.id}")
    return count


async def _restore_node(world: World, node: KafkaNode) -> None:
    node.unfreeze()
    await asyncio.to_thread(node.start)
    await asyncio.to_thread(world.kafka.wait_ready, RETURN_TIMEOUT_S)
    await asyncio.to_thread(world.cluster.admin.wait_in_sync, RETURN_TIMEOUT_S)


@asynccontextmanager
async def _led_by_others(world: World, node: KafkaNode) -> AsyncIterator[int]:
    """Wait until a node that was failed leads nothing that has other replicas, and restore it.

    Gives how many partitions have other leaders.
    """
    try:
        yield await _wait_until_led_by_others(world, node)
    finally:
        await _restore_node(world, node)


@asynccontextmanager
async def kill_broker(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Kill a broker by SIGKILL, and start it again."""
    node = _choose_node(world, fault)
    await asyncio.to_thread(node.kill)
    async with _led_by_others(world, node) as count:
        yield f"node {node.id} is gone; all {count} partitions with replicas have other leaders"


@asynccontextmanager
async def freeze_broker(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Stop a broker by SIGSTOP, so that its connections stay open and silent."""
    node = _choose_node(world, fault)
    node.freeze()
    async with _led_by_others(world, node) as count:
        yield f"node {node.id} is stopped; all {count} partitions with replicas have other leaders"


@asynccontextmanager
async def shut_broker_down(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Shut a broker down in order (SIGTERM), and start it again at the end."""
    node = _choose_node(world, fault)
    began = time.monotonic()
    await asyncio.to_thread(node.stop, 30)
    async with _led_by_others(world, node) as count:
        took = time.monotonic() - began
        yield f"node {node.id} handed its partitions over and ended in {took:.1f} s; {count} moved"


@asynccontextmanager
async def remove_leader(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Kill the only replica of a partition, which has no leader then."""
    node = _choose_node(world, fault)
    await asyncio.to_thread(node.kill)
    leaderless: list[int] = []

    def has_leaderless() -> bool:
        nonlocal leaderless
        found = _describe_partitions(world, [SOLO])
        leaderless = [tp.partition for tp, each in found.items() if each.leader < 0]
        return bool(leaderless)

    try:
        await poll_effect(has_leaderless, f"no leader of a partition of node {node.id}")
        yield f"partitions {leaderless} of {SOLO} have no leader, node {node.id} is gone"
    finally:
        await _restore_node(world, node)


@asynccontextmanager
async def shrink_isr(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Stop a broker for so long that it is no replica in sync any more."""
    node = _choose_node(world, fault)
    node.freeze()

    def is_out_of_sync() -> bool:
        found = _describe_partitions(world, [LEDGER])
        return bool(found) and all(node.id not in each.isrs for each in found.values())

    try:
        await poll_effect(is_out_of_sync, f"node {node.id} out of sync")
        yield f"node {node.id} is in no ISR of {LEDGER} any more"
    finally:
        await _restore_node(world, node)


@asynccontextmanager
async def fill_disk(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Fill the disk of a broker until it gives up its log directory, and make room again."""
    disk = world.kafka.small_disk
    if disk is None:
        raise FaultNotPossible("a small disk needs the right to mount a tmpfs")
    node = world.kafka.get_node(SMALL_DISK_NODE)
    filler = disk / "filler"
    try:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        free = shutil.disk_usage(disk).free
        count = await _wait_until_led_by_others(world, node)
        state = "runs" if node.is_running else "has ended"
        yield f"{free} bytes are free; node {node.id} {state}, others lead all {count} partitions"
    finally:
        filler.unlink(missing_ok=True)
        if node.is_running:
            await asyncio.to_thread(node.kill)  # one that lost its directory does not take it back
        await _restore_node(world, node)


@asynccontextmanager
async def move_leaders(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Change the preferred leaders of a topic, and elect them."""
    random = Random(fault.choice)
    before = await asyncio.to_thread(_describe_partitions, world, [LEDGER])
    moved = {
        tp.partition: _rotate(each.replicas, random.randint(1, 2)) for tp, each in before.items()
    }
    await asyncio.to_thread(reassign_partitions, world.cluster.bootstrap, LEDGER, moved)

    def has_moved() -> bool:
        with contextlib.suppress(KafkaException):
            world.cluster.admin.elect_leaders(LEDGER, list(moved))
        found = _describe_partitions(world, [LEDGER])
        return bool(found) and all(
            each.leader == moved[tp.partition][0] for tp, each in found.items()
        )

    await poll_effect(has_moved, f"the preferred leaders of {LEDGER}")
    leaders = {tp.partition: nodes.leader for tp, nodes in before.items()}
    changed = sum(leaders[number] != nodes[0] for number, nodes in moved.items())
    yield f"{changed} of {len(moved)} partitions of {LEDGER} have another leader"


def _rotate(nodes: list[int], by: int) -> list[int]:
    return [*nodes[by:], *nodes[:by]]


@asynccontextmanager
async def reassign(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Move the partitions with one replica to other brokers, with their records."""
    before = await asyncio.to_thread(_describe_partitions, world, [SOLO])
    by = 1 + fault.choice % 2
    moved = {tp.partition: [1 + (each.replicas[0] - 1 + by) % 3] for tp, each in before.items()}
    await asyncio.to_thread(reassign_partitions, world.cluster.bootstrap, SOLO, moved)

    def has_moved() -> bool:
        found = _describe_partitions(world, [SOLO])
        return bool(found) and all(
            list(each.replicas) == moved[tp.partition] and each.leader == moved[tp.partition][0]
            for tp, each in found.items()
        )

    await poll_effect(has_moved, f"the new replicas of {SOLO}")
    nodes = {number: nodes[0] for number, nodes in moved.items()}
    yield f"the partitions of {SOLO} are at nodes {nodes}"


@asynccontextmanager
async def add_partition(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Add a partition, which is written to at once."""
    count = len(world.partitions[LEDGER]) + 1
    if count > MAX_PARTITIONS:
        raise FaultNotPossible(f"{LEDGER} has {MAX_PARTITIONS} partitions already")
    await ask_kafka(world.cluster.admin.add_partitions, LEDGER, count)
    world.add_partition(TopicPartition(LEDGER, count - 1))
    yield f"{LEDGER} has {count} partitions"


@asynccontextmanager
async def elect_unclean_leader(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Elect a follower that lacks acknowledged records, which are lost then.

    Half of the clients have them already; the others come back after the election.
    """
    tps = world.partitions[UNCLEAN]
    tp = tps[fault.choice % len(tps)]
    writer = world.writers[UNCLEAN]
    await writer.stop()
    await world.read_topic(UNCLEAN)
    placed = (await asyncio.to_thread(_describe_partitions, world, [UNCLEAN]))[tp]
    leader = world.kafka.get_node(placed.leader)
    (follower_id,) = set(placed.replicas) - {placed.leader}
    follower = world.kafka.get_node(follower_id)
    clients = world.list_clients(UNCLEAN)
    cut_at = await ask_kafka(world.cluster.admin.get_high_watermark, UNCLEAN, tp.partition)

    def sees(leader_id: int, isr: list[int] | None = None, *, elects: bool = False) -> bool:
        found = _describe_partitions(world, [UNCLEAN]).get(tp)
        if found is not None and found.leader == leader_id and isr in (None, found.isrs):
            return True
        if elects:
            with contextlib.suppress(KafkaException):
                world.cluster.admin.elect_leaders(UNCLEAN, [tp.partition], is_unclean=True)
        return False

    has_written = is_elected = False
    await asyncio.to_thread(follower.kill)
    try:
        await poll_effect(lambda: sees(leader.id, [leader.id]), f"an ISR of node {leader.id} alone")
        writer.start(is_writing=False)
        writer.write_records(tp, LOST_RECORDS)
        await writer.stop()
        has_written = True
        await _wait_for_offset(clients[::2], tp, cut_at + LOST_RECORDS - 1)
        async with clients_away(clients[1::2]):
            await asyncio.to_thread(leader.kill)
            await asyncio.to_thread(follower.start)
            await poll_effect(lambda: sees(follower.id, elects=True), "the unclean election")
            is_elected = True
            world.oracle.mark_truncated(tp, cut_at)
            writer.start()
        yield (
            f"{UNCLEAN}-{tp.partition} is led by node {follower.id}, which lacks "
            f"{LOST_RECORDS} acknowledged records from {cut_at} on"
        )
    finally:
        for node in (follower, leader):
            await asyncio.to_thread(node.start)
        await _restore_node(world, leader)
        # It may have been elected after it was waited for.
        end = await ask_kafka(world.cluster.admin.get_high_watermark, UNCLEAN, tp.partition)
        if has_written and not is_elected and end < cut_at + LOST_RECORDS:
            world.oracle.mark_truncated(tp, cut_at)
        if not writer.is_running:
            writer.start()


async def _wait_for_offset(clients: Iterable[FaultClient], tp: TopicPartition, offset: int) -> None:
    def has_come(client: FaultClient) -> bool:
        latest = client.log.latest.get(tp)
        return latest is not None and (latest.offset or 0) >= offset

    await wait_for_effect(lambda: any(map(has_come, clients)), f"no client has {tp} up to {offset}")


async def _read_clock(producer: Producer) -> float:
    """Return how far the clock of the broker with its own clock is ahead, in seconds."""
    times_ms: list[int] = []

    def note_time(error: KafkaError | None, message: Message) -> None:
        if error is None:
            times_ms.append(message.timestamp()[1])

    producer.produce(CLOCKED, b"", on_delivery=note_time)
    await asyncio.to_thread(producer.flush, EFFECT_TIMEOUT_S)
    return times_ms[0] / 1000 - time.time() if times_ms else 0.0


@asynccontextmanager
async def step_broker_clock(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Set the wall clock of a broker ahead or back, and right again; then restart the broker.

    Without a restart, Kafka 4.3 is not healed until the clock is again where it was: a coordinator
    computes no assignment (KAFKA-20266), and after a change of the controller the broker may send
    no heartbeats.
    """
    clock = world.kafka.clock
    if clock is None:
        raise FaultNotPossible("the clock needs libfaketime: apt-get install libfaketime")
    step_s = BROKER_CLOCK_STEPS_S[fault.choice % len(BROKER_CLOCK_STEPS_S)]
    producer = Producer({"bootstrap.servers": world.servers, "log_level": 0})
    measured_s = 0.0
    clock.step(step_s)
    try:
        deadline = time.monotonic() + EFFECT_TIMEOUT_S
        while abs(measured_s - step_s) > CLOCK_TOLERANCE_S:
            assert time.monotonic() < deadline, f"its clock is {measured_s:+.0f} s off"
            measured_s = await _read_clock(producer)
        yield f"the clock of node {CLOCK_NODE} is {measured_s:+.0f} s off"
    finally:
        clock.step(0)
        node = world.kafka.get_node(CLOCK_NODE)
        await asyncio.to_thread(node.stop, RESTART_TIMEOUT_S)
        await _restore_node(world, node)


BROKER_FAULTS: Mapping[str, FaultAction] = {
    "broker-killed": kill_broker,
    "broker-frozen": freeze_broker,
    "broker-restarted": shut_broker_down,
    "broker-shut-down": shut_broker_down,
    "no-leader": remove_leader,
    "isr-shrunk": shrink_isr,
    "disk-full": fill_disk,
    "leader-moved": move_leaders,
    "partitions-reassigned": reassign,
    "partitions-added": add_partition,
    "unclean-election": elect_unclean_leader,
    "broker-clock-stepped": step_broker_clock,
}
