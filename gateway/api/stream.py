"""Iterate one subscription of a program: an async iterator of records.

A `for` loop over a stream receives only records, and yet nothing is hidden from it: a loop that
ends by itself got everything that was asked for. Gaps go to `on_gap` or, without one, to the log:
most programs cannot do more about them, and an exception would end a stream that can go on. A
stream that is cut short raises `StreamEnded`, since ending the loop would look like the end of the
records. `events` yields everything, in order, and leaves the decisions to its caller.

What is not read stays in Kafka: a slow reader is a client that catches up, with a bounded backlog.
`anext` may be cancelled, as by a timeout, and called again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self

from gateway.core.client.terms import EndReason
from gateway.core.token.token_parser import parse_token
from gateway.errors import GatewayError, StreamEnded
from gateway.hub.fanout.client import Client, ClientOptions, Handover
from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.pulled_bytes import PulledBytes
from gateway.hub.reads.position_resolver import StreamStart
from gateway.hub.reads.view import View

from .events import Begin, End, Event, Fault, Gap, LazyToken, Record
from .object_wire import ObjectEncoder, ObjectWire

__all__ = ["Stream"]

log = logging.getLogger(__name__)

NOT_RUNNING = "this Gateway does not run; use it within `async with Gateway(...)`"
HEARTBEAT_INTERVAL_S = 3600.0  # seconds between heartbeats, which a program does not need


class Stream:
    """Iterate the records of one subscription.

    `Gateway.subscribe` creates it. It begins with the first `anext`, or when `async with` is
    entered. It is closed by `aclose`, by the end of `async with`, by the end of its gateway, and
    when nobody holds it any more, as after a `break`. Only one task may read it at a time.

    Args:
        hub: The hub of the cluster.
        view: What the stream shows.
        start: Where it begins and ends.
        on_gap: Called with each `Gap` that a loop over records comes across; it may raise.
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
        self._options = ClientOptions(HEARTBEAT_INTERVAL_S)
        self._on_gap = on_gap or _log_gap
        self._client: Client | None = None
        self._pulled: PulledBytes | None = None
        self._encoder: ObjectEncoder
        self._last_token: LazyToken | str = ""
        self._buffer: Iterator[Event] = iter(())
        self._last_event: Event | None = None
        self._is_open = self._is_reading = self._closed = False
        self._loop: asyncio.AbstractEventLoop

    @property
    def position(self) -> str | None:
        """Return the token to go on from after the last event; None before the first."""
        return None if self._last_event is None else self._last_event.position

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """Return the next record.

        Raises:
            UnknownTopic: A topic does not exist. This and the next four are raised when the stream
                begins.
            AccessDenied: The brokers do not let the gateway read a topic.
            BrokerUnavailable: No broker answered in time.
            AuthenticationFailed: The brokers refuse the gateway's credentials.
            TokenForeign: The position is of another cluster or of other topics.
            StreamEnded: The stream was cut short.
        """
        while True:
            for event in self._buffer:
                self._last_event = event
                if type(event) is Record:
                    return event
                self._handle_event(event)
            await self._read_events()

    def events(self) -> EventIterator:
        """Return an iterator of everything: records, `Begin` first, gaps, faults, `End` last."""
        return EventIterator(self)

    async def next_event(self) -> Event:
        """Return the next event.

        It raises what `anext` raises, except for `StreamEnded`: the event `End` says so, and
        StopAsyncIteration is raised after that.
        """
        while True:
            for event in self._buffer:
                self._last_event = event
                return event
            await self._read_events()

    async def aclose(self) -> None:
        """Close the stream; a task that waits for its next record gets `StopAsyncIteration`."""
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
        """Close the client, perhaps from another thread, or after the end of the loop."""
        client = getattr(self, "_client", None)
        if client is not None and not self._closed:
            # RuntimeError: the loop is closed, and with it everything that the client held.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(client.close)

    async def _read_events(self) -> None:
        """Read the events of the next chunk into the buffer. Nothing is lost if it is cancelled."""
        if self._closed:
            raise StopAsyncIteration
        # Two readers would take events out of order, and the buffer would mix them.
        if self._is_reading:
            raise RuntimeError("this stream is being read already; subscribe once more instead")
        self._is_reading = True
        try:
            if await self._open():
                return
            assert self._client is not None and self._pulled is not None
            # While chunks are there, nothing below waits: other tasks must get their turn.
            await asyncio.sleep(0)
            data = await anext(self._pulled, None)
            if data is None and self._pulled.handover is not None:
                self._prepare_to_go_on(self._pulled.handover)
                await self._open()
                return
        finally:
            self._is_reading = False
        if data is None or self._closed:
            self._close()
            raise StopAsyncIteration
        self._fill_buffer(
            self._encoder.decode_events(
                data, self._last_token, self._client.subscription.channel.view_digest
            )
        )

    async def _open(self) -> bool:
        """Begin the stream.

        Returns:
            True if it was begun by this call, so that its first events are in the buffer.
        """
        if self._is_open:
            return False
        if not self._hub.started:
            raise GatewayError(NOT_RUNNING)
        if self._client is None:
            self._loop = asyncio.get_running_loop()
            self._client = await self._create_client()
        await self._client.wait_until_ready()
        if self._closed:  # by another task, during the await
            self._client.close()
            raise StopAsyncIteration
        # The encoder of the channel has the table of partition numbers that its bytes refer to.
        encoder = self._client.subscription.channel.encoder
        assert isinstance(encoder, ObjectEncoder)
        self._encoder, self._is_open = encoder, True
        view_digest = self._client.subscription.channel.view_digest
        events = encoder.decode_events(self._client.begin(), "", view_digest)
        self._pulled = self._client.pull()
        if self._options.handover is not None:  # it has begun before
            events = [event for event in events if type(event) is not Begin]
        self._fill_buffer(events)
        return True

    def _prepare_to_go_on(self, handover: Handover) -> None:
        """Let the stream open anew where it stands: a reload has changed how topics are read."""
        self._start = replace(
            self._start,
            token=parse_token(handover.position.decode()),
            max_records=handover.records_left,
            snapshot=False,
        )
        self._options = ClientOptions(HEARTBEAT_INTERVAL_S, handover=handover)
        self._client, self._is_open = None, False

    async def _create_client(self) -> Client:
        wire = ObjectWire(self._view.fields)
        try:
            client = await self._hub.subscribe(self._view, self._start, wire, self._options)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._hub.draining and task is not None and not task.cancelling():
                # Not this task was cancelled, but the opening of the topic, with the gateway.
                raise StreamEnded(EndReason.CLOSED.value, "") from None
            raise
        self._hub.own_clients.add(client)
        return client

    def _fill_buffer(self, events: list[Event]) -> None:
        if events:
            last = events[-1]
            self._last_token = last.mark if isinstance(last, Record) else last.position
        self._buffer = iter(events)

    def _handle_event(self, event: Event) -> None:
        """Handle an event that is not a record, in a loop over records."""
        if type(event) is Gap:
            self._on_gap(event)
        elif type(event) is Fault:
            log.warning("%s", event.message)
        elif type(event) is End:
            was_closed = self._closed
            self._close()
            if event.reason != EndReason.UNTIL and not was_closed:
                raise StreamEnded(event.reason, event.position)

    def _close(self) -> None:
        self._closed, self._buffer = True, iter(())
        if self._client is not None:
            self._client.end(EndReason.CLOSED)
            self._client.close()
        if self._pulled is not None:
            self._pulled.close()


class EventIterator:
    """Iterate all events of a stream (`Stream.events`); it is closed with its stream."""

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
