"""One subscription of a program: an async iterator of records.

A `for` loop over it hears records only, and yet nothing is hidden from it: a loop that ends by
itself was given all it asked for. What Kafka has no more goes to `on_gap` or, without one, to
the log: most programs cannot do more about it, and an exception would end a stream that can go
on. A stream that is cut short raises `StreamEnded`, since going on without a word would look
like the end of the records. `events` tells everything, in order, and leaves the rest to its
reader.

What is not read stays in Kafka: a slow reader is a client that catches up (`core.subscription`),
with a bounded backlog. `anext` may be cancelled, as by a timeout, and called again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from gateway.core.client.slow_client import SlowClientPolicy
from gateway.errors import GatewayError, StreamEnded
from gateway.hub.fanout.client import Client
from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.view import View
from gateway.hub.reads.stream_start import StreamStart

from .events import End, Event, Fault, Gap, LazyToken, Record
from .object_wire import ObjectEncoder, ObjectWire

__all__ = ["Stream"]

log = logging.getLogger(__name__)

NOT_RUNNING = "this Gateway does not run; use it within `async with Gateway(...)`"
HEARTBEAT_INTERVAL_S = 3600.0  # seconds between heartbeats, which nobody here needs


class Stream:
    """Made by `Gateway.subscribe`. It begins with the first `anext`, or at once, when it returns,
    with `async with`; it is closed by `aclose`, by the end of `async with`, by the end of its
    gateway, and when nobody holds it any more, as after a `break`.

    on_gap: called with each `Gap` that a loop over records comes across; it may raise.
    """

    def __init__(
        self,
        hub: Hub,
        view: View,
        start: StreamStart,
        on_gap: Callable[[Gap], object] | None = None,
    ) -> None:
        self._hub = hub
        self._view = view
        self._start = start
        self._on_gap = on_gap or _log_gap
        self._client: Client | None = None
        self._encoder: ObjectEncoder
        self._last_token: LazyToken | str = ""
        self._buffer: Iterator[Event] = iter(())
        self._last_event: Event | None = None
        self._is_open = self._is_reading = self._closed = False
        self._loop: asyncio.AbstractEventLoop

    @property
    def position(self) -> str | None:
        """The token to go on from after the last event that was given; None before the first."""
        return None if self._last_event is None else self._last_event.position

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """The next record.

        Raises UnknownTopic, AccessDenied, BrokerUnavailable, AuthenticationFailed, TokenForeign
        when the stream is opened, StreamEnded when it is cut short.
        """
        while True:
            for event in self._buffer:
                self._last_event = event
                if type(event) is Record:
                    return event
                self._handle_event(event)
            await self._read_events()

    def events(self) -> EventIterator:
        """Everything: records, `Begin` first, gaps, faults, moved positions, `End` last."""
        return EventIterator(self)

    async def next_event(self) -> Event:
        """Raises as `anext`, but StreamEnded: `End` says it; StopAsyncIteration after that."""
        while True:
            for event in self._buffer:
                self._last_event = event
                return event
            await self._read_events()

    async def aclose(self) -> None:
        """Let go of it. Who waits for its next record gets `StopAsyncIteration`."""
        self._close()

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        """Perhaps in another thread, or after the loop's end."""
        client = getattr(self, "_client", None)
        if client is not None and not self._closed:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(client.close)

    async def _read_events(self) -> None:
        """The events of the next chunk. Nothing is lost where it is cancelled."""
        if self._closed:
            raise StopAsyncIteration
        if self._is_reading:
            raise RuntimeError("this stream is being read already; subscribe once more instead")
        self._is_reading = True
        try:
            if await self._open():
                return
            assert self._client is not None
            await asyncio.sleep(0)  # a loop that awaits nothing else must not stop all others
            data = await self._client.next_bytes()
        finally:
            self._is_reading = False
        if data is None or self._closed:
            self._close()
            raise StopAsyncIteration
        self._fill_buffer(
            self._encoder.decode_events(
                data, self._last_token, self._client.subscription.channel.view
            )
        )

    async def _open(self) -> bool:
        """True if that had to be done: what it begins with can be read now."""
        if self._is_open:
            return False
        if not self._hub.started:
            raise GatewayError(NOT_RUNNING)
        if self._client is None:
            self._loop = asyncio.get_running_loop()
            self._client = await self._create_client()
        await self._client.wait_until_ready()
        if self._closed:
            self._client.close()
            raise StopAsyncIteration
        encoder = self._client.subscription.channel.encoder
        assert isinstance(encoder, ObjectEncoder)
        self._encoder, self._is_open = encoder, True
        view = self._client.subscription.channel.view
        self._fill_buffer(encoder.decode_events(self._client.begin(), "", view))
        return True

    async def _create_client(self) -> Client:
        wire, slow = ObjectWire(self._view.fields), SlowClientPolicy.CATCH_UP
        try:
            return await self._hub.subscribe(
                self._view, self._start, wire, heartbeat=HEARTBEAT_INTERVAL_S, slow=slow
            )
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._hub.draining and task is not None and not task.cancelling():
                # It is the opening of the topic that was cancelled, with the gateway.
                raise StreamEnded("closed", "") from None
            raise

    def _fill_buffer(self, events: list[Event]) -> None:
        if events:
            last = events[-1]
            self._last_token = last.mark if isinstance(last, Record) else last.position
        self._buffer = iter(events)

    def _handle_event(self, event: Event) -> None:
        """What is no record, in a loop over records."""
        if type(event) is Gap:
            self._on_gap(event)
        elif type(event) is Fault:
            log.warning("%s", event.message)
        elif type(event) is End:
            closed = self._closed
            self._close()
            if event.reason != "until" and not closed:
                raise StreamEnded(event.reason, event.position)

    def _close(self) -> None:
        self._closed, self._buffer = True, iter(())
        if self._client is not None:
            self._client.end("closed")
            self._client.close()


class EventIterator:
    """See `Stream.events`; it is closed with its stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await self._stream.next_event()


def _log_gap(gap: Gap) -> None:
    log.warning(
        "%s-%d: offsets %d to %d will not come (%s); give on_gap= to hear of it",
        gap.topic, gap.partition, gap.from_offset, gap.to_offset, gap.reason,
    )  # fmt: skip
