"""Which topics a cluster has, for those who choose among them by a pattern.

Kafka says so only together with all of their partitions (some MB for 10,000 topics), so one
answer serves everyone for a few seconds. What may not be described is not in it.
"""

from __future__ import annotations

import asyncio

from gateway.errors import BrokerUnavailable
from gateway.telemetry.about import apart

from .brokers import Brokers
from .failures import cancels_caller

AGE = 5.0  # seconds; a topic made since is found by its name meanwhile, not by a pattern


class TopicNames:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._names: frozenset[str] = frozenset()
        self._until = float("-inf")
        self._asking: asyncio.Task[frozenset[str]] | None = None

    async def all(self) -> frozenset[str]:
        """Raises BrokerUnavailable or AuthenticationFailed when no broker answers."""
        if asyncio.get_running_loop().time() < self._until:
            return self._names
        if self._asking is None or self._asking.done():
            self._asking = apart(self._ask())
            self._asking.add_done_callback(_retrieve)
        current = self._asking
        try:
            return await asyncio.shield(current)
        except asyncio.CancelledError:
            if cancels_caller(current):
                raise
            raise BrokerUnavailable("the connections to Kafka are closed") from None

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> frozenset[str]:
        _, answer = await self._brokers.ask(None)
        self._names = frozenset(answer.topics)
        self._until = asyncio.get_running_loop().time() + AGE
        return self._names


def _retrieve(task: asyncio.Task[frozenset[str]]) -> None:
    if not task.cancelled():
        task.exception()  # told to those who wait; where nobody does, no warning either
