from __future__ import annotations

import asyncio

from support.waiting import wait_until
from support.worker_buses import WorkerBuses, worker_buses

from gateway.config import Limits
from gateway.core.produce.idempotency import IdempotencyKey
from gateway.web.http.shared_counts import ConnectionCounts, KeyLocks, SharedCounts, serve_counts

ADA, BOB = IdempotencyKey("orders", "/orders", "ada"), IdempotencyKey("orders", "/orders", "bob")


async def build_shared_locks(
    made: WorkerBuses, kind: type[SharedCounts] = SharedCounts
) -> tuple[ConnectionCounts, list[KeyLocks]]:
    counts = serve_counts(made.relay, Limits())
    turns = [KeyLocks(kind(Limits(), bus)) for bus in made.buses]
    await made.start()
    return counts, turns


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
        counts, (one, _) = await build_shared_locks(made)
        await one.acquire(ADA)
        for _ in range(3):
            made.buses[0].abort_link()
            await wait_until(
                lambda: not made.buses[0].is_linked, interval_s=0
            )  # it is linked again soon
            await made.wait_until_linked()
            await wait_until(lambda: len(counts.get_held(1)) == 1)
        one.release(ADA)
        await wait_until(lambda: not counts.get_held(1))


async def test_who_gives_what_another_has_takes_nothing_away():
    async with worker_buses(2) as made:
        counts, (one, other) = await build_shared_locks(made)
        await one.acquire(ADA)
        other.release(ADA)
        assert not await other.acquire(BOB)  # the supervisor has heard of both by now
        assert len(counts.get_held(1)) == len(counts.get_held(2)) == 1


class ImpatientCounts(SharedCounts):
    BUS_TIMEOUT_S = 0.1


async def test_without_the_supervisor_nobody_waits_for_long():
    async with worker_buses(2) as made:
        _, (one, other) = await build_shared_locks(made, ImpatientCounts)
        await made.relay.close()
        await wait_until(lambda: not any(bus.is_linked for bus in made.buses))
        assert await one.acquire(ADA) is False and await other.acquire(ADA) is False
        one.release(ADA)


async def test_a_lock_that_is_given_up_while_it_is_asked_for_is_free():
    """A writer releases its key in any case, also if it never had it."""
    async with worker_buses(2) as made:
        counts, (one, other) = await build_shared_locks(made)
        asking = asyncio.create_task(one.acquire(ADA))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        one.release(ADA)
        await other.acquire(ADA)
        await wait_until(lambda: not counts.get_held(1))
        assert len(counts.get_held(2)) == 1
