"""Full collections are for what may be garbage, not for what clients keep."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast

from support.virtual_time import in_virtual_time
from support.waiting import wait_until

from gateway.hub.fanout.hubs import Hubs
from gateway.web.app import garbage


@in_virtual_time
async def test_garbage_is_collected_when_more_is_kept_than_new_clients_account_for(monkeypatch):
    checked, collected = list[int](), list[int]()
    pending = 10 * garbage.MAX_PENDING_OBJECTS
    hub: Any = SimpleNamespace(clients=range(pending // garbage.OBJECTS_PER_CLIENT))

    def count() -> int:
        checked.append(pending)
        return pending

    def collect() -> None:
        nonlocal pending
        collected.append(pending)
        pending = 0

    monkeypatch.setattr(garbage, "count_pending_objects", count)
    monkeypatch.setattr(gc, "collect", collect)
    collecting = asyncio.create_task(garbage.collect_garbage_forever(cast("Hubs", [hub])))
    await wait_until(lambda: len(checked) > 3)
    assert not collected  # these are the clients'
    pending += garbage.MAX_PENDING_OBJECTS + 1
    await wait_until(lambda: collected)
    pending = garbage.MAX_PENDING_OBJECTS + 1  # and no client is new any more
    await wait_until(lambda: len(collected) == 2)
    collecting.cancel()


def test_objects_that_are_kept_are_counted():
    threshold, kept = gc.get_threshold(), []
    try:
        gc.collect()
        gc.set_threshold(garbage.NEW_OBJECTS, garbage.YOUNG_COLLECTIONS, garbage.NO_COLLECTIONS)
        for _ in range(300_000):
            kept.append([])
        assert 290_000 < garbage.count_pending_objects() < 310_000
        gc.collect()
        assert garbage.count_pending_objects() < 1000
    finally:
        gc.set_threshold(*threshold)
