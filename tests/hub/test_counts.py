"""What is counted is what connections were given: against what outlets have."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence

import pytest
from support.one_client import TP, client_of, write
from support.outlet import Outlet
from support.until import until

from gateway.core.client.slow_client import SlowClient
from gateway.core.client.subscription import Subscription
from gateway.core.log.position import Place
from gateway.core.log.record import Gap, Reason
from gateway.hub.fanout import broadcaster as pump
from gateway.hub.fanout.client import LEFT, Client
from gateway.hub.fanout.distances import Distances
from gateway.hub.wires.sse import Sse
from gateway.telemetry.traffic import CATCHING_UP, SLOW, UNPAID, Traffic


def counted(
    outlets: Iterable[Outlet], traffic: Traffic, beside: Client | None = None, **options: object
) -> list[Client]:
    clients: list[Client] = []
    for outlet in outlets:
        first = beside or (clients[0] if clients else None)
        client = client_of(beside=first, **options)  # type: ignore[arg-type]
        client.subscription.traffic = traffic
        client.attach(outlet)
        outlet.client = client
        clients.append(client)
    return clients


def received(outlets: Sequence[Outlet]) -> tuple[int, int]:
    """Records and bytes."""
    every = [piece for outlet in outlets for piece in outlet.got]
    return sum(len(outlet.values) for outlet in outlets), sum(map(len, every))


async def turns(count: int = 6) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(8))
async def test_records_and_bytes_are_those_that_were_given_whatever_happens(
    seed: int, monkeypatch: pytest.MonkeyPatch
):
    """Rounds in slices, riders of two routes on one channel, some full and some drained, some
    falling out of the ring."""
    monkeypatch.setattr(pump, "STRIDE", 2)
    chance = random.Random(seed)
    routes = [Traffic("/a", "sse"), Traffic("/b", "sse")]
    outlets = [[Outlet() for _ in range(5)] for _ in routes]
    ring = chance.choice([1 << 20, 2000])
    first = counted(outlets[0], routes[0], ring=ring)[0]
    counted(outlets[1], routes[1], first)
    value = 0
    for _ in range(120):
        for _ in range(chance.randrange(3)):
            count = chance.randint(1, 4)
            write(first, *(b"%d" % (value + n) for n in range(count)))
            value += count
        some = chance.choice(chance.choice(outlets))
        if chance.random() < 0.4:
            some.room = chance.choice([float("inf"), 0.0, 100.0])
            if not some.full:
                some.client.drained()
        await turns(chance.randrange(4))
    every = [outlet for some in outlets for outlet in some]
    for outlet in every:
        outlet.room = float("inf")
        outlet.client.drained()
    await until(lambda: all(outlet.values == list(range(value)) for outlet in every))
    for traffic, some in zip(routes, outlets, strict=True):
        assert (traffic.records, traffic.bytes) == received(some)


async def test_what_a_herd_is_read_is_counted_once_for_each_of_it():
    traffic, missed = Traffic("/a", "sse"), 300
    first = client_of()
    first.attach(Outlet())
    for value in range(missed):
        write(first, b"%d" % value)
    outlets = [Outlet() for _ in range(20)]
    for outlet in outlets:
        subscription = Subscription(
            first.subscription.channel, {TP: Place(100, 0, 0)}, traffic=traffic
        )
        client = Client(first._hub, first._shared, subscription, Sse(), heartbeat=60.0, deadline=0)
        client.attach(outlet)
        outlet.client = client
    await until(lambda: all(outlet.values == list(range(100, missed)) for outlet in outlets))
    assert (traffic.records, traffic.bytes) == received(outlets)
    assert traffic.untimed == 20 * (missed - 100), "read alone: no latency of what is live"
    assert 0 < traffic.read["cache"] < traffic.untimed, "read for all, by one"


async def test_gaps_are_counted_for_everyone_who_is_told():
    traffic, outlets = Traffic(), [Outlet(), Outlet(), Outlet()]
    (first, *_) = counted(outlets, traffic)
    await turns()
    write(first, b"0")
    gap = Gap(TP, 1, 50, 0, Reason.RETENTION)
    first._shared.tail.logs[TP].append(gap, 0.0)
    first._shared.publish([gap], 0)
    channel = first.subscription.channel
    channel.publish(channel.tail.turn([], 0))
    channel.notify()
    write(first, b"50")
    await until(lambda: all(outlet.values == [0, 50] for outlet in outlets))
    told = sum(b"".join(outlet.got).count(b"event: gap") for outlet in outlets)
    assert traffic.gaps.total() == told
    assert traffic.records == 6


@pytest.mark.parametrize("slow", SlowClient)
async def test_a_fall_is_counted_by_what_is_done_about_it(slow: SlowClient):
    traffic, outlets = Traffic(), [Outlet(), Outlet()]
    clients = counted(outlets, traffic, ring=1000, slow=slow)
    await turns()
    outlets[1].room = 0
    write(clients[0], b"0")
    await turns()
    assert traffic.stalls == 1
    for value in range(1, 50):
        write(clients[0], b"%d" % value)
        await turns()
    outlets[1].room = float("inf")
    clients[1].drained()
    if slow is SlowClient.DISCONNECT:
        await until(lambda: outlets[1].finished)
        assert traffic.ended == {"slow": 1}
    else:
        await until(lambda: clients[1]._fan is not None)
    assert traffic.falls == {slow: 1}
    if slow is SlowClient.SKIP:
        assert b"".join(outlets[1].got).count(b"event: gap") == 1
        assert traffic.gaps == {"skipped": 1}


async def test_ends_are_counted_by_their_reason_and_who_goes_without_one_has_left():
    traffic, outlets = Traffic(), [Outlet() for _ in range(3)]
    clients = counted(outlets, traffic)
    traffic.opened = 3
    await turns()
    clients[0].end("drain")
    await until(lambda: outlets[0].finished)
    clients[1].close()
    clients[1].close()
    assert (traffic.ended, traffic.open) == ({"drain": 1, LEFT: 1}, 1)


async def test_who_is_pulled_is_counted_as_who_is_pushed():
    traffic, client = Traffic(), client_of()
    client.subscription.traffic = traffic
    stream = client.stream()
    got = [await anext(stream)]
    for value in range(5):
        write(client, b"%d" % value)
        got.append(await anext(stream))
    client.end("drain")
    got += [piece async for piece in stream]
    assert (traffic.records, traffic.bytes) == (5, sum(map(len, got)))
    assert traffic.ended == {"drain": 1}


async def test_distances_are_offsets_to_where_the_channel_stands_by_the_reason():
    traffic, outlets = Traffic("/a", "sse"), [Outlet(), Outlet(), Outlet()]
    riding, slow, short = counted(outlets, traffic)
    await turns()
    outlets[1].room = 0
    write(riding, b"0")
    await turns()
    assert slow.state == SLOW and riding.state is None
    short._fan.drop(short)  # type: ignore[union-attr]
    short.subscription.credit = 0
    for value in range(1, 11):
        write(riding, b"%d" % value)
        await turns()
    outlets[1].client.subscription.channel.evict(1 << 30)  # it falls out of the ring
    assert (short.state, slow.state) == (UNPAID, SLOW)
    distances = Distances()
    for client in (riding, slow, short):
        if client.state is not None:
            distances.look(client)
    behind = distances.behind
    assert behind.records == {("/a", SLOW): 10, ("/a", UNPAID): 10}
    assert behind.most == behind.records
    outlets[1].room = float("inf")
    slow.drained()
    await until(lambda: slow.state is None)


async def test_who_comes_from_far_is_catching_up():
    first = client_of()
    first.attach(Outlet())
    for value in range(10):
        write(first, b"%d" % value)
    subscription = Subscription(
        first.subscription.channel, {TP: Place(3, 0, 0)}, traffic=Traffic("/a", "sse")
    )
    client = Client(first._hub, first._shared, subscription, Sse(), heartbeat=60.0, deadline=0)
    assert client.state == CATCHING_UP
    distances = Distances()
    distances.look(client)
    assert distances.behind.records == {("/a", CATCHING_UP): 7}
