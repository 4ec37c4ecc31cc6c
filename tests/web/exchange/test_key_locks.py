from __future__ import annotations

import asyncio

from support.waiting import wait_until
from support.worker_buses import WorkerBuses, worker_buses

from gateway.core.produce.idempotency import IdempotencyKey
from gateway.web.exchange.key_locks import KeyLocks, serve_key_locks

ADA, BOB = IdempotencyKey("orders", "/orders", "ada"), IdempotencyKey("orders", "/orders", "bob")


async def build_shared_locks(
    made: WorkerBuses, kind: type[KeyLocks] = KeyLocks
) -> tuple[dict[IdempotencyKey, int], list[KeyLocks]]:
    holders = serve_key_locks(made.relay)
    turns = [kind(bus) for bus in made.buses]
    await made.start()
    return holders, turns


async def test_one_worker_at_a_time_has_a_key_and_who_waited_is_told_so():
    async with worker_buses(3) as made:
        _, turns = await build_shared_locks(made)
        having: list[int] = []
        most = 0

        async def hold_key(worker: int) -> bool:
            nonlocal most
            waited = await turns[worker].acquire(ADA)
            having.append(worker)
            most = max(most, len(having))
            await asyncio.sleep(0)
            having.remove(worker)
            turns[worker].release(ADA)
            return waited

        waited = await asyncio.gather(*(hold_key(worker) for worker in range(3)))
        assert most == 1 and sorted(waited) == [False, True, True]


async def test_another_key_waits_for_nobody():
    async with worker_buses(2) as made:
        _, (one, other) = await build_shared_locks(made)
        assert not await one.acquire(ADA)
        assert not await other.acquire(BOB)
        assert not await one.acquire(ADA)  # of the same worker: it knows itself what is under way


async def test_the_turn_of_a_worker_that_ended_is_another_s():
    async with worker_buses(2) as made:
        _, (one, other) = await build_shared_locks(made)
        await one.acquire(ADA)
        taking = asyncio.create_task(other.acquire(ADA))
        done, _ = await asyncio.wait([taking], timeout=0.1)
        assert not done
        await made.stop_worker(1)
        assert await taking is True


async def test_who_was_cut_off_keeps_its_turn():
    async with worker_buses(2) as made:
        holders, (one, _) = await build_shared_locks(made)
        await one.acquire(ADA)
        for _ in range(3):
            made.buses[0].abort_link()
            await wait_until(
                lambda: not made.buses[0].is_linked, interval_s=0
            )  # it is linked again soon
            await made.wait_until_linked()
            await wait_until(lambda: holders == {ADA: 1}, lambda: f"{holders}")
        one.release(ADA)
        await wait_until(lambda: not holders)


async def test_who_gives_what_another_has_takes_nothing_away():
    async with worker_buses(2) as made:
        holders, (one, other) = await build_shared_locks(made)
        await one.acquire(ADA)
        other.release(ADA)
        assert not await other.acquire(BOB)  # the supervisor has heard of both by now
        assert holders == {ADA: 1, BOB: 2}


class ImpatientKeyLocks(KeyLocks):
    BUS_TIMEOUT_S = 0.1


async def test_without_the_supervisor_nobody_waits_for_long():
    async with worker_buses(2) as made:
        _, (one, other) = await build_shared_locks(made, ImpatientKeyLocks)
        await made.relay.close()
        await wait_until(lambda: not any(bus.is_linked for bus in made.buses))
        assert await one.acquire(ADA) is False and await other.acquire(ADA) is False
        one.release(ADA)
