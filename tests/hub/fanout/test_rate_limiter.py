"""Clients that are sent so many records in a time and no more."""

from __future__ import annotations

import asyncio

import pytest
from support.outlet import FakeOutlet
from support.single_client import create_client, run_loop_turns, write_records
from support.virtual_time import in_virtual_time

from gateway.core.client.terms import SlowClientPolicy, Throttle
from gateway.hub.fanout.client import Client
from gateway.hub.reads.pacing import RateLimiter
from gateway.telemetry.traffic import NO_CREDIT, THROTTLED

HOUR = 3600.0


def attach_throttled(
    outlet: FakeOutlet,
    max_records: int = 3,
    period_s: float = HOUR,
    credit: int | None = None,
    slow: SlowClientPolicy = SlowClientPolicy.CATCH_UP,
    **options: int,
) -> Client:
    allowance = RateLimiter(Throttle(max_records, period_s), credit)
    client = create_client(
        credit=allowance.get_capacity(0.0), slow_policy=slow, rate_limiter=allowance, **options
    )  # type: ignore[arg-type]
    client.attach(outlet)
    return client


async def expire_rate_window() -> None:
    """Let the time of the rate pass."""
    await asyncio.sleep(HOUR)
    await run_loop_turns()


@pytest.mark.parametrize("at_once", [True, False])
@in_virtual_time
async def test_one_gets_what_its_rate_leaves_and_the_next_when_its_time_is_over(at_once: bool):
    outlet, other = FakeOutlet(), FakeOutlet()
    client = attach_throttled(outlet)
    beside = create_client(sibling=client)
    beside.attach(other)
    values = range(10)
    for some in [values] if at_once else [[value] for value in values]:
        write_records(client, *(b"%d" % value for value in some))
        await run_loop_turns()
    assert other.values == list(values) and beside.state is None
    for had in (3, 6, 9):
        assert outlet.values == list(range(had))
        assert client.state == THROTTLED
        await expire_rate_window()
    assert outlet.values == list(values)
    write_records(client, b"10", b"11")
    await run_loop_turns()
    assert outlet.values == list(range(12))
    client.close()


@in_virtual_time
async def test_what_the_client_grants_itself_is_a_limit_too():
    outlet = FakeOutlet()
    client = attach_throttled(outlet, credit=2)
    write_records(client, *(b"%d" % value for value in range(10)))
    await run_loop_turns()
    assert outlet.values == [0, 1]
    assert client.state == NO_CREDIT and client.credit == 0
    client.grant_credit(5)
    await run_loop_turns()
    assert outlet.values == [0, 1, 2]
    assert client.state == THROTTLED and client.credit == 4
    for had in (6, 7):
        await expire_rate_window()
        assert outlet.values == list(range(had))
    assert client.state == NO_CREDIT
    client.close()


@in_virtual_time
async def test_a_client_that_goes_leaves_no_timer():
    client = attach_throttled(FakeOutlet())
    write_records(client, *(b"%d" % value for value in range(10)))
    await run_loop_turns()
    limiter, woken = client.rate_limiter, list[bool]()
    assert limiter is not None
    limiter.close()
    limiter.take(client.subscription, 1000, lambda: woken.append(True))  # nothing is left: it waits
    client.close()
    await expire_rate_window()
    assert not woken


@in_virtual_time
async def test_one_that_falls_out_of_the_ring_may_be_ended():
    outlet = FakeOutlet()
    client = attach_throttled(outlet, slow=SlowClientPolicy.DISCONNECT, max_ring_bytes=2000)
    for value in range(100):
        write_records(client, b"%d" % value)
        await run_loop_turns(3)
    assert outlet.is_finished and b'"slow"' in outlet.chunks[-1]
    assert outlet.values == [0, 1, 2]


@in_virtual_time
async def test_one_that_skips_is_told_what_and_is_live_when_it_may_get_more():
    outlet = FakeOutlet()
    client = attach_throttled(outlet, slow=SlowClientPolicy.SKIP, max_ring_bytes=2000)
    for value in range(100):
        write_records(client, b"%d" % value)
        await run_loop_turns(3)
    await expire_rate_window()
    write_records(client, b"100")
    await run_loop_turns()
    said = b"".join(outlet.chunks)
    assert b"event: gap" in said and b"skipped" in said
    assert outlet.values[:3] == [0, 1, 2] and len(outlet.values) <= 6
    assert sorted(set(outlet.values)) == outlet.values
    client.close()


@in_virtual_time
async def test_a_client_in_the_place_of_another_has_what_that_one_left():
    outlet = FakeOutlet()
    client = attach_throttled(outlet)
    write_records(client, b"0", b"1")
    await run_loop_turns()
    handed = client.take_handover()
    assert handed.throttle is not None and handed.credit is None
    assert Throttle(3, HOUR, handed.throttle).get_capacity(asyncio.get_running_loop().time()) == 1
    client.close()
