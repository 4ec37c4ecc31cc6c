"""The sidecar and the back end that it calls, both processes, whatever becomes of either.

GATEWAY_REACTIVE_RECORDS: how many go through it all (2,000); GATEWAY_REACTIVE_AWAY: seconds for
which the back end is away (1). `make reactive` runs both for long.
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
from support.brokers import KafkaCluster
from support.gateways import (
    GatewayProcess,
    build_config,
    create_http_client,
    running_gateway_process,
)
from support.reactive import ReactiveWorld, build_settings, get_numbers
from support.sidecars import running_sidecar
from support.waiting import wait_until

RECORDS = int(os.environ.get("GATEWAY_REACTIVE_RECORDS", "2000"))
AWAY = float(os.environ.get("GATEWAY_REACTIVE_AWAY", "1"))
SIDECAR = (sys.executable, "-m", "gateway", "sidecar", "-c")
SESSION = {"groupProtocol": "classic", "sessionTimeout": "6s"}


@pytest.fixture
async def world(kafka: KafkaCluster) -> AsyncIterator[ReactiveWorld]:
    async with running_backend() as backend:
        world = ReactiveWorld(kafka, backend, partition_count=6)
        try:
            yield world
        finally:
            world.close()


@asynccontextmanager
async def sidecar(world: ReactiveWorld, group: dict[str, Any]) -> AsyncIterator[GatewayProcess]:
    config = build_config(
        world.kafka.bootstrap_servers, [], [], sidecar={"reactive": {"groups": group}}
    )
    async with running_gateway_process(config, command=SIDECAR) as process:
        yield process


async def state(gateway: GatewayProcess, group: dict[str, Any]) -> dict[str, Any]:
    async with create_http_client(gateway) as http:
        answer = await http.get(f"/reactive/{group['group']}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


async def until_committed(world: ReactiveWorld, group: dict[str, Any], offsets: int) -> None:
    async with asyncio.timeout(60):
        while await world.fetch_committed(group["group"]) != offsets:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def until_under_way(gateway: GatewayProcess, group: dict[str, Any]) -> None:
    async with asyncio.timeout(60):
        while True:
            if any(lane["underWay"] for lane in (await state(gateway, group))["lanes"]):
                return
            await asyncio.sleep(0.02)


async def until_called(world: ReactiveWorld, more: int) -> None:
    before = len(world.backend.calls)
    await wait_until(lambda: len(world.backend.calls) >= before + more, f"{more} calls", 60)


async def until_done(world: ReactiveWorld, more: int) -> None:
    """So many records beyond those that are processed now, or all that can be."""
    before = len(set(get_numbers(world.backend.processed_records)))
    goal = min(before + more, world.written_count * 9 // 10)
    await wait_until(
        lambda: len(set(get_numbers(world.backend.processed_records))) >= goal,
        f"{goal} records",
        60,
        0.05,
    )


async def test_every_record_is_processed_or_a_dead_letter_whatever_happens(
    world: ReactiveWorld, record_property: Any
):
    """A back end that fails a tenth of the records, dies, talks garbage and hangs; a sidecar that
    is killed amid a batch."""
    group = build_settings(world.backend, world.topic, parallelism=2, maxRetries=4, **SESSION)
    group["backend"]["timeout"] = "500ms"
    kills = max(1, RECORDS // 5000)
    part = RECORDS // (6 + kills)
    world.backend.set_orders(fail=10)
    async with sidecar(world, group) as gateway:
        world.write_records(part)
        await until_done(world, part // 4)
        for say in ("garbage", "hang", "short"):
            world.backend.set_orders(fail=10, say=say)
            world.write_records(part)
            await until_called(world, 2)
            world.backend.set_orders(fail=10)
            await until_done(world, part // 4)
        world.backend.kill()
        world.write_records(part)
        await asyncio.sleep(AWAY)  # not a wait for anything: it is away as long
        await world.backend.start()
        for _ in range(kills):
            world.backend.set_orders(fail=10, delay=0.2)
            world.write_records(part)
            await until_under_way(gateway, group)
            await until_called(world, 1)
            await gateway.kill()
            world.backend.set_orders(fail=10)
            await gateway.restart(ready=False)
        world.write_records(RECORDS - world.written_count)
        await world.wait_until_settled(120)
        await until_committed(world, group, RECORDS)
    world.check_order()
    dead = {int(each.header_texts["n"]) for each in await world.read_dead_letters()}
    assert dead >= set(range(0, RECORDS, 10)), "those that fail are dead letters"
    repeated, unexplained = world.count_repeated(), world.list_unexplained()
    record_property("repeated", repeated)
    record_property("unexplained", len(unexplained))
    print(f"{RECORDS} records, {repeated} processed again, {len(unexplained)} by {kills} kills")


async def test_a_back_end_that_is_away_for_long_makes_no_dead_letters(world: ReactiveWorld):
    group = build_settings(world.backend, world.topic, maxRetries=1)
    async with sidecar(world, group) as gateway:
        world.write_records(50)
        await world.wait_until_settled()
        await _until_counted(gateway, group, 50)  # an answer that is lost would be asked for again
        world.backend.kill()
        world.write_records(50)
        await asyncio.sleep(AWAY)  # not a wait for anything: it is away as long
        assert "is not there" in str((await state(gateway, group))["lanes"])
        await world.backend.start()
        await world.wait_until_settled(120)
        await _until_counted(gateway, group, 100)
        assert (await state(gateway, group))["deadLetters"] == 0
    assert not world.kafka.admin.topic_exists(world.dead_topic)
    world.check_order()
    assert world.count_repeated() == 0


async def test_a_sidecar_that_is_ended_finishes_its_batch_commits_and_leaves(world: ReactiveWorld):
    group = build_settings(world.backend, world.topic)
    world.write_records(40)
    world.backend.set_orders(delay=0.5)
    async with sidecar(world, group) as gateway:
        await until_under_way(gateway, group)
        assert await gateway.stop() == 0
        done = len(world.backend.processed_records)
        assert done, "what was under way was waited for"
        assert await world.fetch_committed(group["group"]) == done
        world.backend.set_orders()
        await gateway.start()
        await world.wait_until_settled(20)  # long before a session would be over: 45 s
    world.check_order()
    assert world.count_repeated() == 0


@pytest.mark.parametrize("protocol", ["consumer", pytest.param("classic", marks=pytest.mark.night)])
async def test_a_member_that_was_thought_gone_commits_nothing_of_what_is_anothers(
    world: ReactiveWorld, protocol: str
):
    """Frozen for longer than its session, amid a batch."""
    group = build_settings(world.backend, world.topic, groupProtocol=protocol, sessionTimeout="3s")
    world.write_records(60)
    world.backend.set_orders(delay=1.0)
    async with sidecar(world, group) as frozen:
        await until_under_way(frozen, group)
        frozen.send_signal(signal.SIGSTOP)
        world.backend.set_orders()
        async with _member(world, group) as other:
            await _shared([other], group)
            world.write_records(60)
            await world.wait_until_settled()
            await until_committed(world, group, 120)
            frozen.send_signal(signal.SIGCONT)
            await wait_until(lambda: "lost" in frozen.log, "its loss", 60)
            await _shared([other, (http := create_http_client(frozen))], group)
            await http.aclose()
            assert await world.fetch_committed(group["group"]) == 120
    world.check_order()


@pytest.mark.parametrize("protocol", ["consumer", pytest.param("classic", marks=pytest.mark.night)])
async def test_members_come_and_go_under_load_and_no_record_is_lost_or_overtaken(
    world: ReactiveWorld, protocol: str
):
    group = build_settings(
        world.backend, world.topic, groupProtocol=protocol, parallelism=2, maxPollRecords=20
    )
    # Longer than a busy machine takes: what is not answered in time is processed again.
    group["backend"]["timeout"] = "60s"
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
        await world.wait_until_settled()
        await until_committed(world, group, RECORDS)
    assert not world.kafka.admin.topic_exists(world.dead_topic)
    world.check_order()
    print(f"{protocol}: {RECORDS} records, {world.count_repeated()} processed again")
    assert world.count_repeated() == 0, "who gives up a partition finishes and commits first"


async def _trickle(world: ReactiveWorld, count: int) -> None:
    """At a pace that lasts for some seconds."""
    while world.written_count < count:
        await asyncio.to_thread(world.write_records, min(count // 50, count - world.written_count))
        await asyncio.sleep(0.15)


@asynccontextmanager
async def _member(world: ReactiveWorld, group: dict[str, Any]) -> AsyncIterator[httpx.AsyncClient]:
    async with running_sidecar(world.kafka.bootstrap, reactive={"groups": group}) as http:
        yield http


async def _until_counted(gateway: GatewayProcess, group: dict[str, Any], processed: int) -> None:
    """Until the sidecar counts so many. The back end had them before that."""
    async with asyncio.timeout(60):
        while True:
            if (await state(gateway, group))["processed"] == processed:
                return
            await asyncio.sleep(0.05)


async def _shared(members: list[httpx.AsyncClient], group: dict[str, Any]) -> None:
    """Until each partition has one owner, and each member its share."""
    async with asyncio.timeout(60):
        while True:
            said = [(await each.get(f"/reactive/{group['group']}")).json() for each in members]
            counts = sorted(len(each["partitions"]) for each in said)
            if sum(counts) == 6 and counts[-1] - counts[0] <= 1:
                return
            await asyncio.sleep(0.05)
