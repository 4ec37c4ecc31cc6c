"""The sidecar and the back end that it calls, both processes, whatever becomes of either.

GATEWAY_REACTIVE_RECORDS: how many go through it all (2,000); GATEWAY_REACTIVE_AWAY: seconds for
which the back end is away (3). `make reactive` runs both for long.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from support.backend import running_backend
from support.brokers import Broker
from support.gateways import Gateway, browsing, config_for, running_gateway
from support.reactive import World, numbers, settings
from support.sidecars import running_sidecar
from support.until import until

RECORDS = int(os.environ.get("GATEWAY_REACTIVE_RECORDS", "2000"))
AWAY = float(os.environ.get("GATEWAY_REACTIVE_AWAY", "3"))
SIDECAR = (sys.executable, "-m", "gateway", "sidecar", "-c")
SESSION = {"groupProtocol": "classic", "sessionTimeout": "6s"}  # the shortest brokers take


@pytest.fixture
async def world(kafka: Broker) -> AsyncIterator[World]:
    async with running_backend() as backend:
        world = World(kafka, backend, partitions=6)
        try:
            yield world
        finally:
            world.close()


@asynccontextmanager
async def sidecar(world: World, group: dict[str, Any]) -> AsyncIterator[Gateway]:
    config = config_for(world.kafka.servers, [], [], sidecar={"reactive": {"groups": group}})
    async with running_gateway(config, command=SIDECAR) as process:
        yield process


async def state(gateway: Gateway, group: dict[str, Any]) -> dict[str, Any]:
    async with browsing(gateway) as http:
        answer = await http.get(f"/reactive/{group['group']}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


async def until_committed(world: World, group: dict[str, Any], offsets: int) -> None:
    async with asyncio.timeout(60):
        while await world.committed(group["group"]) != offsets:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def until_under_way(gateway: Gateway, group: dict[str, Any]) -> None:
    async with asyncio.timeout(60):
        while True:
            if any(lane["underWay"] for lane in (await state(gateway, group))["lanes"]):
                return
            await asyncio.sleep(0.02)


async def until_called(world: World, more: int) -> None:
    before = len(world.backend.calls)
    await until(lambda: len(world.backend.calls) >= before + more, f"{more} calls", 60)


async def until_done(world: World, more: int) -> None:
    """So many records beyond those that are processed now, or all that can be."""
    before = len(set(numbers(world.backend.done)))
    goal = min(before + more, world.written * 9 // 10)
    await until(lambda: len(set(numbers(world.backend.done))) >= goal, f"{goal} records", 60, 0.05)


async def test_every_record_is_processed_or_a_dead_letter_whatever_happens(
    world: World, record_property: Any
):
    """A back end that fails a tenth of the records, dies, talks garbage and hangs; a sidecar that
    is killed amid a batch."""
    group = settings(world.backend, world.topic, parallelism=2, maxRetries=4, **SESSION)
    group["backend"]["timeout"] = "500ms"
    kills = max(1, RECORDS // 5000)
    part = RECORDS // (6 + kills)
    world.backend.order(fail=10)
    async with sidecar(world, group) as gateway:
        world.write(part)
        await until_done(world, part // 4)
        for say in ("garbage", "hang", "short"):
            world.backend.order(fail=10, say=say)
            world.write(part)
            await until_called(world, 2)
            world.backend.order(fail=10)
            await until_done(world, part // 4)
        world.backend.kill()
        world.write(part)
        await asyncio.sleep(AWAY)  # not a wait for anything: it is away as long
        await world.backend.start()
        for _ in range(kills):
            world.backend.order(fail=10, delay=0.2)
            world.write(part)
            await until_under_way(gateway, group)
            await until_called(world, 1)
            await gateway.kill()
            world.backend.order(fail=10)
            await gateway.restart(ready=False)
        world.write(RECORDS - world.written)
        await world.settled(120)
        await until_committed(world, group, RECORDS)
    world.check_order()
    dead = {int(each.said["n"]) for each in await world.dead()}
    assert dead >= set(range(0, RECORDS, 10)), "those that fail are dead letters"
    repeated, unexplained = world.repeated(), world.unexplained()
    record_property("repeated", repeated)
    record_property("unexplained", len(unexplained))
    print(f"{RECORDS} records, {repeated} processed again, {len(unexplained)} by {kills} kills")
    # what was answered and not yet committed when the sidecar was killed: at most the batch under
    # way and the one before it, of each lane
    assert len(unexplained) <= 2 * kills * group["parallelism"] * 100


async def test_a_back_end_that_is_away_for_long_makes_no_dead_letters(world: World):
    group = settings(world.backend, world.topic, maxRetries=1)
    async with sidecar(world, group) as gateway:
        world.write(50)
        await world.settled()
        world.backend.kill()
        world.write(50)
        await asyncio.sleep(AWAY)  # not a wait for anything: it is away as long
        assert "is not there" in str((await state(gateway, group))["lanes"])
        await world.backend.start()
        await world.settled(120)
        said = await state(gateway, group)
        assert (said["processed"], said["deadLetters"]) == (100, 0)
    assert not world.kafka.admin.exists(world.dead_topic)
    world.check_order()
    assert world.repeated() == 0


async def test_a_sidecar_that_is_ended_finishes_its_batch_commits_and_leaves(world: World):
    group = settings(world.backend, world.topic)
    world.write(40)
    world.backend.order(delay=0.5)
    async with sidecar(world, group) as gateway:
        await until_under_way(gateway, group)
        assert await gateway.stop() == 0
        done = len(world.backend.done)
        assert done, "what was under way was waited for"
        assert await world.committed(group["group"]) == done
        world.backend.order()
        await gateway.start()
        await world.settled(20)  # long before a session would be over: 45 s
    world.check_order()
    assert world.repeated() == 0


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
async def test_a_member_that_was_thought_gone_commits_nothing_of_what_is_anothers(
    world: World, protocol: str
):
    """Frozen for longer than its session, amid a batch."""
    group = settings(world.backend, world.topic, **(SESSION | {"groupProtocol": protocol}))
    world.write(60)
    world.backend.order(delay=1.0)
    async with sidecar(world, group) as frozen:
        await until_under_way(frozen, group)
        frozen.signal(signal.SIGSTOP)
        world.backend.order()
        async with _member(world, group) as other:
            await _shared([other], group)
            world.write(60)
            await world.settled()
            await until_committed(world, group, 120)
            frozen.signal(signal.SIGCONT)
            await until(lambda: "lost" in frozen.log, "its loss", 60)
            await _shared([other, (http := browsing(frozen))], group)
            await http.aclose()
            assert await world.committed(group["group"]) == 120
    world.check_order()


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
async def test_members_come_and_go_under_load_and_no_record_is_lost_or_overtaken(
    world: World, protocol: str
):
    group = settings(
        world.backend, world.topic, groupProtocol=protocol, parallelism=2, maxPollRecords=20
    )
    writing = asyncio.create_task(_trickle(world, RECORDS))
    async with AsyncExitStack() as first, AsyncExitStack() as last:
        members = [await first.enter_async_context(_member(world, group))]
        for _ in range(2):
            await until_done(world, RECORDS // 12)
            members.append(await last.enter_async_context(_member(world, group)))
            await _shared(members, group)
        await until_done(world, RECORDS // 12)
        await first.aclose()
        del members[0]
        await _shared(members, group)
        await until_done(world, RECORDS // 12)
        async with _member(world, group) as another:
            await _shared([*members, another], group)
            await until_done(world, RECORDS // 12)
        await writing
        await world.settled()
        await until_committed(world, group, RECORDS)
    assert not world.kafka.admin.exists(world.dead_topic)
    world.check_order()
    print(f"{protocol}: {RECORDS} records, {world.repeated()} processed again")
    assert world.repeated() == 0, "who gives up a partition finishes and commits first"


async def _trickle(world: World, count: int) -> None:
    """At a pace that lasts for some seconds."""
    while world.written < count:
        await asyncio.to_thread(world.write, min(count // 50, count - world.written))
        await asyncio.sleep(0.15)


@asynccontextmanager
async def _member(world: World, group: dict[str, Any]) -> AsyncIterator[httpx.AsyncClient]:
    async with running_sidecar(world.kafka.bootstrap, reactive={"groups": group}) as http:
        yield http


async def _shared(members: list[httpx.AsyncClient], group: dict[str, Any]) -> None:
    """Until each partition has one owner, and each member its share."""
    async with asyncio.timeout(60):
        while True:
            said = [(await each.get(f"/reactive/{group['group']}")).json() for each in members]
            counts = sorted(len(each["partitions"]) for each in said)
            if sum(counts) == 6 and counts[-1] - counts[0] <= 1:
                return
            await asyncio.sleep(0.05)
