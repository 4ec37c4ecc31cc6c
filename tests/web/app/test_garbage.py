"""Full collections are for what may be garbage, not for what clients keep."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast

from support.virtual_time import in_virtual_time
from support.waiting import wait_until

from gateway.hub.fanout.hubs import Hubs
from gateway.web.app import app


@in_virtual_time
async def test_garbage_is_collected_when_more_is_kept_than_new_clients_account_for(monkeypatch):
    checked, collected = list[int](), list[int]()
    pending = 10 * app.MAX_PENDING_OBJECTS
    hub: Any = SimpleNamespace(clients=range(pending // app.OBJECTS_PER_CLIENT))

    def count() -> int:
        checked.append(pending)
        return pending

    def collect() -> None:
        nonlocal pending
        collected.append(pending)
        pending = 0

    monkeypatch.setattr(app, "count_pending_objects", count)
    monkeypatch.setattr(gc, "collect", collect)
    collecting = asyncio.create_task(app.collect_garbage_forever(cast("Hubs", [hub])))
    await wait_until(lambda: len(checked) > 3)
    assert not collected  # these are the clients'
    pending += app.MAX_PENDING_OBJECTS + 1
    await wait_until(lambda: collected)
    pending = app.MAX_PENDING_OBJECTS + 1  # and no client is new any more
    await wait_until(lambda: len(collected) == 2)
    collecting.cancel()


def test_objects_that_are_kept_are_counted():
    threshold, kept = gc.get_threshold(), []
    try:
        gc.collect()
        gc.set_threshold(app.NEW_OBJECTS, app.YOUNG_COLLECTIONS, app.NO_COLLECTIONS)
        for _ in range(300_000):
            kept.append([])
        assert 290_000 < app.count_pending_objects() < 310_000
        gc.collect()
        assert app.count_pending_objects() < 1000
    finally:
        gc.set_threshold(*threshold)
