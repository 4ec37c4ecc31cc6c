"""Which topics a cluster has, for those who choose among them by a pattern.

Kafka says so only together with all of their partitions (some MB for 10,000 topics), so one
answer serves everyone for a few seconds. What may not be described is not in it.
"""

from __future__ import annotations

import asyncio

from gateway.errors import BrokerUnavailable
from gateway.telemetry.log_context import create_detached_task

from .brokers import Brokers
from .failures import is_caller_cancelled

MAX_AGE_S = 5.0  # seconds; a topic made since is found by its name meanwhile, not by a pattern


class TopicNames:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._names: frozenset[str] = frozenset()
        self._expires_at = float("-inf")
        self._fetch_task: asyncio.Task[frozenset[str]] | None = None

    async def fetch_all(self) -> frozenset[str]:
        """Raises BrokerUnavailable or AuthenticationFailed when no broker answers."""
        if asyncio.get_running_loop().time() < self._expires_at:
            return self._names
        if self._fetch_task is None or self._fetch_task.done():
            self._fetch_task = create_detached_task(self._fetch())
            self._fetch_task.add_done_callback(_consume_exception)
        current = self._fetch_task
        try:
            return await asyncio.shield(current)
        except asyncio.CancelledError:
            if is_caller_cancelled(current):
                raise
            raise BrokerUnavailable("the connections to Kafka are closed") from None

    async def close(self) -> None:
        if self._fetch_task is not None:
            self._fetch_task.cancel()
            await asyncio.gather(self._fetch_task, return_exceptions=True)

    async def _fetch(self) -> frozenset[str]:
        _, answer = await self._brokers.fetch_metadata(None)
        self._names = frozenset(answer.topics)
        self._expires_at = asyncio.get_running_loop().time() + MAX_AGE_S
        return self._names


def _consume_exception(task: asyncio.Task[frozenset[str]]) -> None:
    if not task.cancelled():
        task.exception()  # told to those who wait; where nobody does, no warning either
