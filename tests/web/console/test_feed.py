"""Events for those who watch: all at first, then what changed, and all again if they are slow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from support.virtual_time import in_virtual_time
from support.waiting import WAIT_TIMEOUT_S, wait_until
from support.worker_buses import worker_buses

from gateway.telemetry.counts import LATENCY_BUCKETS_S
from gateway.web.console.console import MAX_PENDING_EVENTS, Feed
from gateway.web.console.worker_report import BUS_TOPIC, KNOWN_NOTHING
from gateway.web.workers.bus import Bus

NONE = [0] * (len(LATENCY_BUCKETS_S) + 1)


class Reports:
    """A worker whose one partition has another state in every report."""

    def __init__(self, bus: Bus) -> None:
        self.bus, self.count = bus, 0
        self.known: list[Any] = []
        bus.add_handler(BUS_TOPIC, self.answer)

    def answer(self, worker: int, known: Mapping[str, Any]) -> dict[str, Any]:
        self.known.append(tuple(known[str(self.bus.worker)]))
        self.count += 1
        row = ("", "orders", self.bus.worker, "ready", None, float(self.count), None, 0, 1)
        return {
            "instance": "a",
            "version": self.count,
            "rows": [row],
            "removed": [],
            "incidentLog": "log",
            "incident": 0,
            "incidents": [],
            "samples": [],
            "counters": (float(self.count), 0, 0, 0, NONE, NONE),
            "reachable": {"": True},
            **dict.fromkeys(
                ("clients", "websockets", "behind", "rss", "memory", "memoryLimit", "pid"), 0
            ),
            "started": 1.0,
        }


async def read_event(events: AsyncIterator[bytes]) -> tuple[str, dict[str, Any]]:
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        text = (await anext(events)).decode()
    name, _, data = text.split("\n\n")[0].partition("\ndata: ")
    return name.removeprefix("event: "), json.loads(data)


async def test_it_begins_with_a_snapshot_and_goes_on_with_what_changed():
    bus = Bus()
    reports, feed = Reports(bus), Feed(bus)
    events = feed.watch(WAIT_TIMEOUT_S)
    assert (await anext(events)).startswith(b"retry: ")
    name, snapshot = await read_event(events)
    assert name == "snapshot" and [row[2] for row in snapshot["partitions"]] == [1]
    name, delta = await read_event(events)
    assert name == "delta" and delta["partitions"][0][5] > snapshot["partitions"][0][5]
    assert reports.known[:2] == [KNOWN_NOTHING, ("a", 1, "log", 0, 0)]
    await events.aclose()


async def test_nobody_is_asked_while_nobody_watches():
    bus = Bus()
    reports, feed = Reports(bus), Feed(bus)
    for _ in range(2):
        events = feed.watch(WAIT_TIMEOUT_S)
        await anext(events)
        await read_event(events)
        await events.aclose()
        await wait_until(lambda: not feed.is_running, "the end of the questions", WAIT_TIMEOUT_S)
    # Each began with knowing nothing.
    assert reports.known.count(KNOWN_NOTHING) == 2


@in_virtual_time
async def test_who_is_too_slow_gets_a_snapshot():
    bus = Bus()
    reports, feed = Reports(bus), Feed(bus)
    events = feed.watch(2 * WAIT_TIMEOUT_S)
    await anext(events)
    await read_event(events)
    await wait_until(
        lambda: reports.count > MAX_PENDING_EVENTS + 3, "that it is behind", 2 * WAIT_TIMEOUT_S
    )
    assert (await read_event(events))[0] == "snapshot"
    assert (await read_event(events))[0] == "delta"
    await events.aclose()


async def test_it_ends_when_the_time_is_up_and_when_it_is_closed():
    bus = Bus()
    Reports(bus)
    feed = Feed(bus)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        assert [event async for event in feed.watch(0.2)]
        events = feed.watch(WAIT_TIMEOUT_S)
        await anext(events)
        feed.close()
        assert not [event async for event in events]


async def test_all_workers_are_asked():
    async with worker_buses(3) as made:
        for bus in made.buses:
            Reports(bus)
        await made.start()
        events = Feed(made.buses[1]).watch(WAIT_TIMEOUT_S)
        await anext(events)
        _, snapshot = await read_event(events)
        assert sorted(row[2] for row in snapshot["partitions"]) == [1, 2, 3]
        await events.aclose()


async def test_viewers_that_come_together_all_begin_with_what_is_known():
    """Each replaced what the others had asked for, and most were sent a snapshot without rows."""
    async with worker_buses(2) as made:
        reports = [Reports(bus) for bus in made.buses]
        await made.start()
        feed = Feed(made.buses[0])
        viewers = [feed.watch(WAIT_TIMEOUT_S) for _ in range(6)]

        async def read_snapshot(events: AsyncIterator[bytes]) -> dict[str, Any]:
            await anext(events)
            return (await read_event(events))[1]

        for snapshot in await asyncio.gather(*map(read_snapshot, viewers)):
            assert sorted(row[2] for row in snapshot["partitions"]) == [1, 2]
        assert [each.known.count(KNOWN_NOTHING) for each in reports] == [1, 1]
        for events in viewers:
            await events.aclose()
