"""List the topics of a cluster, for routes and consumers that choose topics by a pattern.

Kafka lists topics only together with all their partitions (some MB for 10,000 topics), so one
answer serves all callers for a few seconds. Topics that may not be described are not listed.
"""

from __future__ import annotations

import asyncio

from .brokers import Brokers
from .shared_tasks import start_shared_task, wait_for_shared

# A topic that is created meanwhile is found by its name, but not by a pattern.
MAX_AGE_S = 5.0


class TopicNames:
    """The names of all topics of a cluster, at most `max_age_s` old. Callers share one request."""

    def __init__(self, brokers: Brokers, *, max_age_s: float = MAX_AGE_S) -> None:
        self._brokers = brokers
        self._max_age_s = max_age_s
        self._names: frozenset[str] = frozenset()
        self._expires_at = float("-inf")
        self._fetch_task: asyncio.Task[frozenset[str]] | None = None

    async def fetch_all(self) -> frozenset[str]:
        if asyncio.get_running_loop().time() < self._expires_at:
            return self._names
        if self._fetch_task is None or self._fetch_task.done():
            self._fetch_task = start_shared_task(self._fetch())
        return await wait_for_shared(self._fetch_task)

    async def close(self) -> None:
        if self._fetch_task is not None:
            self._fetch_task.cancel()
            await asyncio.gather(self._fetch_task, return_exceptions=True)

    async def _fetch(self) -> frozenset[str]:
        _, response = await self._brokers.fetch_metadata(None)
        self._names = frozenset(response.topics)
        self._expires_at = asyncio.get_running_loop().time() + self._max_age_s
        return self._names
