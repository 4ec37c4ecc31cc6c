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

from gateway.core.produce.idempotency import Key
from gateway.web.workers.bus import Away, Bus
from gateway.web.workers.relay import Relay

TOPIC = "turns"
PATIENCE = 1.0  # seconds for the supervisor to answer
AGAIN = (0.005, 0.1)  # seconds until it is asked again: first, longest


class Turns:
    """The turns of one worker."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._mine: set[Key] = set()
        bus.joined.append(self._joined)

    async def take(self, key: Key) -> bool:
        """Return once it is this worker's turn; True if it was another's until then."""
        waited, wait = False, AGAIN[0]
        while not await self._ask(key):
            waited = True
            await asyncio.sleep(random.uniform(wait / 2, wait))
            wait = min(2 * wait, AGAIN[1])
        return waited

    async def _ask(self, key: Key) -> bool:
        self._mine.add(key)
        granted = True
        try:
            if await self._bus.until_linked(PATIENCE):
                granted = await self._bus.call(TOPIC, {"take": key}, within=PATIENCE)
        except Away:
            pass
        if not granted:
            self._mine.discard(key)
        return granted

    def give(self, key: Key) -> None:
        """It is written, or given up."""
        self._mine.discard(key)
        self._bus.tell(TOPIC, {"give": key})

    def _joined(self) -> None:
        self._bus.tell(TOPIC, {"held": list(self._mine)})


def take_turns(relay: Relay) -> dict[Key, int]:
    """Let a supervisor say whose turn it is: of each key, the worker."""
    holders: dict[Key, int] = {}

    def answer(worker: int, told: Mapping[str, Any]) -> bool:
        match told:
            case {"take": key}:
                return holders.setdefault(Key(*key), worker) == worker
            case {"give": key} if holders.get(Key(*key)) == worker:
                del holders[Key(*key)]
            case {"held": keys}:
                forget(worker)
                for key in keys:
                    holders.setdefault(Key(*key), worker)
        return True

    def forget(worker: int) -> None:
        for key in [key for key, holder in holders.items() if holder == worker]:
            del holders[key]

    relay.on(TOPIC, answer)
    relay.left.append(forget)
    return holders
