from __future__ import annotations

import asyncio

import pytest
from support.buses import Host, host
from support.until import until

from gateway.core.produce.idempotency import Key
from gateway.web.exchange.turns import Turns, take_turns

ADA, BOB = Key("orders", "/orders", "ada"), Key("orders", "/orders", "bob")


async def shared(made: Host) -> tuple[dict[Key, int], list[Turns]]:
    holders = take_turns(made.relay)
    turns = [Turns(bus) for bus in made.buses]
    await made.run()
    return holders, turns


async def test_one_worker_at_a_time_has_a_key_and_who_waited_is_told_so():
    async with host(3) as made:
        _, turns = await shared(made)
        having: list[int] = []
        most = 0

        async def write(worker: int) -> bool:
            nonlocal most
            waited = await turns[worker].take(ADA)
            having.append(worker)
            most = max(most, len(having))
            await asyncio.sleep(0)
            having.remove(worker)
            turns[worker].give(ADA)
            return waited

        waited = await asyncio.gather(*(write(worker) for worker in range(3)))
        assert most == 1 and sorted(waited) == [False, True, True]


async def test_another_key_waits_for_nobody():
    async with host(2) as made:
        _, (one, other) = await shared(made)
        assert not await one.take(ADA)
        assert not await other.take(BOB)
        assert not await one.take(ADA)  # of the same worker: it knows itself what is under way


async def test_the_turn_of_a_worker_that_ended_is_another_s():
    async with host(2) as made:
        _, (one, other) = await shared(made)
        await one.take(ADA)
        taking = asyncio.create_task(other.take(ADA))
        done, _ = await asyncio.wait([taking], timeout=0.1)
        assert not done
        await made.end(1)
        assert await taking is True


async def test_who_was_cut_off_keeps_its_turn():
    async with host(2) as made:
        holders, (one, _) = await shared(made)
        await one.take(ADA)
        for _ in range(3):
            made.buses[0].cut()
            await until(lambda: not made.buses[0].linked, every=0)  # it is linked again soon
            await made.linked()
            await until(lambda: holders == {ADA: 1}, lambda: f"{holders}")
        one.give(ADA)
        await until(lambda: not holders)


async def test_who_gives_what_another_has_takes_nothing_away():
    async with host(2) as made:
        holders, (one, other) = await shared(made)
        await one.take(ADA)
        other.give(ADA)
        assert not await other.take(BOB)  # the supervisor has heard of both by now
        assert holders == {ADA: 1, BOB: 2}


async def test_without_the_supervisor_nobody_waits_for_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.web.exchange.turns.PATIENCE", 0.1)
    async with host(2) as made:
        _, (one, other) = await shared(made)
        await made.relay.close()
        await until(lambda: not any(bus.linked for bus in made.buses))
        assert await one.take(ADA) is False and await other.take(ADA) is False
        one.give(ADA)
