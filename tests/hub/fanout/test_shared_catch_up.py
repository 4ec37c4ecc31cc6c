"""Clients that come back from the same place."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Sequence

import pytest
from support.outlet import FakeOutlet
from support.single_client import TP, FakeHub, create_client, drain_outlet, get_hub, write_records
from support.waiting import wait_until

from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import EndReason, SubscriptionTerms
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import (
    NO_EPOCH,
    UNVERIFIED_LINEAGE,
    PartitionPosition,
    TopicPartition,
)
from gateway.core.token.resume_token import parse_token
from gateway.hub.fanout.client import Client
from gateway.hub.fanout.shared_catch_up import JOIN_WINDOW_S, SharedCatchUp
from gateway.hub.reads.position_resolver import StreamStart
from gateway.hub.wires.sse import SseWire
from gateway.hub.wires.wire import Wire
from gateway.hub.wires.wrapping import GzipWire

MISSED = 300


def build_late_client(first: Client, at: int, wire: Wire | None = None) -> Client:
    """One who comes back with this offset; `first` is of the same channel."""
    subscription = Subscription(first.subscription.channel, {TP: PartitionPosition(at, 0, 0)})
    return create_client(wire, sibling=first, subscription=subscription)


async def build_first_client(wire: Wire | None = None, **options: object) -> Client:
    """A client that rides, of a topic that has had MISSED records."""
    first = create_client(wire, **options)  # type: ignore[arg-type]
    first.attach(FakeOutlet())
    for value in range(MISSED):
        write_records(first, b"%d" % value)
        if value % 50 == 0:
            await asyncio.sleep(0)
    return first


def attach_late_clients(
    first: Client, outlets: Sequence[FakeOutlet], at: int, wire: Wire | None = None
) -> None:
    for outlet in outlets:
        outlet.client = build_late_client(first, at, wire)
        outlet.client.attach(outlet)


def find_shared(client: Client) -> set[SharedCatchUp]:
    """Those of a client's channel."""
    followers = client.subscription.channel.followers
    return {each for each in followers if isinstance(each, SharedCatchUp)}


def have_all_values(outlets: Sequence[FakeOutlet], at: int, end: int) -> bool:
    return all(outlet.values == list(range(at, end)) for outlet in outlets)


async def test_who_has_a_partition_from_the_channel_alone_does_not_join():
    """The leader stood at the head of when it was created, each client at that of when it
    subscribed: records between them, of a topic that the token does not have, came to one only."""
    first = await build_first_client()
    log = PartitionLog(TopicPartition("orders", 1), 1 << 20, 60.0)
    log.open(0, 0)
    first.subscription.channel.tail.add_partition(log, PartitionPosition(0, 0, log.lineage))
    attach_late_clients(first, [FakeOutlet() for _ in range(3)], 100)
    assert not find_shared(first)


@pytest.mark.parametrize(("offset", "is_shared"), [(None, False), (5, True)])
async def test_starts_in_one_second_are_shared_only_once_they_are_found(
    offset: int | None, is_shared: bool
):
    """Where a pending partition starts was looked for by the start of one of them: another, which
    asked for 0.8 s more, lost these records without a gap."""
    first = create_client()
    position = {TP: PartitionPosition(offset, NO_EPOCH, UNVERIFIED_LINEAGE)}
    clients = []
    for origin in (5900, 5900, 5100):
        subscription = Subscription(
            first.subscription.channel, position, SubscriptionTerms(resolve_since=5)
        )
        start = StreamStart(origin=origin)
        clients.append(create_client(sibling=first, subscription=subscription, start=start))
        clients[-1].attach(FakeOutlet())
    shared = [client.shared_catch_up is not None for client in clients]
    for client in (first, *clients):
        client.close()
    get_hub(first).shared_catch_ups.close()
    assert shared == [False, True, is_shared]


async def test_they_are_read_for_once_and_ride_from_where_the_leader_came_to(monkeypatch):
    first = await build_first_client()
    encoder, heads = first.subscription.channel.encoder, 0
    head = encoder.encode_entry

    def count_entry(entry: object) -> bytes | None:
        nonlocal heads
        heads += 1
        return head(entry)  # type: ignore[arg-type]

    monkeypatch.setattr(encoder, "encode_entry", count_entry)
    outlets = [FakeOutlet() for _ in range(50)]
    attach_late_clients(first, outlets, 100)
    await wait_until(lambda: have_all_values(outlets, 100, MISSED))
    assert heads <= 2 * (MISSED - 100), "by the first, who could not know, and by a leader"
    for value in range(MISSED, MISSED + 10):
        write_records(first, b"%d" % value)
        await asyncio.sleep(0)
    await wait_until(lambda: have_all_values(outlets, 100, MISSED + 10))
    await wait_until(lambda: all(outlet.client.state is None for outlet in outlets))
    assert len({outlet.chunks[-1] for outlet in outlets}) == 1


async def test_those_of_another_place_are_not_of_the_herd():
    first = await build_first_client()
    some, others = [FakeOutlet() for _ in range(5)], [FakeOutlet() for _ in range(5)]
    attach_late_clients(first, some, 100)
    attach_late_clients(first, others, 99)
    await wait_until(
        lambda: have_all_values(some, 100, MISSED) and have_all_values(others, 99, MISSED)
    )


async def test_what_is_published_meanwhile_comes_once_and_in_order():
    """Pieces are small, and records come faster than they are taken at first."""
    first = await build_first_client(hub=FakeHub(max_take_bytes=200))
    outlets = [FakeOutlet() for _ in range(9)]
    attach_late_clients(first, outlets, 0)
    for value in range(MISSED, 2 * MISSED):
        write_records(first, b"%d" % value)
        await asyncio.sleep(0)
    await wait_until(lambda: have_all_values(outlets, 0, 2 * MISSED))


async def test_one_that_takes_nothing_holds_up_nobody_and_loses_nothing():
    first = await build_first_client(hub=FakeHub(max_take_bytes=500, max_piece_bytes=2000))
    outlets, stuck = [FakeOutlet() for _ in range(5)], FakeOutlet(capacity=300)
    attach_late_clients(first, [*outlets, stuck], 0)
    herds, now = get_hub(first).shared_catch_ups, asyncio.get_running_loop().time()

    def is_done() -> bool:
        nonlocal now
        now += 1.0
        herds.maintain(now)
        return have_all_values(outlets, 0, MISSED)

    await wait_until(is_done)
    assert 0 < len(stuck.values) < MISSED
    stuck.capacity = float("inf")
    drain_outlet(stuck.client)
    await wait_until(lambda: have_all_values([stuck], 0, MISSED))
    write_records(first, b"%d" % MISSED)
    await wait_until(lambda: have_all_values([*outlets, stuck], 0, MISSED + 1))


async def test_one_that_is_let_go_amid_the_pieces_reads_on_behind_what_it_was_sent():
    first = await build_first_client(hub=FakeHub(max_take_bytes=500))
    outlets = [FakeOutlet(), FakeOutlet(capacity=300), slow := FakeOutlet(capacity=1500)]
    attach_late_clients(first, outlets, 0)
    await wait_until(lambda: have_all_values(outlets[:1], 0, MISSED))
    (shared,) = find_shared(first)
    shared.release_stalled([slow.client])
    slow.capacity = float("inf")
    drain_outlet(slow.client)
    await wait_until(lambda: len(slow.values) >= MISSED)
    assert slow.values == list(range(MISSED))


async def test_each_member_stands_behind_what_it_was_sent():
    """A member does not follow the channel, so its own subscription does not know where it is."""
    first = await build_first_client(max_ring_bytes=200, hub=FakeHub(max_take_bytes=500))
    outlets = [FakeOutlet(), FakeOutlet(), FakeOutlet(capacity=600), FakeOutlet(capacity=1500)]
    attach_late_clients(first, outlets, 100)

    def get_offsets() -> list[int | None]:
        return [outlet.client.get_position().position[TP].offset for outlet in outlets]

    while not have_all_values(outlets[:2], 100, MISSED):
        assert get_offsets() == [100 + len(outlet.values) for outlet in outlets]
        await asyncio.sleep(0)
    for value in range(MISSED, MISSED + 50):  # the ring drops what followed the members' join
        write_records(first, b"%d" % value)
        await asyncio.sleep(0)
    await wait_until(lambda: have_all_values(outlets[:2], 100, MISSED + 50))
    assert get_offsets() == [100 + len(outlet.values) for outlet in outlets]
    stuck = outlets[2:]
    assert all(0 < len(outlet.values) < MISSED - 100 for outlet in stuck)
    assert all(outlet.client.shared_catch_up is not None for outlet in stuck)


async def test_who_is_told_to_end_ends_where_it_stands():
    first = await build_first_client(hub=FakeHub(max_take_bytes=500))
    outlets = [FakeOutlet() for _ in range(4)]
    attach_late_clients(first, outlets, 0)
    await wait_until(lambda: all(len(outlet.values) > 20 for outlet in outlets), interval_s=0)
    for outlet in outlets:
        outlet.client.end(EndReason.DRAIN)
    await wait_until(lambda: all(outlet.is_finished for outlet in outlets))
    for outlet in outlets:
        *_, position = re.findall(rb"^id: (\S+)$", b"".join(outlet.chunks), re.MULTILINE)
        (topic,) = parse_token(position.decode()).topics
        assert topic.offsets == [len(outlet.values)]
        assert outlet.values == list(range(len(outlet.values)))
        assert len(outlet.values) < MISSED


async def test_who_leaves_is_not_waited_for():
    first = await build_first_client(hub=FakeHub(max_take_bytes=500))
    outlets = [FakeOutlet() for _ in range(6)]
    attach_late_clients(first, outlets, 0)
    await asyncio.sleep(0)
    for outlet in outlets[::2]:
        outlet.client.close()
    await wait_until(lambda: have_all_values(outlets[1::2], 0, MISSED))


async def test_a_herd_that_nobody_needs_is_let_go():
    first = await build_first_client()
    outlets = [FakeOutlet() for _ in range(4)]
    attach_late_clients(first, outlets, 0)
    await wait_until(lambda: have_all_values(outlets, 0, MISSED))
    herds, channel = get_hub(first).shared_catch_ups, first.subscription.channel
    herds.maintain(asyncio.get_running_loop().time() + 10)
    assert herds.is_idle and herds.size == 0
    assert set(channel.followers) == {one.client.subscription for one in outlets} | {
        first.subscription
    }


async def test_one_that_is_followed_by_another_is_let_go_too():
    """Its first pieces are gone, so who comes then from the same place is of a new one."""
    first = await build_first_client(hub=FakeHub(max_take_bytes=500, max_piece_bytes=1000))
    channel, herds = first.subscription.channel, get_hub(first).shared_catch_ups
    outlets = [FakeOutlet() for _ in range(3)]
    attach_late_clients(first, outlets, 0)
    await wait_until(lambda: have_all_values(outlets, 0, MISSED))
    (old,) = find_shared(first)
    assert not old.can_join
    more = [FakeOutlet() for _ in range(3)]
    attach_late_clients(first, more, 0)
    await wait_until(lambda: have_all_values(more, 0, MISSED))
    assert len(find_shared(first)) == 2
    for outlet in (*outlets, *more):
        outlet.client.close()
    herds.maintain(asyncio.get_running_loop().time() + 2 * JOIN_WINDOW_S)
    assert herds.is_idle and herds.size == 0
    assert set(channel.followers) == {first.subscription}


async def test_one_whose_members_are_slower_than_those_of_the_next_is_let_go():
    """The maintenance failed if the newer of two of the same position ended first. It was not tried
    again: from then on nothing was closed, and nothing bounded the memory."""
    first = await build_first_client(hub=FakeHub(max_take_bytes=500, max_piece_bytes=1000))
    channel, herds = first.subscription.channel, get_hub(first).shared_catch_ups
    generations = [[FakeOutlet() for _ in range(3)] for _ in range(2)]
    older: SharedCatchUp | None = None
    for outlets in generations:
        attach_late_clients(first, outlets, 0)
        await wait_until(lambda outlets=outlets: have_all_values(outlets, 0, MISSED))
        older = older or next(iter(find_shared(first)))
    assert older is not None
    (newer,) = find_shared(first) - {older}
    now = asyncio.get_running_loop().time()
    older.add_member(slow := build_late_client(first, 0), now + 60)
    for outlet in generations[1]:
        outlet.client.close()
    herds.maintain(now + 30)
    assert find_shared(first) == {older}
    older.remove_member(slow)
    herds.maintain(now + 120)
    assert herds.is_idle and herds.size == 0
    assert older not in channel.followers and newer not in channel.followers


async def test_compressed_streams_of_a_herd_end_with_the_right_sum():
    wire = GzipWire(SseWire())
    first = await build_first_client(wire, hub=FakeHub(max_take_bytes=500))
    outlets = [FakeOutlet() for _ in range(4)]
    attach_late_clients(first, outlets, 10, wire)
    riding = [first.outlet, *outlets]
    for value in range(MISSED, MISSED + 5):
        write_records(first, b"%d" % value)
        await asyncio.sleep(0)
    await wait_until(lambda: all(outlet.client.state is None for outlet in outlets))
    write_records(first, b"%d" % (MISSED + 5))
    for outlet in outlets:
        outlet.client.end(EndReason.DRAIN)
    first.end(EndReason.DRAIN)
    await wait_until(lambda: all(outlet.is_finished for outlet in riding))  # type: ignore[union-attr]
    for outlet in outlets:
        outlet.chunks = [gzip.decompress(b"".join(outlet.chunks))]  # checks the sum
    assert all(set(range(10, MISSED + 5)) <= set(outlet.values) for outlet in outlets)


async def test_a_shared_catch_up_takes_the_turns_of_all_its_members():
    """It took those of its first member, whose other streams made the crowd wait for 18 s."""
    first = await build_first_client(hub=FakeHub(max_take_bytes=50))
    clients = [build_late_client(first, 0) for _ in range(12)]
    for client, key in zip(clients, ["first", "other", "third"] * 4, strict=True):
        client.subscription.client_key = key
        client.attach(FakeOutlet())
    (shared,) = find_shared(first)
    shared.push()
    assert shared.subscription.client_key == {"first", "other", "third"}
    for client in clients:
        client.close()
    shared.push()  # it reads on for those who may still join
    assert shared.subscription.client_key == {"first", "other", "third"}
