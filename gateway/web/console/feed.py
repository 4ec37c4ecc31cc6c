"""Ask all workers for what they know while somebody watches, and write it as server-sent events.

    event: snapshot     all that is known, at the start and after a client was too slow
    event: delta        what has changed since, in the same shape

One task asks for all clients of a process, and each event is encoded once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import orjson

from gateway.background_tasks import BackgroundTasks
from gateway.web.workers.bus import Bus
from gateway.wire.sse import encode_event, encode_retry

from .overview import Overview
from .worker_report import BUS_TOPIC

log = logging.getLogger(__name__)

INTERVAL_S = 0.5  # seconds between two questions to the workers
BUS_TIMEOUT_S = 1.0  # seconds for a worker to answer
MAX_PENDING_EVENTS = 20  # events that wait for a client before it gets a snapshot instead
RETRY_MS = 1000  # until a client connects again


class Feed:
    """The events of one process for all that watch. Owned by `Console`.

    Between calls, `_task` runs exactly while there are viewers, and `_overview` has what workers
    answered to the first question. Viewers that come together share that question: `_start_lock` is
    held from the look for viewers until the first of them is one.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._viewers: set[_Viewer] = set()
        self._overview = Overview(bus.worker_count)
        self._start_lock = asyncio.Lock()
        self._tasks = BackgroundTasks(log)
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None

    async def watch(self, lifetime_s: float) -> AsyncIterator[bytes]:
        """Yield events until the feed is closed or the time is up.

        A client that connects again after that is authorized again.
        """
        viewer = _Viewer()
        async with self._start_lock:
            if not self._viewers:
                # What was known may be of long ago.
                overview = Overview(self._bus.worker_count)
                await self._ask_workers(overview)
                self._overview = overview
            self._viewers.add(viewer)
            if self._task is None:
                self._task = self._tasks.start(self._run(), "the feed of the console")
        deadline = asyncio.get_running_loop().time() + lifetime_s
        try:
            yield encode_retry(RETRY_MS)
            while not viewer.is_closed:
                yield viewer.take() or encode_event(
                    "snapshot", orjson.dumps(self._overview.build_snapshot(), default=list)
                )
                try:
                    async with asyncio.timeout_at(deadline):
                        await viewer.event.wait()
                except TimeoutError:
                    return
        finally:
            self._viewers.discard(viewer)

    def close(self) -> None:
        for viewer in self._viewers:
            viewer.close()

    async def _run(self) -> None:
        try:
            while self._viewers:
                await asyncio.sleep(INTERVAL_S)
                overview = self._overview
                event = await self._ask_workers(overview)
                # Viewers who came after all had left begin with another overview.
                if event is not None and overview is self._overview:
                    for viewer in self._viewers:
                        viewer.add(event)
        finally:
            self._task = None

    async def _ask_workers(self, overview: Overview) -> bytes | None:
        """Add the workers' answers; return an event with what has changed, None if nothing has."""
        responses = await self._bus.request(
            BUS_TOPIC, overview.describe_known(), timeout_s=BUS_TIMEOUT_S
        )
        delta = overview.apply(responses.by_worker, asyncio.get_running_loop().time())
        return encode_event("delta", orjson.dumps(delta, default=list)) if delta else None


class _Viewer:
    """The events that one client has not been sent yet.

    `_pending` is None if it is to be sent a snapshot: at the start, and after it was too slow.
    """

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.event.set()
        self.is_closed = False
        self._pending: list[bytes] | None = None

    def add(self, event: bytes) -> None:
        self.event.set()
        if self._pending is not None:
            self._pending.append(event)
            if len(self._pending) > MAX_PENDING_EVENTS:
                self._pending = None

    def take(self) -> bytes | None:
        self.event.clear()
        pending, self._pending = self._pending, []
        return None if pending is None else b"".join(pending)

    def close(self) -> None:
        self.is_closed = True
        self.event.set()
