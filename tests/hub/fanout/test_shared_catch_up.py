"""Clients that come back from the same place."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Sequence

import pytest
from support.one_client import TP, client_of, write
from support.outlet import Outlet
from support.until import until

from gateway.core.client.subscription import Subscription
from gateway.core.log.position import Place
from gateway.core.token.resume_token import decode
from gateway.hub.fanout import client as clients
from gateway.hub.fanout import shared_catch_up as herd
from gateway.hub.fanout.client import Client
from gateway.hub.wires.gzip import Gzip
from gateway.hub.wires.sse import Sse
from gateway.hub.wires.wire import Wire

MISSED = 300


def behind(first: Client, at: int, wire: Wire | None = None) -> Client:
    """One who comes back with this offset; `first` is of the same channel."""
    subscription = Subscription(first.subscription.channel, {TP: Place(at, 0, 0)})
    hub, shared, deadline = first._hub, first._shared, first._deadline
    return Client(hub, shared, subscription, wire or Sse(), heartbeat=60.0, deadline=deadline)


async def missed(wire: Wire | None = None, **options: object) -> Client:
    """A client that rides, of a topic that has had MISSED records."""
    first = client_of(wire, **options)  # type: ignore[arg-type]
    first.attach(Outlet())
    for value in range(MISSED):
        write(first, b"%d" % value)
        if value % 50 == 0:
            await asyncio.sleep(0)
    return first


def come_back(first: Client, outlets: Sequence[Outlet], at: int, wire: Wire | None = None) -> None:
    for outlet in outlets:
        outlet.client = behind(first, at, wire)
        outlet.client.attach(outlet)


def whole(outlets: Sequence[Outlet], at: int, end: int) -> bool:
    return all(outlet.values == list(range(at, end)) for outlet in outlets)


async def test_they_are_read_for_once_and_ride_from_where_the_leader_came_to(
    monkeypatch: pytest.MonkeyPatch,
):
    first = await missed()
    encoder, heads = first.subscription.channel.encoder, 0
    head = encoder.head

    def counted(entry: object) -> bytes | None:
        nonlocal heads
        heads += 1
        return head(entry)  # type: ignore[arg-type]

    monkeypatch.setattr(encoder, "head", counted)
    outlets = [Outlet() for _ in range(50)]
    come_back(first, outlets, 100)
    await until(lambda: whole(outlets, 100, MISSED))
    assert heads <= 2 * (MISSED - 100), "by the first, who could not know, and by a leader"
    for value in range(MISSED, MISSED + 10):
        write(first, b"%d" % value)
        await asyncio.sleep(0)
    await until(lambda: whole(outlets, 100, MISSED + 10))
    await until(lambda: all(outlet.client._fan is not None for outlet in outlets))
    assert len({outlet.got[-1] for outlet in outlets}) == 1


async def test_those_of_another_place_are_not_of_the_herd():
    first = await missed()
    some, others = [Outlet() for _ in range(5)], [Outlet() for _ in range(5)]
    come_back(first, some, 100)
    come_back(first, others, 99)
    await until(lambda: whole(some, 100, MISSED) and whole(others, 99, MISSED))


async def test_what_is_published_meanwhile_comes_once_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
):
    """Pieces are small, and records come faster than they are taken at first."""
    monkeypatch.setattr(clients, "BUDGET", 200)
    first = await missed()
    outlets = [Outlet() for _ in range(9)]
    come_back(first, outlets, 0)
    for value in range(MISSED, 2 * MISSED):
        write(first, b"%d" % value)
        await asyncio.sleep(0)
    await until(lambda: whole(outlets, 0, 2 * MISSED))


async def test_one_that_takes_nothing_holds_up_nobody_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(clients, "BUDGET", 500)
    monkeypatch.setattr(herd, "BOUND", 2000)
    first = await missed()
    outlets, stuck = [Outlet() for _ in range(5)], Outlet(room=300)
    come_back(first, [*outlets, stuck], 0)
    herds, now = first._hub.herds, asyncio.get_running_loop().time()

    def done() -> bool:
        nonlocal now
        now += 1.0
        herds.mind(now)
        return whole(outlets, 0, MISSED)

    await until(done)
    assert 0 < len(stuck.values) < MISSED
    stuck.room = float("inf")
    stuck.client.drained()
    await until(lambda: whole([stuck], 0, MISSED))
    write(first, b"%d" % MISSED)
    await until(lambda: whole([*outlets, stuck], 0, MISSED + 1))


async def test_who_is_told_to_end_ends_where_it_stands(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clients, "BUDGET", 500)
    first = await missed()
    outlets = [Outlet() for _ in range(4)]
    come_back(first, outlets, 0)
    await until(lambda: all(len(outlet.values) > 20 for outlet in outlets), every=0)
    for outlet in outlets:
        outlet.client.end("drain")
    await until(lambda: all(outlet.finished for outlet in outlets))
    for outlet in outlets:
        *_, position = re.findall(rb"^id: (\S+)$", b"".join(outlet.got), re.MULTILINE)
        (topic,) = decode(position.decode()).topics
        assert topic.offsets == [len(outlet.values)]
        assert outlet.values == list(range(len(outlet.values)))
        assert len(outlet.values) < MISSED


async def test_who_leaves_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clients, "BUDGET", 500)
    first = await missed()
    outlets = [Outlet() for _ in range(6)]
    come_back(first, outlets, 0)
    await asyncio.sleep(0)
    for outlet in outlets[::2]:
        outlet.client.close()
    await until(lambda: whole(outlets[1::2], 0, MISSED))


async def test_a_herd_that_nobody_needs_is_let_go():
    first = await missed()
    outlets = [Outlet() for _ in range(4)]
    come_back(first, outlets, 0)
    await until(lambda: whole(outlets, 0, MISSED))
    herds, channel = first._hub.herds, first.subscription.channel
    herds.mind(asyncio.get_running_loop().time() + 10)
    assert not herds._herds and not herds._seen
    assert channel.followers == {one.client.subscription for one in outlets} | {first.subscription}


async def test_one_that_is_followed_by_another_is_let_go_too(monkeypatch: pytest.MonkeyPatch):
    """Its first pieces are gone, so who comes then from the same place is of a new one."""
    monkeypatch.setattr(clients, "BUDGET", 500)
    monkeypatch.setattr(herd, "BOUND", 1000)
    first = await missed()
    channel, herds = first.subscription.channel, first._hub.herds
    outlets = [Outlet() for _ in range(3)]
    come_back(first, outlets, 0)
    await until(lambda: whole(outlets, 0, MISSED))
    (old,) = herds._herds
    assert not old.is_open
    more = [Outlet() for _ in range(3)]
    come_back(first, more, 0)
    await until(lambda: whole(more, 0, MISSED))
    assert len(herds._herds) == 2
    for outlet in (*outlets, *more):
        outlet.client.close()
    herds.mind(asyncio.get_running_loop().time() + 2 * herd.OPEN)
    assert not herds._herds and not herds._newest
    assert channel.followers == {first.subscription}


async def test_compressed_streams_of_a_herd_end_with_the_right_sum(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(clients, "BUDGET", 500)
    wire = Gzip(Sse())
    first = await missed(wire)
    outlets = [Outlet() for _ in range(4)]
    come_back(first, outlets, 10, wire)
    riding = [first.outlet, *outlets]
    for value in range(MISSED, MISSED + 5):
        write(first, b"%d" % value)
        await asyncio.sleep(0)
    await until(lambda: all(outlet.client._fan is not None for outlet in outlets))
    write(first, b"%d" % (MISSED + 5))
    for outlet in outlets:
        outlet.client.end("drain")
    first.end("drain")
    await until(lambda: all(outlet.finished for outlet in riding))  # type: ignore[union-attr]
    for outlet in outlets:
        outlet.got = [gzip.decompress(b"".join(outlet.got))]  # checks the sum
    assert all(set(range(10, MISSED + 5)) <= set(outlet.values) for outlet in outlets)
