"""Lock an idempotency key across workers, so that only one of them writes its record at a time.

Every worker sees the records that are in Kafka, but not those that another worker is about to
write. While a partition has no leader, a client that is disconnected and repeats its record may
have one in flight at each worker, and all of them would be written: in a measurement, 2 of 10 were.
So a worker acquires the key from the supervisor, and if it had to wait, it looks for the record in
the log again. That costs a record with a key 0.3 ms. While the supervisor is away, the log alone
decides. The keys of documents, whose writes may have conditions, are locked in the same way.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from gateway.core.produce.idempotency import IdempotencyKey
from gateway.web.workers.bus import Bus, SupervisorUnavailable
from gateway.web.workers.relay import Relay

BUS_TOPIC = "turns"
RETRY_DELAY_RANGE_S = (0.005, 0.1)  # the first and the longest delay between two requests


class KeyLocks:
    """The locks that one worker of several holds, or is asking for.

    The supervisor grants them (`serve_key_locks`). When the worker joins the bus again, it reports
    the keys that it holds.
    """

    BUS_TIMEOUT_S = 1.0  # seconds for the supervisor to answer

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._held_keys: set[IdempotencyKey] = set()
        bus.join_callbacks.append(self._on_joined)

    async def acquire(self, key: IdempotencyKey) -> bool:
        """Wait for a key; return whether another worker held it and may have written its record."""
        had_to_wait, delay_s = False, RETRY_DELAY_RANGE_S[0]
        while not await self._request_key(key):
            had_to_wait = True
            await asyncio.sleep(random.uniform(delay_s / 2, delay_s))
            delay_s = min(2 * delay_s, RETRY_DELAY_RANGE_S[1])
        return had_to_wait

    async def _request_key(self, key: IdempotencyKey) -> bool:
        # Added before the call: if the bus reconnects meanwhile, the key is reported as held.
        self._held_keys.add(key)
        granted = True
        try:
            if await self._bus.wait_until_linked(self.BUS_TIMEOUT_S):
                granted = await self._bus.call_supervisor(
                    BUS_TOPIC, {"take": key}, timeout_s=self.BUS_TIMEOUT_S
                )
        except SupervisorUnavailable:
            pass
        if not granted:
            self._held_keys.discard(key)
        return granted

    def release(self, key: IdempotencyKey) -> None:
        self._held_keys.discard(key)
        self._bus.notify_supervisor(BUS_TOPIC, {"give": key})

    def _on_joined(self) -> None:
        self._bus.notify_supervisor(BUS_TOPIC, {"held": list(self._held_keys)})


def serve_key_locks(relay: Relay) -> dict[IdempotencyKey, int]:
    """Let a supervisor grant the locks of its workers; return the live map of holders."""
    holders: dict[IdempotencyKey, int] = {}

    def handle_call(worker: int, message: Mapping[str, Any]) -> bool:
        match message:
            case {"take": key}:
                return holders.setdefault(IdempotencyKey(*key), worker) == worker
            case {"give": key} if holders.get(IdempotencyKey(*key)) == worker:
                del holders[IdempotencyKey(*key)]
            case {"held": keys}:
                release_all(worker)
                for key in keys:
                    holders.setdefault(IdempotencyKey(*key), worker)
        return True

    def release_all(worker: int) -> None:
        for key in [key for key, holder in holders.items() if holder == worker]:
            del holders[key]

    relay.add_handler(BUS_TOPIC, handle_call)
    relay.leave_callbacks.append(release_all)
    return holders
