"""Replies from a topic to the requests that wait for them, by their correlation ids.

The topic is read by one stream for all requests of this process, from the first of them on, and
that stream shares the read of whoever else looks at the topic. A request is heard of before its
record is written, so no reply is too early. Every worker reads the topic and finds its own.

What came within WINDOW is kept, as much as the topic's `cache.bytes`: for results that are asked
for later, and for requests that are tried again. A worker that was not there then reads that
much of the topic once, when the first of these is asked of it (`recall`). So a result is there for
ten minutes, from any worker or replica, while all replies of that time fit into the cache.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gateway.api.events import Gap, Headers, Record
from gateway.api.stream import Stream
from gateway.core.channel.filters import Filters
from gateway.errors import BrokerUnavailable, GatewayError
from gateway.hub.fanout.view import View
from gateway.hub.reads.stream_start import StreamStart
from gateway.telemetry.log_context import create_detached_task

if TYPE_CHECKING:
    from gateway.hub.fanout.hub import Hub

REPLY_WINDOW_S = 600.0  # seconds for which a reply is kept, and looked for
CLOCK_SKEW_S = 60.0  # seconds by which the clock of who replies may be late
MAX_MISSED_REQUESTS = (
    100_000  # requests that gave up, of which a late reply is told from one of others
)
REPLY_OVERHEAD_BYTES = 500  # bytes that a reply takes besides its content

log = logging.getLogger(__name__)


class Reply:
    """What a request is answered with."""

    __slots__ = ("headers", "received_at", "size", "value")

    def __init__(self, record: Record, now: float) -> None:
        self.value = record.value
        self.headers: Headers = record.headers
        self.received_at = now
        content = sum(len(name) + len(text or b"") for name, text in record.headers)
        self.size = (
            REPLY_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"") + content
        )


class ReplyCache:
    """The last replies, by correlation id. most: bytes of them."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._cached_bytes = 0
        self._replies: dict[str, Reply] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._replies

    def get(self, id: str) -> Reply | None:
        return self._replies.get(id)

    def add(self, id: str, reply: Reply) -> None:
        self._replies[id] = reply
        self._cached_bytes += reply.size
        while self._replies:
            oldest = next(iter(self._replies))
            kept = self._replies[oldest]
            if (
                self._cached_bytes <= self.max_bytes
                and reply.received_at - kept.received_at < REPLY_WINDOW_S
            ):
                return
            del self._replies[oldest]
            self._cached_bytes -= kept.size


class ReplyReader:
    """Of one topic. header: the one that has the correlation id."""

    def __init__(self, hub: Hub, topic: str, correlation_header: str) -> None:
        self.topic = topic
        self._hub = hub
        self._correlation_header = correlation_header
        self._counts = hub.replies
        self._view = View((topic,), Filters(), "envelope", "error")
        self._topic_settings = hub.topics.get_settings(topic)
        self._cache = ReplyCache(self._topic_settings.cache.bytes)
        self._waiters: dict[str, list[asyncio.Future[Reply]]] = {}
        self._missed_at: dict[str, float] = {}  # requests that gave up, and when
        self._start_future: asyncio.Future[None] | None = None
        self._live_task: asyncio.Task[None] | None = None
        self._recent_task: asyncio.Task[None] | None = None

    async def start_reading(self) -> None:
        """Return once every reply from now on is heard. Raises KafkaError."""
        anew = self._restart_if_reconfigured()
        if self._start_future is None:
            self._start_future = asyncio.get_running_loop().create_future()
            self._live_task = create_detached_task(self._read_live(self._start_future))
        await asyncio.shield(self._start_future)
        if anew:
            await self.load_recent()

    def _restart_if_reconfigured(self) -> bool:
        """Where the topic's options are others after a reload, its shared read is another, and the
        stream of before hears nothing more: what came since is to be looked for."""
        settings, before = self._hub.topics.get_settings(self.topic), self._topic_settings
        self._topic_settings = settings
        if settings is before or settings == before or self._live_task is None:
            return False
        self._cache.max_bytes = settings.cache.bytes
        self._start_future = self._recent_task = None
        self._live_task.cancel()
        return True

    async def load_recent(self) -> None:
        """Return once those of the last ten minutes are known, too. Raises KafkaError."""
        if self._recent_task is None:
            self._recent_task = create_detached_task(self._read_recent())
        try:
            await asyncio.shield(self._recent_task)
        except GatewayError:
            self._recent_task = None
            raise

    @contextmanager
    def expect_reply(self, id: str) -> Iterator[asyncio.Future[Reply]]:
        """The reply to a request, once it comes; also where several wait for it."""
        coming: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        kept = self._cache.get(id)
        if kept is not None:
            coming.set_result(kept)
        waiting = self._waiters.setdefault(id, [])
        waiting.append(coming)
        try:
            yield coming
        finally:
            waiting.remove(coming)
            if not waiting:
                self._waiters.pop(id, None)
            if not coming.cancel() and coming.done() and not coming.cancelled():
                coming.exception()  # heard, whether or not anybody asked for it

    def count_answered(self) -> None:
        self._counts[self.topic, "answered"] += 1

    def mark_missed(self, id: str, reason: str) -> None:
        """Nobody waits for it any more; what comes yet is late. why: `timeout` or `left`."""
        now = asyncio.get_running_loop().time()
        self._counts[self.topic, reason] += 1
        self._missed_at[id] = now
        while self._missed_at:
            oldest = next(iter(self._missed_at))
            if (
                len(self._missed_at) <= MAX_MISSED_REQUESTS
                and now - self._missed_at[oldest] < REPLY_WINDOW_S
            ):
                return
            del self._missed_at[oldest]

    def _on_record(self, record: Record) -> None:
        """The first one that answers a request counts."""
        content = record.header(self._correlation_header)
        if content is None:
            return
        id = content.decode(errors="replace")
        if id in self._cache:
            return
        reply = Reply(record, asyncio.get_running_loop().time())
        self._cache.add(id, reply)
        late = self._missed_at.pop(id, None) is not None
        waiting = self._waiters.get(id)
        for coming in waiting or ():
            if not coming.done():
                coming.set_result(reply)
        if late and not waiting:
            self._counts[self.topic, "late"] += 1

    async def _read_live(self, start_future: asyncio.Future[None]) -> None:
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
        """Who comes now begins again."""
        if not start_future.done():
            start_future.set_exception(error)
            start_future.exception()
        if self._start_future is not start_future:
            return  # another goes on for it
        self._start_future = self._recent_task = None
        for waiting in self._waiters.values():
            for coming in waiting:
                if not coming.done():
                    coming.set_exception(error)

    async def _read_recent(self) -> None:
        since = int((time.time() - REPLY_WINDOW_S - CLOCK_SKEW_S) * 1000)
        start = StreamStart(origin=since, until="latest")
        async for record in Stream(self._hub, self._view, start, self._log_gap):
            self._on_record(record)

    def _log_gap(self, gap: Gap) -> None:
        log.warning(
            "replies from %s-%d: offsets %d to %d will not come (%s); who waits for one of them is "
            "answered with 504",
            gap.topic, gap.partition, gap.from_offset, gap.to_offset, gap.reason,
        )  # fmt: skip


class ReplyReaders:
    """The replies that are waited for, by their topic."""

    def __init__(self) -> None:
        self._readers: dict[tuple[str, str, str], ReplyReader] = {}

    def get_reader(self, hub: Hub, topic: str, correlation_header: str) -> ReplyReader:
        name = hub.name, topic, correlation_header
        found = self._readers.get(name)
        if found is None:
            found = self._readers[name] = ReplyReader(hub, topic, correlation_header)
        return found
