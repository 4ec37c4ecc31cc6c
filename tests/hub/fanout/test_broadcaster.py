"""Clients of one channel that are written to, by rounds and by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from support.outlet import FakeOutlet
from support.single_client import (
    TP,
    FakeHub,
    create_client,
    drain_outlet,
    get_hub,
    leave_audience,
    run_loop_turns,
    write_records,
)
from support.waiting import wait_until

from gateway.core.client.terms import EndReason, SlowClientPolicy
from gateway.core.log.record import Skip
from gateway.hub.fanout.client import Client
from gateway.hub.reads.pacing import MAX_REST_S, BatchPacing
from gateway.hub.wires.sse import SseWire

HEARTBEAT = SseWire().encode_heartbeat()


def attach_clients(
    outlets: Iterable[FakeOutlet], first: Client | None = None, **options: object
) -> list[Client]:
    clients: list[Client] = []
    for outlet in outlets:
        client = create_client(sibling=clients[0] if clients else None, **options)  # type: ignore[arg-type]
        client.attach(outlet)
        clients.append(client)
    return clients


def fill_outlet(client: Client, outlet: FakeOutlet) -> None:
    outlet.capacity = -1
    leave_audience(client)


async def test_who_has_everything_is_written_to_in_rounds_and_in_no_task():
    outlets = [FakeOutlet() for _ in range(5)]
    clients = attach_clients(outlets)
    await run_loop_turns()
    before = len(asyncio.all_tasks())
    for value in range(20):
        write_records(clients[0], b"%d" % value)
        await run_loop_turns(3)
    assert [outlet.values for outlet in outlets] == [list(range(20))] * 5
    assert len({id(outlet.chunks[-1]) for outlet in outlets}) == 1, "the same bytes for all"
    assert len(asyncio.all_tasks()) == before
    assert all(client.subscription.next_seq == 20 for client in clients)


async def test_many_clients_are_written_to_in_several_rounds():
    outlets = [FakeOutlet() for _ in range(5)]
    clients = attach_clients(outlets, hub=FakeHub(max_audience_clients=2))
    await run_loop_turns()
    fill_outlet(clients[0], outlets[0])
    late = FakeOutlet()
    attached = create_client(sibling=clients[1])
    attached.attach(late)  # takes the place of the one that is full
    await run_loop_turns()
    for value in range(10):
        write_records(clients[0], b"%d" % value)
        await run_loop_turns()
    assert [outlet.values for outlet in (*outlets, late)] == [[], *[list(range(10))] * 5]
    outlets[0].capacity = float("inf")
    drain_outlet(clients[0])
    write_records(clients[0], b"10")
    await wait_until(lambda: all(outlet.values == list(range(11)) for outlet in (*outlets, late)))


async def test_what_is_published_during_a_round_is_joined_for_those_it_comes_to_later():
    outlets = [FakeOutlet() for _ in range(4)]
    clients = attach_clients(outlets, hub=FakeHub(writes_per_clock_check=1, slice_s=1e-9))
    await run_loop_turns()
    write_records(clients[0], b"1")
    await run_loop_turns(2)
    write_records(clients[0], b"2")
    await wait_until(lambda: all(outlet.values == [1, 2] for outlet in outlets))
    assert {len(outlet.chunks) for outlet in outlets} == {2, 3}, "some got both in one piece"


async def test_one_that_takes_nothing_is_left_alone_and_catches_up_by_itself():
    outlets = [FakeOutlet(), FakeOutlet()]
    clients = attach_clients(outlets)
    await run_loop_turns()
    fill_outlet(clients[1], outlets[1])
    for value in range(10):
        write_records(clients[0], b"%d" % value)
        await run_loop_turns()
    assert (outlets[0].values, outlets[1].values) == (list(range(10)), [])
    outlets[1].capacity = float("inf")
    drain_outlet(clients[1])
    await wait_until(lambda: outlets[1].values == list(range(10)))
    write_records(clients[0], b"10")
    await wait_until(lambda: outlets[0].values == outlets[1].values == list(range(11)))


async def test_one_that_becomes_full_within_a_round_leaves_it_with_what_it_was_given():
    outlets = [FakeOutlet(), FakeOutlet(capacity=500)]
    clients = attach_clients(outlets)
    await run_loop_turns()
    value = 0
    while not outlets[1].full:
        write_records(clients[0], b"%d" % value)
        value += 1
        await run_loop_turns()
    write_records(clients[0], b"%d" % value)
    await run_loop_turns()
    assert outlets[1].values == list(range(value))
    outlets[1].capacity = float("inf")
    drain_outlet(clients[1])
    await wait_until(lambda: outlets[1].values == list(range(value + 1)))


@pytest.mark.parametrize("slow", SlowClientPolicy)
async def test_a_rider_whose_round_comes_too_late_falls_out_of_the_ring(slow, monkeypatch):
    outlets = [FakeOutlet(), FakeOutlet()]
    clients = attach_clients(outlets, max_ring_bytes=1000, slow_policy=slow)
    await run_loop_turns()
    for value in range(50):  # no turn of the loop in between: no round
        write_records(clients[0], b"%d" % value)
    every = list(range(50))
    if slow is SlowClientPolicy.CATCH_UP:
        await wait_until(lambda: all(outlet.values == every for outlet in outlets))
    elif slow is SlowClientPolicy.SKIP:
        await wait_until(
            lambda: all(b"event: gap" in b"".join(outlet.chunks) for outlet in outlets)
        )
    elif slow is SlowClientPolicy.DISCONNECT:
        await wait_until(lambda: all(outlet.is_finished for outlet in outlets))
        assert all(b'{"reason":"slow"}' in outlet.chunks[-1] for outlet in outlets)


async def test_it_ends_with_its_last_words_wherever_it_is():
    riding, full, late = FakeOutlet(), FakeOutlet(), FakeOutlet()
    clients = attach_clients([riding, full, late])
    await run_loop_turns()
    fill_outlet(clients[1], full)
    for client in clients:
        client.end(EndReason.DRAIN)
    await wait_until(lambda: riding.is_finished and full.is_finished and late.is_finished)
    assert all(b'{"reason":"drain"}' in outlet.chunks[-1] for outlet in (riding, full, late))
    assert set(get_hub(clients[0]).removed_clients) == set(clients)
    write_records(clients[0], b"1")
    await run_loop_turns()
    assert riding.values == []


async def test_a_lost_connection_is_no_rider_any_more():
    outlets = [FakeOutlet(), FakeOutlet()]
    clients = attach_clients(outlets)
    await run_loop_turns()
    write_records(clients[0], b"1")
    clients[1].close()  # while its round is due
    clients[1].close()
    await run_loop_turns()
    assert (outlets[0].values, outlets[1].values) == ([1], [])
    channel = clients[0].subscription.channel
    assert set(channel.followers) == {clients[0].subscription}


async def test_an_idle_stream_is_kept_alive_and_a_busy_one_needs_nothing():
    outlets = [FakeOutlet(), FakeOutlet()]
    clients = attach_clients(outlets, heartbeat=60.0)
    now = asyncio.get_running_loop().time()
    await run_loop_turns()
    for client in clients:
        client.check_heartbeat(now + 30)
    assert all(outlet.chunks[-1] != HEARTBEAT for outlet in outlets)
    for client in clients:
        client.check_heartbeat(now + 61)
    assert all(outlet.chunks[-1] == HEARTBEAT for outlet in outlets)
    write_records(clients[0], b"1")
    await run_loop_turns()
    for client in clients:
        client.check_heartbeat(now + 62)
    assert all(outlet.values == [1] for outlet in outlets)
    assert all(outlet.chunks[-1] != HEARTBEAT for outlet in outlets)


async def test_a_lifetime_that_is_over_ends_it():
    outlet = FakeOutlet()
    (client,) = attach_clients([outlet], lifetime=10.0)
    client.check_heartbeat(asyncio.get_running_loop().time() + 11)
    await wait_until(lambda: outlet.is_finished)
    assert b'{"reason":"lifetime"}' in outlet.chunks[-1]


async def test_a_rest_is_in_proportion_to_what_the_round_cost():
    outlets, now = [FakeOutlet() for _ in range(50)], 100.0
    pace = BatchPacing(clock=lambda: now)  # or the rest may be over before it is looked at
    clients = attach_clients(outlets, hub=FakeHub(pace))
    await run_loop_turns()
    assert pace.remaining_rest == 0
    write_records(clients[0], b"1")
    await wait_until(lambda: outlets[-1].values == [1], interval_s=0)
    assert 0 < pace.remaining_rest <= MAX_REST_S + 1e-9  # less the error of a difference of times
    now += MAX_REST_S
    assert pace.remaining_rest == 0


async def test_one_that_reads_alone_hears_of_what_is_not_seen():
    """Nothing of a turn may be seen in a channel; one with an end there waited for a heartbeat to
    find out that it had come to it."""
    outlet = FakeOutlet()
    client = create_client(end_offset=1)
    client.attach(outlet)
    await run_loop_turns()
    assert not outlet.is_finished
    marker = Skip(TP, 0, 1, 0)
    client.shared_tail.tail.logs[TP].append(marker, 0.0)
    client.shared_tail.publish([marker], 0)
    await wait_until(lambda: outlet.is_finished)


async def test_credit_is_kept_on_the_way_to_an_outlet():
    outlet = FakeOutlet()
    client = create_client(credit=2)
    client.attach(outlet)
    for value in range(5):
        write_records(client, b"%d" % value)
        await run_loop_turns()
    assert outlet.values == [0, 1]
    client.grant_credit(2)
    await wait_until(lambda: outlet.values == [0, 1, 2, 3])
    assert client.subscription.channel.tail.position[TP].offset == 5


async def test_a_turn_is_followed_by_a_rest_unless_it_brought_a_single_record():
    pace = BatchPacing()
    pace.is_single = True
    pace.record_cost(1.0)
    assert pace.remaining_rest == 0
    pace.is_single = False
    pace.record_cost(1.0)
    assert 0 < pace.remaining_rest <= MAX_REST_S


async def test_clients_who_wake_at_once_are_pushed_to_in_turns_with_others():
    outlets = [FakeOutlet() for _ in range(4)]
    clients = attach_clients(outlets, hub=FakeHub(slice_s=1e-9))
    await run_loop_turns()
    for client, outlet in zip(clients, outlets, strict=True):
        fill_outlet(client, outlet)
    write_records(clients[0], b"1")
    for client, outlet in zip(clients, outlets, strict=True):
        outlet.capacity = float("inf")
        drain_outlet(client)
    told = []
    for _ in range(6):
        await asyncio.sleep(0)
        told.append(sum(len(outlet.values) for outlet in outlets))
    assert max(b - a for a, b in zip([0, *told], told, strict=False)) == 1, "one a turn"
    assert [outlet.values for outlet in outlets] == [[1]] * 4


async def test_a_client_whose_push_fails_holds_up_no_other():
    failing, outlet = FakeOutlet(), FakeOutlet()
    clients = attach_clients([failing, outlet])
    await run_loop_turns()
    for client, each in zip(clients, (failing, outlet), strict=True):
        fill_outlet(client, each)
    write_records(clients[0], b"1")
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: reported.append(told))
    failing.write = None  # type: ignore[assignment]
    for client, each in zip(clients, (failing, outlet), strict=True):
        each.capacity = float("inf")
        drain_outlet(client)
    await wait_until(lambda: outlet.values == [1])
    assert len(reported) == 1
