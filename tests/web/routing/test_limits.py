"""Who is let in: by one process, and by several that share the limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.buses import Host, host
from support.until import until

from gateway.config import Limits as Settings
from gateway.errors import Busy
from gateway.web.access import NOBODY, Grant, Granted
from gateway.web.routing.ledger import Ledger
from gateway.web.routing.limits import Limits, Place, count_for, source
from gateway.web.workers.bus import Bus


def scope(host: str | None) -> dict[str, Any]:
    return {"type": "http", "client": None if host is None else (host, 1234)}


def known(identity: str, guard: str = "users") -> Granted:
    return Granted([Grant(guard, identity), Grant("second", "another")])


def limits(bus: Bus, **settings: Any) -> Limits:
    return Limits(Settings.model_validate(settings), bus)


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


async def test_one_identity_has_so_many_wherever_it_comes_from():
    gate = limits(Bus(), perIdentity=2)
    first = await gate.enter(scope("192.0.2.1"), known("ada"))
    await gate.enter(scope("192.0.2.2"), known("ada"))
    with pytest.raises(Busy) as refused:
        await gate.enter(scope("192.0.2.3"), known("ada"))
    assert refused.value.status == 429 and refused.value.retry_after
    assert gate.refused == {"perIdentity": 1}
    for _ in range(3):  # it harms nobody else, of the same address either
        await gate.enter(scope("192.0.2.1"))
    await gate.enter(scope("192.0.2.1"), known("bob"))
    await gate.enter(scope("192.0.2.1"), known("ada", "certificates"))
    first()
    await gate.enter(scope("192.0.2.3"), known("ada"))
    assert gate.held == 7


async def test_who_is_refused_for_one_limit_has_no_place_under_another():
    gate = limits(Bus(), connections=3, perAddress=2, perIdentity=1)
    await gate.enter(scope("192.0.2.1"), known("ada"))
    for _ in range(5):
        with pytest.raises(Busy):
            await gate.enter(scope("192.0.2.1"), known("ada"))
    await gate.enter(scope("192.0.2.1"), known("bob"))
    assert gate.held == 2


async def test_who_is_known_later_counts_from_then_on():
    gate = limits(Bus(), perIdentity=1)
    one, other = [await gate.enter(scope("192.0.2.1")) for _ in range(2)]
    for _ in range(2):  # for each stream of its socket
        await one.identify(known("ada"))
    await one.identify(known("ada", "certificates"))
    with pytest.raises(Busy):
        await other.identify(known("ada"))
    await other.identify(known("bob"))
    with pytest.raises(Busy):
        await gate.enter(scope("192.0.2.1"), known("ada", "certificates"))
    one()
    await other.identify(known("ada"))
    await gate.enter(scope("192.0.2.1"), known("ada", "certificates"))
    other()
    other()
    assert gate.held == 1


async def test_an_address_comes_so_often_and_not_more():
    gate = limits(Bus(), rate="3/h")
    for address in ("192.0.2.1", "192.0.2.2", "2001:db8::1"):
        for _ in range(3):
            await gate.arrive(scope(address))
    for address in ("192.0.2.1", "2001:db8::2"):
        with pytest.raises(Busy) as refused:
            await gate.arrive(scope(address))
        assert refused.value.status == 429
        assert refused.value.retry_after is not None
        assert 1100 < refused.value.retry_after <= 1210
    for _ in range(10):
        await gate.arrive(scope(None))
    assert gate.refused == {"rate": 2} and gate.held == 0


async def sharing(made: Host, **settings: Any) -> tuple[Ledger, list[Limits]]:
    ledger = count_for(made.relay, Settings.model_validate(settings))
    gates = [limits(bus, **settings) for bus in made.buses]
    await made.run()
    return ledger, gates


async def entered(
    gates: list[Limits], tries: int, address: str = "192.0.2.1", who: Granted = NOBODY
) -> list[Any]:
    """All at once, spread over the workers; who got in, as ways out."""
    asked = (gates[n % len(gates)].enter(scope(address), who) for n in range(tries))
    return await let_in(*asked)


async def let_in(*asked: Any) -> list[Any]:
    """What came of those that were not refused."""
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
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


async def test_an_identity_has_so_many_on_all_workers_together():
    async with host(3) as made:
        ledger, gates = await sharing(made, perIdentity=4)
        leaving = await entered(gates, 30, who=known("ada"))
        assert len(leaving) == 4 and len(await entered(gates, 30, who=known("bob"))) == 4
        sockets: list[Place] = await entered(gates, 6)
        assert await let_in(*(each.identify(known("ada")) for each in sockets)) == []
        for leave in leaving:
            leave()
        await until(lambda: ledger.total == 10, lambda: f"{ledger.total}")
        known_now = await let_in(*(each.identify(known("ada")) for each in sockets))
        assert len(known_now) == 4
        for leave in sockets:
            leave()
        await until(lambda: ledger.total == 4, lambda: f"{ledger.total}")
        assert len(await entered(gates, 30, who=known("ada"))) == 4


@pytest.mark.parametrize("lost", [("over",), ("cancelled", "over"), ("over", "cancelled")])
async def test_a_socket_that_is_lost_while_it_becomes_known_is_not_counted(lost: tuple[str, ...]):
    async with host(2) as made:
        ledger, gates = await sharing(made, perIdentity=1)
        (place,) = await entered(gates[:1], 1)
        becoming = asyncio.create_task(place.identify(known("ada")))
        await asyncio.sleep(0)
        for each in lost:
            if each == "over":
                place()
            else:
                becoming.cancel()
        await asyncio.gather(becoming, return_exceptions=True)
        await until(lambda: not ledger.held(1), lambda: f"{ledger.held(1)}")
        assert len(await entered(gates, 4, who=known("ada"))) == 1


async def test_an_address_comes_so_often_on_all_workers_together():
    async with host(3) as made:
        ledger, gates = await sharing(made, rate="10/h")
        asked = (gates[n % 3].arrive(scope("192.0.2.1")) for n in range(40))
        assert len(await let_in(*asked)) == 10
        await gates[0].arrive(scope("192.0.2.2"))
        assert sum(gate.refused["rate"] for gate in gates) == 30
        assert not any(ledger.held(worker) for worker in (1, 2, 3))


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
    monkeypatch.setattr("gateway.web.routing.limits.PATIENCE", 0.2)
    async with host(3) as made:
        _, gates = await sharing(made, connections=9, perAddress=6, rate="6/h")
        await made.relay.close()
        await until(lambda: not any(bus.linked for bus in made.buses))
        for gate in gates:
            assert len(await entered([gate], 5)) == 2
            assert len(await entered([gate], 5, "192.0.2.2")) == 1
            asked = (gate.arrive(scope("192.0.2.1")) for _ in range(5))
            assert len(await let_in(*asked)) == 2


async def test_a_supervisor_that_hangs_holds_up_nobody_for_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.web.routing.limits.PATIENCE", 0.2)
    async with host(2) as made:
        ledger, gates = await sharing(made, connections=4)
        # it counts them, and does not say so
        made.relay._links[1].send = lambda *message: None  # type: ignore[method-assign]
        assert len(await entered(gates[:1], 3)) == 2
        await made.linked()
        await until(lambda: ledger.total == 2, lambda: f"{ledger.total}: counted twice", 60)
        assert len(await entered(gates, 6)) == 2
