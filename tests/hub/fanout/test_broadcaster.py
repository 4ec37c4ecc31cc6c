"""Clients of one channel that are written to, by rounds and by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from support.one_client import TP, client_of, write
from support.outlet import Outlet
from support.until import until

from gateway.core.client.slow_client import SlowClient
from gateway.core.log.record import Skip
from gateway.hub.fanout import broadcaster as pump
from gateway.hub.fanout.client import Client


def attached(
    outlets: Iterable[Outlet], first: Client | None = None, **options: object
) -> list[Client]:
    clients: list[Client] = []
    for outlet in outlets:
        client = client_of(beside=clients[0] if clients else None, **options)  # type: ignore[arg-type]
        client.attach(outlet)
        clients.append(client)
    return clients


def fill(client: Client, outlet: Outlet) -> None:
    outlet.room = -1
    assert client._fan is not None
    client._fan.drop(client)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_who_has_everything_is_written_to_in_rounds_and_in_no_task():
    outlets = [Outlet() for _ in range(5)]
    clients = attached(outlets)
    await turns()
    before = len(asyncio.all_tasks())
    for value in range(20):
        write(clients[0], b"%d" % value)
        await turns(3)
    assert [outlet.values for outlet in outlets] == [list(range(20))] * 5
    assert len({id(outlet.got[-1]) for outlet in outlets}) == 1, "the same bytes for all"
    assert len(asyncio.all_tasks()) == before
    assert all(client.subscription.cursor == 20 for client in clients)


async def test_what_is_published_during_a_round_is_joined_for_those_it_comes_to_later(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(pump, "STRIDE", 1)
    monkeypatch.setattr(pump, "SLICE", 0.0)
    outlets = [Outlet() for _ in range(4)]
    clients = attached(outlets)
    await turns()
    monkeypatch.setattr(pump, "SLICE", 1e-9)
    write(clients[0], b"1")
    await turns(2)
    write(clients[0], b"2")
    await until(lambda: all(outlet.values == [1, 2] for outlet in outlets))
    assert {len(outlet.got) for outlet in outlets} == {2, 3}, "some got both in one piece"


async def test_one_that_takes_nothing_is_left_alone_and_catches_up_by_itself():
    outlets = [Outlet(), Outlet()]
    clients = attached(outlets)
    await turns()
    fill(clients[1], outlets[1])
    for value in range(10):
        write(clients[0], b"%d" % value)
        await turns()
    assert (outlets[0].values, outlets[1].values) == (list(range(10)), [])
    outlets[1].room = float("inf")
    clients[1].drained()
    await until(lambda: outlets[1].values == list(range(10)))
    write(clients[0], b"10")
    await until(lambda: outlets[0].values == outlets[1].values == list(range(11)))


async def test_one_that_becomes_full_within_a_round_leaves_it_with_what_it_was_given():
    outlets = [Outlet(), Outlet(room=500)]
    clients = attached(outlets)
    await turns()
    value = 0
    while not outlets[1].full:
        write(clients[0], b"%d" % value)
        value += 1
        await turns()
    write(clients[0], b"%d" % value)
    await turns()
    assert outlets[1].values == list(range(value))
    outlets[1].room = float("inf")
    clients[1].drained()
    await until(lambda: outlets[1].values == list(range(value + 1)))


@pytest.mark.parametrize("slow", SlowClient)
async def test_a_rider_whose_round_comes_too_late_falls_out_of_the_ring(
    slow: SlowClient, monkeypatch: pytest.MonkeyPatch
):
    outlets = [Outlet(), Outlet()]
    clients = attached(outlets, ring=1000, slow=slow)
    await turns()
    for value in range(50):  # no turn of the loop in between: no round
        write(clients[0], b"%d" % value)
    every = list(range(50))
    if slow is SlowClient.CATCH_UP:
        await until(lambda: all(outlet.values == every for outlet in outlets))
    elif slow is SlowClient.SKIP:
        await until(lambda: all(b"event: gap" in b"".join(outlet.got) for outlet in outlets))
    elif slow is SlowClient.DISCONNECT:
        await until(lambda: all(outlet.finished for outlet in outlets))
        assert all(b'{"reason":"slow"}' in outlet.got[-1] for outlet in outlets)


async def test_it_ends_with_its_last_words_wherever_it_is():
    riding, full, late = Outlet(), Outlet(), Outlet()
    clients = attached([riding, full, late])
    await turns()
    fill(clients[1], full)
    for client in clients:
        client.end("drain")
    await until(lambda: riding.finished and full.finished and late.finished)
    assert all(b'{"reason":"drain"}' in outlet.got[-1] for outlet in (riding, full, late))
    assert set(clients[0]._hub.left) == set(clients)  # type: ignore[attr-defined]
    write(clients[0], b"1")
    await turns()
    assert riding.values == []


async def test_a_lost_connection_is_no_rider_any_more():
    outlets = [Outlet(), Outlet()]
    clients = attached(outlets)
    await turns()
    write(clients[0], b"1")
    clients[1].close()  # while its round is due
    clients[1].close()
    await turns()
    assert (outlets[0].values, outlets[1].values) == ([1], [])
    channel = clients[0].subscription.channel
    assert channel.followers == {clients[0].subscription}


async def test_an_idle_stream_is_kept_alive_and_a_busy_one_needs_nothing():
    outlets = [Outlet(), Outlet()]
    clients = attached(outlets, heartbeat=60.0)
    now = asyncio.get_running_loop().time()
    await turns()
    for client in clients:
        client.beat(now + 30)
    assert all(outlet.got[-1] != b":\n" for outlet in outlets)
    for client in clients:
        client.beat(now + 61)
    assert all(outlet.got[-1] == b":\n" for outlet in outlets)
    write(clients[0], b"1")
    await turns()
    for client in clients:
        client.beat(now + 62)
    assert all(outlet.values == [1] for outlet in outlets)
    assert all(outlet.got[-1] != b":\n" for outlet in outlets)


async def test_a_lifetime_that_is_over_ends_it():
    outlet = Outlet()
    (client,) = attached([outlet], lifetime=10.0)
    client.beat(asyncio.get_running_loop().time() + 11)
    await until(lambda: outlet.finished)
    assert b'{"reason":"lifetime"}' in outlet.got[-1]


async def test_a_rest_is_in_proportion_to_what_the_round_cost():
    outlets = [Outlet() for _ in range(50)]
    clients = attached(outlets)
    await turns()
    pace = clients[0]._hub.pace  # type: ignore[attr-defined]
    assert pace.rest == 0
    write(clients[0], b"1")
    await until(lambda: outlets[-1].values == [1], every=0)
    assert 0 < pace.rest <= pump.MOST_REST
    await until(lambda: pace.rest == 0)


async def test_one_that_reads_alone_hears_of_what_is_not_seen():
    """Nothing of a turn may be seen in a channel; one with an end there waited for a heartbeat to
    find out that it had come to it."""
    outlet = Outlet()
    client = client_of(until=1)
    client.attach(outlet)
    await turns()
    assert not outlet.finished
    marker = Skip(TP, 0, 1, 0)
    client._shared.tail.logs[TP].append(marker, 0.0)
    client._shared.publish([marker], 0)
    await until(lambda: outlet.finished)


async def test_credit_is_kept_on_the_way_to_an_outlet():
    outlet = Outlet()
    client = client_of(credit=2)
    client.attach(outlet)
    for value in range(5):
        write(client, b"%d" % value)
        await turns()
    assert outlet.values == [0, 1]
    client.grant(2)
    await until(lambda: outlet.values == [0, 1, 2, 3])
    assert client.subscription.channel.tail.position[TP].offset == 5


async def test_a_turn_is_followed_by_a_rest_unless_it_brought_a_single_record():
    pace = pump.Pace()
    pace.lone = True
    pace.spent(1.0)
    assert pace.rest == 0
    pace.lone = False
    pace.spent(1.0)
    assert 0 < pace.rest <= pump.MOST_REST


async def test_clients_who_wake_at_once_are_pushed_to_in_turns_with_others(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(pump, "SLICE", 0.0)
    outlets = [Outlet() for _ in range(4)]
    clients = attached(outlets)
    await turns()
    for client, outlet in zip(clients, outlets, strict=True):
        fill(client, outlet)
    write(clients[0], b"1")
    for client, outlet in zip(clients, outlets, strict=True):
        outlet.room = float("inf")
        client.drained()
    told = []
    for _ in range(6):
        await asyncio.sleep(0)
        told.append(sum(len(outlet.values) for outlet in outlets))
    assert max(b - a for a, b in zip([0, *told], told, strict=False)) == 1, "one a turn"
    assert [outlet.values for outlet in outlets] == [[1]] * 4


async def test_a_client_whose_push_fails_holds_up_no_other():
    failing, outlet = Outlet(), Outlet()
    clients = attached([failing, outlet])
    await turns()
    for client, each in zip(clients, (failing, outlet), strict=True):
        fill(client, each)
    write(clients[0], b"1")
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: reported.append(told))
    failing.write = None  # type: ignore[assignment]
    for client, each in zip(clients, (failing, outlet), strict=True):
        each.room = float("inf")
        client.drained()
    await until(lambda: outlet.values == [1])
    assert len(reported) == 1
