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
from gateway.hub.reads.resume import Start
from gateway.telemetry.about import apart

if TYPE_CHECKING:
    from gateway.hub.fanout.hub import Hub

WINDOW = 600.0  # seconds for which a reply is kept, and looked for
SKEW = 60.0  # seconds by which the clock of who replies may be late
MOST_MISSED = 100_000  # requests that gave up, of which a late reply is told from one of others
OVERHEAD = 500  # bytes that a reply takes besides its content

log = logging.getLogger(__name__)


class Reply:
    """What a request is answered with."""

    __slots__ = ("headers", "since", "size", "value")

    def __init__(self, record: Record, now: float) -> None:
        self.value = record.value
        self.headers: Headers = record.headers
        self.since = now
        content = sum(len(name) + len(text or b"") for name, text in record.headers)
        self.size = OVERHEAD + len(record.key or b"") + len(record.value or b"") + content


class Kept:
    """The last replies, by correlation id. most: bytes of them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._bytes = 0
        self._replies: dict[str, Reply] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._replies

    def get(self, id: str) -> Reply | None:
        return self._replies.get(id)

    def add(self, id: str, reply: Reply) -> None:
        self._replies[id] = reply
        self._bytes += reply.size
        while self._replies:
            oldest = next(iter(self._replies))
            kept = self._replies[oldest]
            if self._bytes <= self.most and reply.since - kept.since < WINDOW:
                return
            del self._replies[oldest]
            self._bytes -= kept.size


class Replies:
    """Of one topic. header: the one that has the correlation id."""

    def __init__(self, hub: Hub, topic: str, header: str) -> None:
        self.topic = topic
        self._hub = hub
        self._header = header
        self._counts = hub.replies
        self._view = View((topic,), Filters(), "envelope", "error")
        self._settings = hub.topics.settings(topic)
        self._kept = Kept(self._settings.cache.bytes)
        self._expected: dict[str, list[asyncio.Future[Reply]]] = {}
        self._missed: dict[str, float] = {}  # requests that gave up, and when
        self._begun: asyncio.Future[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._past: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Return once every reply from now on is heard. Raises KafkaError."""
        anew = self._is_read_anew()
        if self._begun is None:
            self._begun = asyncio.get_running_loop().create_future()
            self._reading = apart(self._read(self._begun))
        await asyncio.shield(self._begun)
        if anew:
            await self.recall()

    def _is_read_anew(self) -> bool:
        """Where the topic's options are others after a reload, its shared read is another, and the
        stream of before hears nothing more: what came since is to be looked for."""
        settings, before = self._hub.topics.settings(self.topic), self._settings
        self._settings = settings
        if settings is before or settings == before or self._reading is None:
            return False
        self._kept.most = settings.cache.bytes
        self._begun = self._past = None
        self._reading.cancel()
        return True

    async def recall(self) -> None:
        """Return once those of the last ten minutes are known, too. Raises KafkaError."""
        if self._past is None:
            self._past = apart(self._read_past())
        try:
            await asyncio.shield(self._past)
        except GatewayError:
            self._past = None
            raise

    @contextmanager
    def expect(self, id: str) -> Iterator[asyncio.Future[Reply]]:
        """The reply to a request, once it comes; also where several wait for it."""
        coming: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        kept = self._kept.get(id)
        if kept is not None:
            coming.set_result(kept)
        waiting = self._expected.setdefault(id, [])
        waiting.append(coming)
        try:
            yield coming
        finally:
            waiting.remove(coming)
            if not waiting:
                self._expected.pop(id, None)
            if not coming.cancel() and coming.done() and not coming.cancelled():
                coming.exception()  # heard, whether or not anybody asked for it

    def answered(self) -> None:
        self._counts[self.topic, "answered"] += 1

    def missed(self, id: str, why: str) -> None:
        """Nobody waits for it any more; what comes yet is late. why: `timeout` or `left`."""
        now = asyncio.get_running_loop().time()
        self._counts[self.topic, why] += 1
        self._missed[id] = now
        while self._missed:
            oldest = next(iter(self._missed))
            if len(self._missed) <= MOST_MISSED and now - self._missed[oldest] < WINDOW:
                return
            del self._missed[oldest]

    def _hear(self, record: Record) -> None:
        """The first one that answers a request counts."""
        content = record.header(self._header)
        if content is None:
            return
        id = content.decode(errors="replace")
        if id in self._kept:
            return
        reply = Reply(record, asyncio.get_running_loop().time())
        self._kept.add(id, reply)
        late = self._missed.pop(id, None) is not None
        waiting = self._expected.get(id)
        for coming in waiting or ():
            if not coming.done():
                coming.set_result(reply)
        if late and not waiting:
            self._counts[self.topic, "late"] += 1

    async def _read(self, begun: asyncio.Future[None]) -> None:
        error: GatewayError = BrokerUnavailable("replies cannot be read now", retry_after=1.0)
        try:
            async with Stream(self._hub, self._view, Start(), self._lost) as stream:
                begun.set_result(None)
                async for record in stream:
                    self._hear(record)
        except GatewayError as exc:
            error = exc
        finally:
            self._end(begun, error)

    def _end(self, begun: asyncio.Future[None], error: GatewayError) -> None:
        """Who comes now begins again."""
        if not begun.done():
            begun.set_exception(error)
            begun.exception()
        if self._begun is not begun:
            return  # another goes on for it
        self._begun = self._past = None
        for waiting in self._expected.values():
            for coming in waiting:
                if not coming.done():
                    coming.set_exception(error)

    async def _read_past(self) -> None:
        since = int((time.time() - WINDOW - SKEW) * 1000)
        start = Start(origin=since, until="latest")
        async for record in Stream(self._hub, self._view, start, self._lost):
            self._hear(record)

    def _lost(self, gap: Gap) -> None:
        log.warning(
            "replies from %s-%d: offsets %d to %d will not come (%s); who waits for one of them is "
            "answered with 504",
            gap.topic, gap.partition, gap.from_offset, gap.to_offset, gap.reason,
        )  # fmt: skip


class Replying:
    """The replies that are waited for, by their topic."""

    def __init__(self) -> None:
        self._by: dict[tuple[str, str, str], Replies] = {}

    def of(self, hub: Hub, topic: str, header: str) -> Replies:
        name = hub.name, topic, header
        found = self._by.get(name)
        if found is None:
            found = self._by[name] = Replies(hub, topic, header)
        return found
