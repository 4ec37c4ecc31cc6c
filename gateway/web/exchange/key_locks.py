"""One worker at a time writes the record of an idempotency key.

What is in Kafka every worker sees (`hub.seen`); what another is just about to write nobody does.
While a partition has no leader, a client that is cut and repeats its record may have one under
way at each worker, and all of them would be written: 2 of 10 were, here. So a worker asks the
supervisor for its turn, and who had to wait for it looks into the log again. That costs a keyed
record 0.3 ms. While the supervisor is away, the log alone decides.
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
BUS_TIMEOUT_S = 1.0  # seconds for the supervisor to answer
RETRY_DELAY_RANGE_S = (0.005, 0.1)  # seconds until it is asked again: first, longest


class KeyLocks:
    """The turns of one worker."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._held_keys: set[IdempotencyKey] = set()
        bus.join_callbacks.append(self._on_joined)

    async def acquire(self, key: IdempotencyKey) -> bool:
        """Return once it is this worker's turn; True if it was another's until then."""
        waited, wait = False, RETRY_DELAY_RANGE_S[0]
        while not await self._request_key(key):
            waited = True
            await asyncio.sleep(random.uniform(wait / 2, wait))
            wait = min(2 * wait, RETRY_DELAY_RANGE_S[1])
        return waited

    async def _request_key(self, key: IdempotencyKey) -> bool:
        self._held_keys.add(key)
        granted = True
        try:
            if await self._bus.wait_until_linked(BUS_TIMEOUT_S):
                granted = await self._bus.call_supervisor(
                    BUS_TOPIC, {"take": key}, timeout_s=BUS_TIMEOUT_S
                )
        except SupervisorUnavailable:
            pass
        if not granted:
            self._held_keys.discard(key)
        return granted

    def release(self, key: IdempotencyKey) -> None:
        """It is written, or given up."""
        self._held_keys.discard(key)
        self._bus.notify_supervisor(BUS_TOPIC, {"give": key})

    def _on_joined(self) -> None:
        self._bus.notify_supervisor(BUS_TOPIC, {"held": list(self._held_keys)})


def serve_key_locks(relay: Relay) -> dict[IdempotencyKey, int]:
    """Let a supervisor say whose turn it is: of each key, the worker."""
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
