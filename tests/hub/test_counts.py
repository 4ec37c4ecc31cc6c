"""What is counted is what connections were given: against what outlets have."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from support.outlet import FakeOutlet
from support.single_client import (
    TP,
    FakeHub,
    create_client,
    drain_outlet,
    leave_audience,
    run_loop_turns,
    write_records,
)
from support.waiting import wait_until

from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import EndReason, SlowClientPolicy
from gateway.core.log.record import Gap, GapReason, PartitionPosition
from gateway.hub.fanout.client import Client
from gateway.hub.fanout.lag_scan import LagScan
from gateway.telemetry.traffic import CATCHING_UP, NO_CREDIT, SLOW, StreamCounts


def attach_counted(
    outlets: Iterable[FakeOutlet],
    traffic: StreamCounts,
    beside: Client | None = None,
    **options: object,
) -> list[Client]:
    clients: list[Client] = []
    for outlet in outlets:
        first = beside or (clients[0] if clients else None)
        client = create_client(sibling=first, traffic=traffic, **options)  # type: ignore[arg-type]
        client.attach(outlet)
        outlet.client = client
        clients.append(client)
    return clients


def count_received(outlets: Sequence[FakeOutlet]) -> tuple[int, int]:
    """Records and bytes."""
    every = [piece for outlet in outlets for piece in outlet.chunks]
    return sum(len(outlet.values) for outlet in outlets), sum(map(len, every))


@pytest.mark.parametrize("seed", range(8))
async def test_records_and_bytes_are_those_that_were_given_whatever_happens(seed: int):
    """Rounds in slices, riders of two routes on one channel, some full and some drained, some
    falling out of the ring."""
    chance = random.Random(seed)
    routes = [StreamCounts("/a", "sse"), StreamCounts("/b", "sse")]
    outlets = [[FakeOutlet() for _ in range(5)] for _ in routes]
    ring = chance.choice([1 << 20, 2000])
    hub = FakeHub(writes_per_clock_check=2)
    first = attach_counted(outlets[0], routes[0], max_ring_bytes=ring, hub=hub)[0]
    attach_counted(outlets[1], routes[1], first)
    value = 0
    for _ in range(120):
        for _ in range(chance.randrange(3)):
            count = chance.randint(1, 4)
            write_records(first, *(b"%d" % (value + n) for n in range(count)))
            value += count
        some = chance.choice(chance.choice(outlets))
        if chance.random() < 0.4:
            some.capacity = chance.choice([float("inf"), 0.0, 100.0])
            if not some.full:
                drain_outlet(some.client)
        await run_loop_turns(chance.randrange(4))
    every = [outlet for some in outlets for outlet in some]
    for outlet in every:
        outlet.capacity = float("inf")
        drain_outlet(outlet.client)
    await wait_until(lambda: all(outlet.values == list(range(value)) for outlet in every))
    for traffic, some in zip(routes, outlets, strict=True):
        assert (traffic.records, traffic.bytes) == count_received(some)


async def test_what_a_herd_is_read_is_counted_once_for_each_of_it():
    traffic, missed = StreamCounts("/a", "sse"), 300
    first = create_client()
    first.attach(FakeOutlet())
    for value in range(missed):
        write_records(first, b"%d" % value)
    outlets = [FakeOutlet() for _ in range(20)]
    for outlet in outlets:
        subscription = Subscription(
            first.subscription.channel, {TP: PartitionPosition(100, 0, 0)}, traffic=traffic
        )
        client = create_client(sibling=first, subscription=subscription)
        client.attach(outlet)
        outlet.client = client
    await wait_until(lambda: all(outlet.values == list(range(100, missed)) for outlet in outlets))
    assert (traffic.records, traffic.bytes) == count_received(outlets)
    assert traffic.untimed == 20 * (missed - 100), "read alone: no latency of what is live"
    assert 0 < traffic.catch_up_records["cache"] < traffic.untimed, "read for all, by one"


async def test_gaps_are_counted_for_everyone_who_is_told():
    traffic, outlets = StreamCounts(), [FakeOutlet(), FakeOutlet(), FakeOutlet()]
    (first, *_) = attach_counted(outlets, traffic)
    await run_loop_turns()
    write_records(first, b"0")
    gap = Gap(TP, 1, 50, 0, GapReason.RETENTION)
    first.shared_tail.tail.logs[TP].append(gap, 0.0)
    first.shared_tail.publish([gap], 0)
    channel = first.subscription.channel
    channel.publish(channel.tail.apply_entries([], 0))
    channel.notify_followers()
    write_records(first, b"50")
    await wait_until(lambda: all(outlet.values == [0, 50] for outlet in outlets))
    told = sum(b"".join(outlet.chunks).count(b"event: gap") for outlet in outlets)
    assert traffic.gaps.total() == told
    assert traffic.records == 6


@pytest.mark.parametrize("slow", SlowClientPolicy)
async def test_a_fall_is_counted_by_what_is_done_about_it(slow: SlowClientPolicy):
    traffic, outlets = StreamCounts(), [FakeOutlet(), FakeOutlet()]
    clients = attach_counted(outlets, traffic, max_ring_bytes=1000, slow_policy=slow)
    await run_loop_turns()
    outlets[1].capacity = 0
    write_records(clients[0], b"0")
    await run_loop_turns()
    assert traffic.stalls == 1
    for value in range(1, 50):
        write_records(clients[0], b"%d" % value)
        await run_loop_turns()
    outlets[1].capacity = float("inf")
    drain_outlet(clients[1])
    if slow is SlowClientPolicy.DISCONNECT:
        await wait_until(lambda: outlets[1].is_finished)
        assert traffic.ended == {"slow": 1}
    else:
        await wait_until(lambda: clients[1].state is None)
    assert traffic.falls == {slow: 1}
    if slow is SlowClientPolicy.SKIP:
        assert b"".join(outlets[1].chunks).count(b"event: gap") == 1
        assert traffic.gaps == {"skipped": 1}


async def test_ends_are_counted_by_their_reason_and_who_goes_without_one_has_left():
    traffic, outlets = StreamCounts(), [FakeOutlet() for _ in range(3)]
    clients = attach_counted(outlets, traffic)
    traffic.opened = 3
    await run_loop_turns()
    clients[0].end(EndReason.DRAIN)
    await wait_until(lambda: outlets[0].is_finished)
    clients[1].close()
    clients[1].close()
    assert (traffic.ended, traffic.open) == ({"drain": 1, EndReason.LEFT: 1}, 1)


async def test_who_is_pulled_is_counted_as_who_is_pushed():
    traffic = StreamCounts()
    client = create_client(traffic=traffic)
    stream = client.pull()
    got = [await anext(stream)]
    for value in range(5):
        write_records(client, b"%d" % value)
        got.append(await anext(stream))
    client.end(EndReason.DRAIN)
    got += [piece async for piece in stream]
    assert (traffic.records, traffic.bytes) == (5, sum(map(len, got)))
    assert traffic.ended == {"drain": 1}


async def test_distances_are_offsets_to_where_the_channel_stands_by_the_reason():
    traffic, outlets = StreamCounts("/a", "sse"), [FakeOutlet(), FakeOutlet(), FakeOutlet()]
    riding, slow, short = attach_counted(outlets, traffic)
    await run_loop_turns()
    outlets[1].capacity = 0
    write_records(riding, b"0")
    await run_loop_turns()
    assert slow.state == SLOW and riding.state is None
    leave_audience(short)
    short.subscription.limit_credit(0)
    for value in range(1, 11):
        write_records(riding, b"%d" % value)
        await run_loop_turns()
    outlets[1].client.subscription.channel.evict_before(1 << 30)  # it falls out of the ring
    assert (short.state, slow.state) == (NO_CREDIT, SLOW)
    distances = LagScan()
    for client in (riding, slow, short):
        if client.state is not None:
            distances.add_client(client)
    behind = distances.behind
    assert behind.records == {("/a", SLOW): 10, ("/a", NO_CREDIT): 10}
    assert behind.max_records == behind.records
    outlets[1].capacity = float("inf")
    drain_outlet(slow)
    await wait_until(lambda: slow.state is None)


async def test_who_comes_from_far_is_catching_up():
    first = create_client()
    first.attach(FakeOutlet())
    for value in range(10):
        write_records(first, b"%d" % value)
    subscription = Subscription(
        first.subscription.channel,
        {TP: PartitionPosition(3, 0, 0)},
        traffic=StreamCounts("/a", "sse"),
    )
    client = create_client(sibling=first, subscription=subscription)
    assert client.state == CATCHING_UP
    distances = LagScan()
    distances.add_client(client)
    assert distances.behind.records == {("/a", CATCHING_UP): 7}
