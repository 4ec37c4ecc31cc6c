"""Who is let in: by one process, and by several that share the limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.waiting import wait_until
from support.worker_buses import WorkerBuses, worker_buses

from gateway.config import Limits as Settings
from gateway.errors import Busy
from gateway.web.access import NO_GRANTS, Grant, Granted
from gateway.web.http.limits import ConnectionSlot, Limits, normalize_address
from gateway.web.http.shared_counts import ConnectionCounts, serve_counts
from gateway.web.workers.bus import Bus


def build_scope(host: str | None) -> dict[str, Any]:
    return {"type": "http", "client": None if host is None else (host, 1234)}


def build_granted(identity: str, guard: str = "users") -> Granted:
    return Granted([Grant(guard, identity), Grant("second", "another")])


def build_limits(bus: Bus, kind: type[Limits] = Limits, **settings: Any) -> Limits:
    return kind(Settings.model_validate(settings), bus)


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
    assert (normalize_address(one) == normalize_address(other)) is same


async def test_one_process_lets_in_as_many_as_it_may():
    gate = build_limits(Bus(), connections=3, perAddress=2)
    first = await gate.acquire_slot(build_scope("192.0.2.1"))
    await gate.acquire_slot(build_scope("192.0.2.1"))
    with pytest.raises(Busy) as own:
        await gate.acquire_slot(build_scope("192.0.2.1"))
    await gate.acquire_slot(build_scope("192.0.2.2"))
    with pytest.raises(Busy) as every:
        await gate.acquire_slot(build_scope("192.0.2.3"))
    assert (own.value.status, every.value.status) == (429, 503)
    assert own.value.retry_after and every.value.retry_after
    first()
    first()  # whoever leaves twice left once
    await gate.acquire_slot(build_scope("192.0.2.3"))
    with pytest.raises(Busy):
        await gate.acquire_slot(build_scope("192.0.2.4"))


async def test_without_limits_nothing_is_counted():
    gate = build_limits(Bus())
    leaving = [await gate.acquire_slot(build_scope("192.0.2.1")) for _ in range(100)]
    assert len(set(leaving)) == 1


async def test_who_has_no_address_counts_in_all_only():
    gate = build_limits(Bus(), connections=5, perAddress=1)
    for _ in range(5):
        await gate.acquire_slot(build_scope(None))
    with pytest.raises(Busy):
        await gate.acquire_slot(build_scope(None))


async def test_one_identity_has_so_many_wherever_it_comes_from():
    gate = build_limits(Bus(), perIdentity=2)
    first = await gate.acquire_slot(build_scope("192.0.2.1"), build_granted("ada"))
    await gate.acquire_slot(build_scope("192.0.2.2"), build_granted("ada"))
    with pytest.raises(Busy) as refused:
        await gate.acquire_slot(build_scope("192.0.2.3"), build_granted("ada"))
    assert refused.value.status == 429 and refused.value.retry_after
    assert gate.refused_counts == {"perIdentity": 1}
    for _ in range(3):  # it harms nobody else, of the same address either
        await gate.acquire_slot(build_scope("192.0.2.1"))
    await gate.acquire_slot(build_scope("192.0.2.1"), build_granted("bob"))
    await gate.acquire_slot(build_scope("192.0.2.1"), build_granted("ada", "certificates"))
    first()
    await gate.acquire_slot(build_scope("192.0.2.3"), build_granted("ada"))
    assert gate.connection_count == 7


async def test_who_is_refused_for_one_limit_has_no_place_under_another():
    gate = build_limits(Bus(), connections=3, perAddress=2, perIdentity=1)
    await gate.acquire_slot(build_scope("192.0.2.1"), build_granted("ada"))
    for _ in range(5):
        with pytest.raises(Busy):
            await gate.acquire_slot(build_scope("192.0.2.1"), build_granted("ada"))
    await gate.acquire_slot(build_scope("192.0.2.1"), build_granted("bob"))
    assert gate.connection_count == 2


async def test_who_is_known_later_counts_from_then_on():
    gate = build_limits(Bus(), perIdentity=1)
    one, other = [await gate.acquire_slot(build_scope("192.0.2.1")) for _ in range(2)]
    for _ in range(2):  # for each stream of its socket
        await one.identify(build_granted("ada"))
    await one.identify(build_granted("ada", "certificates"))
    with pytest.raises(Busy):
        await other.identify(build_granted("ada"))
    await other.identify(build_granted("bob"))
    with pytest.raises(Busy):
        await gate.acquire_slot(build_scope("192.0.2.1"), build_granted("ada", "certificates"))
    one()
    await other.identify(build_granted("ada"))
    await gate.acquire_slot(build_scope("192.0.2.1"), build_granted("ada", "certificates"))
    other()
    other()
    assert gate.connection_count == 1


async def test_an_address_comes_so_often_and_not_more():
    gate = build_limits(Bus(), rate="3/h")
    for address in ("192.0.2.1", "192.0.2.2", "2001:db8::1"):
        for _ in range(3):
            await gate.check_rate(build_scope(address))
    for address in ("192.0.2.1", "2001:db8::2"):
        with pytest.raises(Busy) as refused:
            await gate.check_rate(build_scope(address))
        assert refused.value.status == 429
        assert refused.value.retry_after is not None
        assert 1100 < refused.value.retry_after <= 1210
    for _ in range(10):
        await gate.check_rate(build_scope(None))
    assert gate.refused_counts == {"rate": 2} and gate.connection_count == 0


async def build_shared_limits(
    made: WorkerBuses, kind: type[Limits] = Limits, **settings: Any
) -> tuple[ConnectionCounts, list[Limits]]:
    ledger = serve_counts(made.relay, Settings.model_validate(settings))
    gates = [build_limits(bus, kind, **settings) for bus in made.buses]
    await made.start()
    return ledger, gates


async def enter_all(
    gates: list[Limits], tries: int, address: str = "192.0.2.1", who: Granted = NO_GRANTS
) -> list[Any]:
    """All at once, spread over the workers; who got in, as ways out."""
    asked = (gates[n % len(gates)].acquire_slot(build_scope(address), who) for n in range(tries))
    return await list_admitted(*asked)


async def list_admitted(*attempts: Any) -> list[Any]:
    """What came of those that were not refused."""
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    for each in outcomes:
        if isinstance(each, Exception) and not isinstance(each, Busy):
            raise each
    return [each for each in outcomes if not isinstance(each, Exception)]


async def test_a_storm_on_all_workers_gets_exactly_the_limit_in():
    async with worker_buses(3) as made:
        ledger, gates = await build_shared_limits(made, connections=100, perAddress=70)
        assert len(await enter_all(gates, 300)) == 70
        assert len(await enter_all(gates, 300, "192.0.2.2")) == 30
        assert ledger.total == 100


async def test_an_identity_has_so_many_on_all_workers_together():
    async with worker_buses(3) as made:
        ledger, gates = await build_shared_limits(made, perIdentity=4)
        leaving = await enter_all(gates, 30, who=build_granted("ada"))
        assert len(leaving) == 4 and len(await enter_all(gates, 30, who=build_granted("bob"))) == 4
        sockets: list[ConnectionSlot] = await enter_all(gates, 6)
        assert await list_admitted(*(each.identify(build_granted("ada")) for each in sockets)) == []
        for leave in leaving:
            leave()
        await wait_until(lambda: ledger.total == 10, lambda: f"{ledger.total}")
        known_now = await list_admitted(*(each.identify(build_granted("ada")) for each in sockets))
        assert len(known_now) == 4
        for leave in sockets:
            leave()
        await wait_until(lambda: ledger.total == 4, lambda: f"{ledger.total}")
        assert len(await enter_all(gates, 30, who=build_granted("ada"))) == 4


async def test_a_socket_that_is_known_by_several_records_at_once_counts_once():
    async with worker_buses(2) as made:
        _, gates = await build_shared_limits(made, perIdentity=1)
        (place,) = await enter_all(gates[:1], 1)
        known = await list_admitted(*(place.identify(build_granted("ada")) for _ in range(20)))
        assert len(known) == 20
        place()


@pytest.mark.parametrize("lost", [("over",), ("cancelled", "over"), ("over", "cancelled")])
async def test_a_socket_that_is_lost_while_it_becomes_known_is_not_counted(lost: tuple[str, ...]):
    async with worker_buses(2) as made:
        ledger, gates = await build_shared_limits(made, perIdentity=1)
        (place,) = await enter_all(gates[:1], 1)
        becoming = asyncio.create_task(place.identify(build_granted("ada")))
        await asyncio.sleep(0)
        for each in lost:
            if each == "over":
                place()
            else:
                becoming.cancel()
        await asyncio.gather(becoming, return_exceptions=True)
        await wait_until(lambda: not ledger.get_held(1), lambda: f"{ledger.get_held(1)}")
        assert len(await enter_all(gates, 4, who=build_granted("ada"))) == 1


async def test_an_address_comes_so_often_on_all_workers_together():
    async with worker_buses(3) as made:
        ledger, gates = await build_shared_limits(made, rate="10/h")
        asked = (gates[n % 3].check_rate(build_scope("192.0.2.1")) for n in range(40))
        assert len(await list_admitted(*asked)) == 10
        await gates[0].check_rate(build_scope("192.0.2.2"))
        assert sum(gate.refused_counts["rate"] for gate in gates) == 30
        assert not any(ledger.get_held(worker) for worker in (1, 2, 3))


async def test_who_leaves_one_worker_makes_room_at_another():
    async with worker_buses(3) as made:
        ledger, gates = await build_shared_limits(made, connections=10)
        leaving = await enter_all(gates[:1], 20)
        assert len(leaving) == 10 and await enter_all(gates[1:], 5) == []
        for leave in leaving[:4]:
            leave()
        await wait_until(lambda: ledger.total == 6)
        assert len(await enter_all(gates[1:], 20)) == 4


async def test_what_a_worker_had_is_free_when_it_ends():
    async with worker_buses(3) as made:
        ledger, gates = await build_shared_limits(made, connections=10)
        await enter_all(gates[2:], 10)
        await made.stop_worker(3)
        assert ledger.total == 0
        assert len(await enter_all(gates[:2], 20)) == 10


async def test_a_worker_that_was_cut_off_still_has_what_it_has():
    async with worker_buses(3) as made:
        ledger, gates = await build_shared_limits(made, connections=10)
        leaving = await enter_all(gates[:1], 6)
        made.buses[0].abort_link()
        leaving.pop()()  # while it is away
        await wait_until(lambda: ledger.total == 5, lambda: f"{ledger.total}")
        await made.wait_until_linked()
        await wait_until(lambda: ledger.total == 5, lambda: f"{ledger.total}")
        assert len(await enter_all(gates, 30)) == 5
        for leave in leaving:
            leave()
        await wait_until(lambda: ledger.total == 5, lambda: f"{ledger.total}")


@pytest.mark.parametrize("moment", ["before it is asked", "while it is asked", "once it is in"])
async def test_who_goes_away_while_it_is_let_in_is_not_counted(moment: str):
    async with worker_buses(2) as made:
        ledger, gates = await build_shared_limits(made, connections=1)
        entering = asyncio.create_task(gates[0].acquire_slot(build_scope("192.0.2.1")))
        if moment != "before it is asked":
            await asyncio.sleep(0)
        if moment == "once it is in":
            await wait_until(lambda: ledger.total == 1, interval_s=0)
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)
        if not entering.cancelled():  # it was faster
            entering.result()()
        await wait_until(lambda: ledger.total == 0, lambda: f"{ledger.total}")
        assert len(await enter_all(gates, 4)) == 1


class ImpatientLimits(Limits):
    BUS_TIMEOUT_S = 0.2


async def test_without_the_supervisor_each_admits_its_share():
    async with worker_buses(3) as made:
        _, gates = await build_shared_limits(
            made, ImpatientLimits, connections=9, perAddress=6, rate="6/h"
        )
        await made.relay.close()
        await wait_until(lambda: not any(bus.is_linked for bus in made.buses))
        for gate in gates:
            assert len(await enter_all([gate], 5)) == 2
            assert len(await enter_all([gate], 5, "192.0.2.2")) == 1
            asked = (gate.check_rate(build_scope("192.0.2.1")) for _ in range(5))
            assert len(await list_admitted(*asked)) == 2


async def test_a_supervisor_that_hangs_holds_up_nobody_for_long():
    async with worker_buses(2) as made:
        ledger, gates = await build_shared_limits(made, ImpatientLimits, connections=4)
        # it counts them, and does not say so
        made.relay.links[1].send = lambda *message: None  # type: ignore[method-assign]
        assert len(await enter_all(gates[:1], 3)) == 2
        await made.wait_until_linked()
        await wait_until(lambda: ledger.total == 2, lambda: f"{ledger.total}: counted twice", 60)
        assert len(await enter_all(gates, 6)) == 2
