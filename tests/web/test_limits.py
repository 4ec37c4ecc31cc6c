"""Who is let in: by the counts alone, by one process, and by several that share the limits."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.buses import Host, host
from support.until import until

from gateway.config import Limits as Settings
from gateway.web.bus import Bus
from gateway.web.limits import Busy, Full, Ledger, Limits, count_for, source

ADDRESSES = ["a", "b", ""]


def scope(host: str | None) -> dict[str, Any]:
    return {"type": "http", "client": None if host is None else (host, 1234)}


def limits(bus: Bus, **settings: int) -> Limits:
    return Limits(Settings.model_validate(settings), bus)


@given(st.lists(st.tuples(
    st.sampled_from(["take", "give", "forget", "add"]), st.integers(1, 3),
    st.sampled_from(ADDRESSES),
)))  # fmt: skip
def test_the_counts_are_those_of_who_is_there_and_only_what_is_added_goes_over(steps):
    ledger = Ledger(6, 3)
    there: Counter[tuple[int, str]] = Counter()

    def total(*addresses: str) -> int:
        return sum(n for (_, each), n in there.items() if each in (addresses or ADDRESSES))

    for step, worker, address in steps:
        if step == "take":
            full = ledger.take(worker, address)
            over = address != "" and total(address) >= 3
            assert full == (Full.ALL if total() >= 6 else Full.ADDRESS if over else None)
            there[worker, address] += full is None
        elif step == "add":
            ledger.add(worker, {address: 1})
            there[worker, address] += 1
        elif step == "give":
            ledger.give(worker, {address: 1})
            there[worker, address] -= there[worker, address] > 0
        else:
            ledger.forget(worker)
            there = Counter({key: n for key, n in there.items() if key[0] != worker})
        assert ledger.total == total()
        assert dict(ledger.held(worker)) == {a: there[worker, a] for a in ADDRESSES
                                             if there[worker, a]}  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("2001:db8::1", "2001:db8:0:0:ffff::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("unix", "192.0.2.1", False),
    ],
)
def test_an_ipv6_subscriber_is_one_address(one: str, other: str, same: bool):
    assert (source(one) == source(other)) is same


async def test_one_process_lets_in_as_many_as_it_may():
    gate = limits(Bus(), connections=3, perAddress=2)
    first = await gate.enter(scope("192.0.2.1"))
    await gate.enter(scope("192.0.2.1"))
    with pytest.raises(Busy) as own:
        await gate.enter(scope("192.0.2.1"))
    await gate.enter(scope("192.0.2.2"))
    with pytest.raises(Busy) as every:
        await gate.enter(scope("192.0.2.3"))
    assert (own.value.status, every.value.status) == (429, 503)
    assert own.value.retry_after and every.value.retry_after
    first()
    first()  # whoever leaves twice left once
    await gate.enter(scope("192.0.2.3"))
    with pytest.raises(Busy):
        await gate.enter(scope("192.0.2.4"))


async def test_without_limits_nothing_is_counted():
    gate = limits(Bus())
    leaving = [await gate.enter(scope("192.0.2.1")) for _ in range(100)]
    assert len(set(leaving)) == 1


async def test_who_has_no_address_counts_in_all_only():
    gate = limits(Bus(), connections=5, perAddress=1)
    for _ in range(5):
        await gate.enter(scope(None))
    with pytest.raises(Busy):
        await gate.enter(scope(None))


async def sharing(made: Host, **settings: int) -> tuple[Ledger, list[Limits]]:
    ledger = count_for(made.relay, Settings.model_validate(settings))
    gates = [limits(bus, **settings) for bus in made.buses]
    await made.run()
    return ledger, gates


async def entered(gates: list[Limits], tries: int, address: str = "192.0.2.1") -> list[Any]:
    """All at once, spread over the workers; who got in, as ways out."""
    outcomes = await asyncio.gather(
        *(gates[n % len(gates)].enter(scope(address)) for n in range(tries)),
        return_exceptions=True,
    )
    for each in outcomes:
        if isinstance(each, Exception) and not isinstance(each, Busy):
            raise each
    return [each for each in outcomes if not isinstance(each, Exception)]


async def test_a_storm_on_all_workers_gets_exactly_the_limit_in():
    async with host(3) as made:
        ledger, gates = await sharing(made, connections=100, perAddress=70)
        assert len(await entered(gates, 300)) == 70
        assert len(await entered(gates, 300, "192.0.2.2")) == 30
        assert ledger.total == 100


async def test_who_leaves_one_worker_makes_room_at_another():
    async with host(3) as made:
        ledger, gates = await sharing(made, connections=10)
        leaving = await entered(gates[:1], 20)
        assert len(leaving) == 10 and await entered(gates[1:], 5) == []
        for leave in leaving[:4]:
            leave()
        await until(lambda: ledger.total == 6)
        assert len(await entered(gates[1:], 20)) == 4


async def test_what_a_worker_had_is_free_when_it_ends():
    async with host(3) as made:
        ledger, gates = await sharing(made, connections=10)
        await entered(gates[2:], 10)
        await made.end(3)
        assert ledger.total == 0
        assert len(await entered(gates[:2], 20)) == 10


async def test_a_worker_that_was_cut_off_still_has_what_it_has():
    async with host(3) as made:
        ledger, gates = await sharing(made, connections=10)
        leaving = await entered(gates[:1], 6)
        made.buses[0].cut()
        leaving.pop()()  # while it is away
        await until(lambda: ledger.total == 5, lambda: f"{ledger.total}")
        await made.linked()
        await until(lambda: ledger.total == 5, lambda: f"{ledger.total}")
        assert len(await entered(gates, 30)) == 5
        for leave in leaving:
            leave()
        await until(lambda: ledger.total == 5, lambda: f"{ledger.total}")


@pytest.mark.parametrize("moment", ["before it is asked", "while it is asked", "once it is in"])
async def test_who_goes_away_while_it_is_let_in_is_not_counted(moment: str):
    async with host(2) as made:
        ledger, gates = await sharing(made, connections=1)
        entering = asyncio.create_task(gates[0].enter(scope("192.0.2.1")))
        if moment != "before it is asked":
            await asyncio.sleep(0)
        if moment == "once it is in":
            await until(lambda: ledger.total == 1, every=0)
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)
        if not entering.cancelled():  # it was faster
            entering.result()()
        await until(lambda: ledger.total == 0, lambda: f"{ledger.total}")
        assert len(await entered(gates, 4)) == 1


async def test_without_the_supervisor_each_admits_its_share(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.web.limits.PATIENCE", 0.2)
    async with host(3) as made:
        _, gates = await sharing(made, connections=9, perAddress=6)
        await made.relay.close()
        await until(lambda: not any(bus.linked for bus in made.buses))
        for gate in gates:
            assert len(await entered([gate], 5)) == 2
            assert len(await entered([gate], 5, "192.0.2.2")) == 1


async def test_a_supervisor_that_hangs_holds_up_nobody_for_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.web.limits.PATIENCE", 0.2)
    async with host(2) as made:
        ledger, gates = await sharing(made, connections=4)
        # it counts them, and does not say so
        made.relay._links[1].send = lambda *message: None  # type: ignore[method-assign]
        assert len(await entered(gates[:1], 3)) == 2
        await made.linked()
        await until(lambda: ledger.total == 2, lambda: f"{ledger.total}: counted twice", 60)
        assert len(await entered(gates, 6)) == 2
