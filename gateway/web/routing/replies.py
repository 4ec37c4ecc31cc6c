"""Match the replies in a topic with the requests that wait for them, by their correlation ids.

One stream reads the topic for all requests of this process, from the first request on. It shares
the read with all other streams of the topic. A request is registered before its record is written,
so that no reply comes too early. Every worker reads the topic and finds the replies to its own
requests.

Replies of the last `REPLY_WINDOW_S` are cached, up to the topic's `cache.bytes`, for results that
are asked for later and for requests that are repeated. A worker that was not running at that time
reads this much of the topic once, when the first such request comes to it (`load_recent`). So a
result is available for ten minutes from any worker or replica, as long as all replies of that time
fit into the cache.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gateway.api.events import Gap, Headers, Record
from gateway.api.stream import Stream
from gateway.client_memory import ClientMemory, HeldPart
from gateway.core.channel.filters import Filters
from gateway.errors import BrokerUnavailable, GatewayError
from gateway.hub.reads.position_resolver import StreamStart
from gateway.hub.reads.view import View
from gateway.telemetry.logs import create_detached_task

if TYPE_CHECKING:
    from gateway.hub.fanout.hub import Hub

REPLY_WINDOW_S = 600.0  # how long a reply is cached, and how far back it is looked for
CLOCK_SKEW_S = 60.0  # by how much the clock of a service that replies may be slow
# Requests without a reply that are remembered, to count a late reply as one.
MAX_MISSED_REQUESTS = 10_000
REPLY_OVERHEAD_BYTES = 500  # memory of a reply besides its content

log = logging.getLogger(__name__)


class Reply:
    """The reply in a record; `received_at` is by the loop's clock, `size` approximate."""

    __slots__ = ("headers", "received_at", "size", "value")

    def __init__(self, record: Record, now: float) -> None:
        self.value = record.value
        self.headers: Headers = record.headers
        self.received_at = now
        header_size = sum(len(name) + len(text or b"") for name, text in record.headers)
        self.size = (
            REPLY_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"") + header_size
        )


class ReplyCache:
    """The last replies, by correlation id.

    They are in the order in which they were read, none older than `REPLY_WINDOW_S` when one is
    added.
    """

    def __init__(self, max_bytes: int, client_memory: ClientMemory) -> None:
        self.max_bytes = max_bytes
        self._client_memory = client_memory
        self._cached_bytes = 0
        self._replies: dict[str, Reply] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._replies

    def get(self, id: str) -> Reply | None:
        return self._replies.get(id)

    def add(self, id: str, reply: Reply) -> None:
        """Add a reply, and drop the oldest ones that are too old or too many."""
        self._replies[id] = reply
        self._cached_bytes += reply.size
        self._drop_oldest(self.max_bytes, reply.received_at - REPLY_WINDOW_S)

    def release_memory(self) -> None:
        """Drop the older half. See `Holder`."""
        self._drop_oldest(self._cached_bytes // 2, -math.inf)

    def _drop_oldest(self, max_bytes: int, since: float) -> None:
        while self._replies:
            oldest_id, oldest = next(iter(self._replies.items()))
            if self._cached_bytes <= max_bytes and oldest.received_at > since:
                break
            del self._replies[oldest_id]
            self._cached_bytes -= oldest.size
        self._client_memory.hold(HeldPart.REPLIES, self, self._cached_bytes)


class ReplyReader:
    """Reads the replies of one topic for all requests of this process.

    Created by `ReplyReaders`, which keeps it for as long as the process runs. `_start_future` is
    done once `_live_task` reads. Both are replaced when the task has failed.
    """

    def __init__(self, hub: Hub, topic: str, correlation_header: str) -> None:
        """Prepare a reader, which reads nothing before the first request."""
        self.topic = topic
        self._hub = hub
        self._correlation_header = correlation_header
        self._counts = hub.replies
        self._view = View((topic,), Filters(), "envelope", "error")
        max_bytes = hub.topics.get_settings(topic).cache.bytes
        self._cache = ReplyCache(max_bytes, hub.client_memory)
        self._waiters: dict[str, list[asyncio.Future[Reply]]] = {}
        # When requests gave up, by correlation id, oldest first; by the clock of the event loop.
        self._missed_at: dict[str, float] = {}
        self._start_future: asyncio.Future[None] | None = None
        self._live_task: asyncio.Task[None] | None = None
        self._recent_task: asyncio.Task[None] | None = None

    async def start_reading(self) -> None:
        """Return once every reply from now on will be read."""
        self._cache.max_bytes = self._hub.topics.get_settings(self.topic).cache.bytes
        if self._start_future is None:
            self._start_future = asyncio.get_running_loop().create_future()
            self._live_task = create_detached_task(self._read_live(self._start_future))
        # A request that is cancelled must not cancel the start for all others.
        await asyncio.shield(self._start_future)

    async def load_recent(self) -> None:
        """Return once the replies of the last ten minutes are cached, too."""
        if self._recent_task is None:
            self._recent_task = create_detached_task(self._read_recent())
        try:
            await asyncio.shield(self._recent_task)
        except GatewayError:
            self._recent_task = None
            raise

    @contextmanager
    def expect_reply(self, id: str) -> Iterator[asyncio.Future[Reply]]:
        """Register a request that waits for a reply, as long as the context lasts.

        Several requests may wait for the same reply. The future that is yielded is done at once if
        the reply is cached.
        """
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        cached = self._cache.get(id)
        if cached is not None:
            future.set_result(cached)
        waiters = self._waiters.setdefault(id, [])
        waiters.append(future)
        try:
            yield future
        finally:
            waiters.remove(future)
            if not waiters:
                self._waiters.pop(id, None)
            # Mark an error as retrieved, or asyncio would log it if the request had ended before.
            if not future.cancel() and future.done() and not future.cancelled():
                future.exception()

    def count_answered(self) -> None:
        self._counts[self.topic, "answered"] += 1

    def mark_missed(self, id: str, reason: str) -> None:
        """Count a request that gave up (`timeout` or `left`); remember it for a late reply."""
        now = asyncio.get_running_loop().time()
        self._counts[self.topic, reason] += 1
        self._missed_at[id] = now
        while self._missed_at:
            oldest_id = next(iter(self._missed_at))
            if (
                len(self._missed_at) <= MAX_MISSED_REQUESTS
                and now - self._missed_at[oldest_id] < REPLY_WINDOW_S
            ):
                return
            del self._missed_at[oldest_id]

    def _on_record(self, record: Record) -> None:
        """Resolve the requests that wait for a reply. Only the first reply of an id counts."""
        content = record.header(self._correlation_header)
        if content is None:
            return
        id = content.decode(errors="replace")
        if id in self._cache:
            return
        reply = Reply(record, asyncio.get_running_loop().time())
        self._cache.add(id, reply)
        is_late = self._missed_at.pop(id, None) is not None
        waiters = self._waiters.get(id)
        for future in waiters or ():
            if not future.done():
                future.set_result(reply)
        if is_late and not waiters:
            self._counts[self.topic, "late"] += 1

    async def _read_live(self, start_future: asyncio.Future[None]) -> None:
        """Read replies from now on, until an error or cancellation."""
        # For the requests that wait if the stream ends without an error.
        error: GatewayError = BrokerUnavailable("replies cannot be read now", retry_after=1.0)
        try:
            async with Stream(self._hub, self._view, StreamStart(), self._log_gap) as stream:
                start_future.set_result(None)
                async for record in stream:
                    self._on_record(record)
        except GatewayError as exc:
            error = exc
        finally:
            self._on_live_ended(start_future, error)

    def _on_live_ended(self, start_future: asyncio.Future[None], error: GatewayError) -> None:
        """Fail the requests that wait. The next request starts reading again."""
        if not start_future.done():
            start_future.set_exception(error)
            start_future.exception()  # marked as retrieved: perhaps nobody waits for it
        if self._start_future is not start_future:
            return  # another task reads for the requests that wait
        self._start_future = self._recent_task = None
        for waiters in self._waiters.values():
            for future in waiters:
                if not future.done():
                    future.set_exception(error)

    async def _read_recent(self) -> None:
        """Read the replies of the last ten minutes, by their timestamps, and then end."""
        since = int((time.time() - REPLY_WINDOW_S - CLOCK_SKEW_S) * 1000)
        start = StreamStart(origin=since, until="latest")
        async for record in Stream(self._hub, self._view, start, self._log_gap):
            self._on_record(record)

    def _log_gap(self, gap: Gap) -> None:
        log.warning(
            "replies from %s-%d: offsets %d to %d will not come (%s); requests that wait for one "
            "of them get 504",
            gap.topic, gap.partition, gap.from_offset, gap.to_offset, gap.reason,
        )  # fmt: skip


class ReplyReaders:
    """The readers of replies, by cluster, topic and correlation header. Owned by `Routes`."""

    def __init__(self) -> None:
        self._readers: dict[tuple[str, str, str], ReplyReader] = {}

    def get_reader(self, hub: Hub, topic: str, correlation_header: str) -> ReplyReader:
        key = hub.name, topic, correlation_header
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = ReplyReader(hub, topic, correlation_header)
        return reader
