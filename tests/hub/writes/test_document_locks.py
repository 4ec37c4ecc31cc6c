"""Locks of the keys of documents, in one process and among several."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from support.gateways import build_config

from gateway.config import Settings, Topic
from gateway.core.produce.idempotency import IdempotencyKey
from gateway.hub.writes.publisher import DocumentKeyLocks


class FakeKeyLocks:
    """Locks that are shared with other processes; notes what is held."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.is_blocked = False

    async def acquire(self, key: IdempotencyKey) -> bool:
        if self.is_blocked:
            await asyncio.sleep(3600)
        self.held.add(key.text)
        return False

    def release(self, key: IdempotencyKey) -> None:
        self.held.discard(key.text)


def create_locks(key_locks: FakeKeyLocks | None = None, **topic: Any) -> DocumentKeyLocks:
    settings = Settings.model_validate(build_config("localhost:1", ["orders"]))
    options = Topic.model_validate({"name": "orders", **topic})
    publisher: Any = SimpleNamespace(key_locks=key_locks)
    return DocumentKeyLocks(publisher, lambda name: options, settings)


async def test_one_writer_at_a_time_has_a_key_and_another_key_does_not_wait():
    locks = create_locks()
    writers, most, others = 0, 0, 0

    async def write_key(key: bytes) -> None:
        nonlocal writers, most, others
        release = await locks.lock_keys("orders", [key])
        writers += key == b"a"
        others += key == b"b" and writers > 0
        most = max(most, writers)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        writers -= key == b"a"
        release()

    await asyncio.gather(*(write_key(b"ab"[n % 2 : n % 2 + 1]) for n in range(40)))
    assert most == 1
    assert others, "another key had to wait"


async def test_a_topic_with_other_keys_in_records_than_in_writes_is_locked_whole():
    locks = create_locks(transforms=[{"extract-key": "${message.value.id}"}])
    release = await locks.lock_keys("orders", [b"a"])
    waiting = asyncio.create_task(locks.lock_keys("orders", [b"b"]))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    release()
    (await waiting)()


async def test_a_writer_that_gives_up_leaves_nothing_locked_here_or_elsewhere():
    shared = FakeKeyLocks()
    locks = create_locks(shared)
    shared.is_blocked = True
    waiting = asyncio.create_task(locks.lock_keys("orders", [b"a"]))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    shared.is_blocked = False
    release = await asyncio.wait_for(locks.lock_keys("orders", [b"a", b"b"]), 5.0)
    assert shared.held == {"a", "b"}
    release()
    assert not shared.held
