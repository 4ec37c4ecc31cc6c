"""A reactive group of two sidecars, three brokers and a back end, all of which fail at random.

GATEWAY_REACTIVE_FAULTS: for how many seconds (20); `make reactive` runs it for long.
GATEWAY_REACTIVE_SEED: which faults, in which order.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
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

SECONDS = float(os.environ.get("GATEWAY_REACTIVE_FAULTS", "20"))
SEED = int(os.environ.get("GATEWAY_REACTIVE_SEED", "1"))
COMMAND = (sys.executable, "-m", "gateway", "sidecar", "-c")
PARTITIONS = 6
POISON = 50  # of so many records the back end refuses one
PAUSES = 0.5, 2.0, 5.0  # seconds between two faults

TRACEBACK = re.compile(r"(?:.*\n){0,2}Traceback(?:.*\n){0,60}")

Step = Callable[[], Awaitable[object] | None]


@pytest.fixture
async def world(kafka3: KafkaCluster) -> AsyncIterator[ReactiveWorld]:
    async with running_backend() as backend:
        world = ReactiveWorld(kafka3, backend, PARTITIONS, replication=3)
        try:
            yield world
        finally:
            kafka3.restore()
            world.close()


async def _call(step: Step) -> None:
    done = step()
    if done is not None:
        await done


class Faults:
    """What may happen, and what has happened. Everything random is drawn from the seed.

    Each fault lasts for some seconds; others happen meanwhile.
    """

    def __init__(self, world: ReactiveWorld, group: str, sidecars: list[GatewayProcess]) -> None:
        self.log: list[str] = []
        self._world, self._group, self._sidecars = world, group, sidecars
        self._draw = random.Random(SEED)
        self._under_way: set[asyncio.Task[None]] = set()
        self._taken: set[object] = set()  # what is failing now
        self._kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "back end": self._fail_back_end,
            "broker frozen": self._freeze_broker,
            "broker killed": self._kill_broker,
            "sidecar frozen": self._freeze_sidecar,
            "sidecar killed": self._kill_sidecar,
            "sidecar ended": self._end_sidecar,
            "seek": self._seek,
            "pause": self._pause,
        }

    async def run(self) -> None:
        """Let things fail until the time is over, and be well again."""
        loop = asyncio.get_running_loop()
        end = loop.time() + SECONDS
        while loop.time() < end:
            name = self._draw.choice(sorted(self._kinds))
            self.log.append(name)
            task = asyncio.create_task(self._kinds[name]())
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            await asyncio.sleep(self._draw.choice(PAUSES))
        await asyncio.gather(*self._under_way)

    async def _fail(
        self,
        what: object,
        begin: Step,
        end: Step,
        seconds: float,
    ) -> None:
        if what in self._taken:
            return
        self._taken.add(what)
        try:
            await _call(begin)
            await asyncio.sleep(seconds)
            await _call(end)
        finally:
            self._taken.discard(what)

    async def _fail_back_end(self) -> None:
        backend, seconds = self._world.backend, self._draw.choice((1.0, 4.0, 12.0))
        orders: list[dict[str, Any]] = [
            {"say": 503, "well": False}, {"say": "hang"}, {"delay": 3.0}, {"delay": 0.3},
        ]  # fmt: skip
        order = self._draw.choice([None, *orders])
        if order is None:
            await self._fail(backend, lambda: backend.kill(), backend.start, seconds)
            return
        well = lambda: backend.set_orders(fail=POISON)  # noqa: E731
        ill = lambda: backend.set_orders(fail=POISON, **order)  # noqa: E731
        await self._fail(backend, ill, well, seconds)

    def _some_broker(self) -> Any:
        assert self._world.kafka.local_kafka is not None
        return self._draw.choice(self._world.kafka.local_kafka.nodes)

    async def _freeze_broker(self) -> None:
        node = self._some_broker()
        await self._fail("broker", node.freeze, node.unfreeze, self._draw.choice((2.0, 8.0)))

    async def _kill_broker(self) -> None:
        node = self._some_broker()
        await self._fail("broker", node.kill, node.start, self._draw.choice((1.0, 5.0)))

    async def _freeze_sidecar(self) -> None:
        one = self._draw.choice(self._sidecars)
        await self._fail(
            one,
            lambda: one.send_signal(signal.SIGSTOP),
            lambda: one.send_signal(signal.SIGCONT),
            self._draw.choice((2.0, 9.0)),
        )

    async def _kill_sidecar(self) -> None:
        one = self._draw.choice(self._sidecars)
        await self._fail(one, one.kill, lambda: one.start(ready=False), 1.0)

    async def _end_sidecar(self) -> None:
        one = self._draw.choice(self._sidecars)
        await self._fail(one, lambda: one.stop(90), lambda: one.start(ready=False), 1.0)

    async def _seek(self) -> None:
        """Back by some records, in partitions of one member."""
        one = self._draw.choice(self._sidecars)
        if one in self._taken:
            return
        async with create_http_client(one) as http:
            with suppress(httpx.HTTPError):
                said = (await http.get(f"/reactive/{self._group}")).json()
                offsets = [
                    {
                        "topic": each["topic"],
                        "partition": each["partition"],
                        "offset": max(0, each["committed"] - self._draw.randrange(30)),
                    }
                    for each in said.get("partitions", ())
                    if each["committed"]
                ]
                if offsets:
                    await http.post(f"/reactive/{self._group}/seek", json={"offsets": offsets})

    async def _pause(self) -> None:
        one = self._draw.choice(self._sidecars)
        if one in self._taken:
            return
        async with create_http_client(one) as http:
            with suppress(httpx.HTTPError):
                await http.post(f"/reactive/{self._group}/pause")
                await asyncio.sleep(2.0)
        await self.resume(one)

    async def resume(self, one: GatewayProcess) -> None:
        """Let a sidecar go on, whatever becomes of it meanwhile."""
        while True:
            async with create_http_client(one) as http:
                with suppress(httpx.HTTPError):
                    if (await http.post(f"/reactive/{self._group}/resume")).status_code == 200:
                        return
            await asyncio.sleep(0.5)


@pytest.mark.night
@pytest.mark.parametrize("protocol", ["consumer", "classic"])
async def test_everything_fails_at_random_and_nothing_is_lost_or_overtaken(
    world: ReactiveWorld, protocol: str, record_property: Any
):
    """Rebalances, seeks, kills, stalls of Kafka and outages of the back end, at once."""
    group = build_settings(
        world.backend,
        world.topic,
        groupProtocol=protocol,
        parallelism=2,
        maxPollRecords=20,
        sessionTimeout="6s",
    )
    config = build_config(
        world.kafka.bootstrap_servers, [], [], sidecar={"reactive": {"groups": group}}
    )
    world.backend.set_orders(fail=POISON)
    async with AsyncExitStack() as stack:
        sidecars = [
            await stack.enter_async_context(running_gateway_process(config, command=COMMAND))
            for _ in range(2)
        ]
        faults = Faults(world, group["group"], sidecars)
        writing = asyncio.create_task(_write(world))
        try:
            await faults.run()
        finally:
            writing.cancel()
            await asyncio.wait([writing])
        await asyncio.to_thread(world.kafka.restore)
        for one in sidecars:
            await one.wait_until_ready()
            await faults.resume(one)
        await world.wait_until_settled(240)
        await _until_committed(world, group["group"])
        logs = [one.log for one in sidecars]
    done, dead = (
        set(get_numbers(world.backend.processed_records)),
        {int(x.header_texts["n"]) for x in await world.read_dead_letters()},
    )
    poison = set(range(0, world.written_count, POISON))
    world.check_order()
    assert dead == poison
    assert done == set(range(world.written_count)) - poison
    print(
        f"{protocol}: {len(faults.log)} faults, {world.written_count} records, "
        f"{len(dead)} dead letters, "
        f"{world.count_repeated()} processed again"
    )
    tracebacks = [found[0] for each in logs if (found := TRACEBACK.search(each))]
    assert not tracebacks, "\n\n".join(tracebacks)


async def _write(world: ReactiveWorld) -> None:
    """About 100 records a second, as long as it is let."""
    while True:
        writing = asyncio.create_task(asyncio.to_thread(world.write_records, 20))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing
            raise
        await asyncio.sleep(0.2)


async def _until_committed(world: ReactiveWorld, group: str) -> None:
    committed = -1
    try:
        async with asyncio.timeout(60):
            while committed != world.written_count:
                committed = await world.fetch_committed(group)
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"{committed} committed of {world.written_count}") from None
