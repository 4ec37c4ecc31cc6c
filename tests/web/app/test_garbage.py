"""Full collections are for processes with few clients."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.waiting import wait_until

from gateway.hub.fanout.hubs import Hubs
from gateway.web.app import garbage


async def test_garbage_is_collected_only_while_there_are_few_clients(
    monkeypatch: pytest.MonkeyPatch,
):
    client_counts = list[int]()
    hub: Any = SimpleNamespace(clients=range(garbage.MAX_CLIENTS_OF_FULL_COLLECTION + 1))
    monkeypatch.setattr(garbage, "FULL_COLLECTION_INTERVAL_S", 0.001)
    monkeypatch.setattr(gc, "collect", lambda: client_counts.append(len(hub.clients)))
    collecting = asyncio.create_task(garbage.collect_garbage_forever(cast("Hubs", [hub])))
    await asyncio.sleep(0.05)
    hub.clients = range(3)
    await wait_until(lambda: client_counts)
    collecting.cancel()
    assert set(client_counts) == {3}
