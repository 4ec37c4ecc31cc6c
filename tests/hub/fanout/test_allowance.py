"""Clients that are sent so many records in a time and no more."""

from __future__ import annotations

import asyncio

import pytest
from support.one_client import client_of, write
from support.outlet import Outlet
from support.until import until

from gateway.core.client.slow_client import SlowClient
from gateway.core.client.throttle import Throttle
from gateway.hub.fanout.allowance import Allowance
from gateway.hub.fanout.client import Client
from gateway.telemetry.traffic import THROTTLED, UNPAID

HOUR = 3600.0


def throttled(
    outlet: Outlet,
    most: int = 3,
    within: float = HOUR,
    credit: int | None = None,
    slow: SlowClient = SlowClient.CATCH_UP,
    **options: int,
) -> Client:
    allowance = Allowance(Throttle(most, within), credit)
    client = client_of(credit=allowance.room(0.0), slow=slow, **options)  # type: ignore[arg-type]
    client._allowance = allowance
    client.attach(outlet)
    return client


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def later(client: Client) -> None:
    """The time of its rate is over."""
    allowance = client._allowance
    assert allowance is not None and allowance._alarm is not None
    allowance.close()
    allowance.throttle._sent.clear()
    client.wake()


@pytest.mark.parametrize("at_once", [True, False])
async def test_one_gets_what_its_rate_leaves_and_the_next_when_its_time_is_over(at_once: bool):
    outlet, other = Outlet(), Outlet()
    client = throttled(outlet)
    beside = client_of(beside=client)
    beside.attach(other)
    values = range(10)
    for some in [values] if at_once else [[value] for value in values]:
        write(client, *(b"%d" % value for value in some))
        await turns()
    assert other.values == list(values) and beside.state is None
    for had in (3, 6, 9):
        assert outlet.values == list(range(had))
        assert client.state == THROTTLED
        later(client)
        await turns()
    assert outlet.values == list(values)
    write(client, b"10", b"11")
    await turns()
    assert outlet.values == list(range(12))
    client.close()


async def test_time_alone_brings_the_rest():
    outlet = Outlet()
    client = throttled(outlet, within=0.05)
    write(client, *(b"%d" % value for value in range(20)))
    await until(lambda: outlet.values == list(range(20)))
    await turns()
    client.close()


async def test_what_the_client_grants_itself_is_a_limit_too():
    outlet = Outlet()
    client = throttled(outlet, credit=2)
    write(client, *(b"%d" % value for value in range(10)))
    await turns()
    assert outlet.values == [0, 1]
    assert client.state == UNPAID and client.credit == 0
    client.grant(5)
    await turns()
    assert outlet.values == [0, 1, 2]
    assert client.state == THROTTLED and client.credit == 4
    for had in (6, 7):
        later(client)
        await turns()
        assert outlet.values == list(range(had))
    assert client.state == UNPAID
    client.close()


async def test_a_client_that_goes_leaves_no_timer():
    client = throttled(Outlet())
    write(client, *(b"%d" % value for value in range(10)))
    await turns()
    allowance = client._allowance
    assert allowance is not None
    alarm = allowance._alarm
    assert alarm is not None
    client.close()
    assert alarm.cancelled()


async def test_one_that_falls_out_of_the_ring_may_be_ended():
    outlet = Outlet()
    client = throttled(outlet, slow=SlowClient.DISCONNECT, ring=2000)
    for value in range(100):
        write(client, b"%d" % value)
        await turns(3)
    assert outlet.finished and b'"slow"' in outlet.got[-1]
    assert outlet.values == [0, 1, 2]


async def test_one_that_skips_is_told_what_and_is_live_when_it_may_get_more():
    outlet = Outlet()
    client = throttled(outlet, slow=SlowClient.SKIP, ring=2000)
    for value in range(100):
        write(client, b"%d" % value)
        await turns(3)
    later(client)
    await turns()
    write(client, b"100")
    await turns()
    said = b"".join(outlet.got)
    assert b"event: gap" in said and b"skipped" in said
    assert outlet.values[:3] == [0, 1, 2] and len(outlet.values) <= 6
    assert sorted(set(outlet.values)) == outlet.values
    client.close()


async def test_a_client_in_the_place_of_another_has_what_that_one_left():
    outlet = Outlet()
    client = throttled(outlet)
    write(client, b"0", b"1")
    await turns()
    handed = client.handover()
    assert handed.throttle is not None and handed.credit is None
    assert Throttle(3, HOUR, handed.throttle).room(asyncio.get_running_loop().time()) == 1
    client.close()
