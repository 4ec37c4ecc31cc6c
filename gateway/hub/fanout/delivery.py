"""Deliver the bytes of one client: push them to its outlet, or let the caller pull them.

An `Outlet` is the client's connection as the hub sees it. A client with one needs no task: a
`PushDelivery` writes the bytes of the client alone, and the `Broadcaster` writes in rounds what is
published. Of a client without one, a `PullDelivery` hands out the bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from gateway.core.client.terms import EndReason

from .broadcaster import Audience, Broadcaster
from .client_source import ClientSource
from .state_log import log as state_logger

if TYPE_CHECKING:
    from .client import Client


class Outlet(Protocol):
    """Take the bytes of one client, or of one stream of a WebSocket, without a task between.

    `gateway.web` implements it for connections. It calls `PushDelivery.on_drained` when it is no
    longer full, and `Client.close` when the connection is lost. Whether an outlet is full may
    change with every write, also with those of other streams on the same connection.
    """

    @property
    def full(self) -> bool:
        """Return whether bytes wait for the other side to take them."""

    def write(self, data: bytes) -> None:
        """Send bytes now; those that the other side does not take wait. Never raises or blocks."""

    def finish(self, data: bytes) -> None:
        """Send the last bytes, and end the response as its protocol does."""

    def hand_over(self) -> None:
        """Release the outlet to another client, which goes on with the stream."""


class DeliveryOwner(Protocol):
    """What a delivery needs of the `Client` that it belongs to."""

    def on_delivered(self) -> None:
        """Release everything: the last bytes were written."""


class PushDelivery:
    """Push the bytes of a `ClientSource` to an outlet, without a task.

    It writes only the client's own bytes: those that it is sent while it catches up, heartbeats and
    the end. Its states:

    - In an `Audience`: the client has all that was published, and rounds write to its outlet.
    - Otherwise `push` takes from the `ClientSource`. A client that has caught up joins an audience.

    `Client.attach` creates it, and the client, its `owner`, closes it: a bound method in place of
    the owner would take 64 bytes of each client. The outlet of a closed one is None.

    Attributes:
        sent_at: When it was last sent something of its own, by the loop's clock.
        is_end_written: The last bytes were written, or are another client's to write.
    """

    __slots__ = (
        "_broadcaster",
        "_is_push_scheduled",
        "_owner",
        "_source",
        "audience",
        "is_end_written",
        "outlet",
        "sent_at",
        "subscription",
    )  # fmt: skip

    def __init__(
        self,
        source: ClientSource,
        outlet: Outlet,
        broadcaster: Broadcaster,
        owner: DeliveryOwner,
    ) -> None:
        self.subscription = source.subscription
        self.outlet: Outlet | None = outlet
        self.sent_at = asyncio.get_running_loop().time()
        self.is_end_written = False
        self._source = source
        self._broadcaster = broadcaster
        self._owner = owner
        self.audience: Audience | None = None  # set while rounds write to it
        self._is_push_scheduled = False
        self.subscription.delivery = self

    @property
    def is_live(self) -> bool:
        return self.audience is not None

    @property
    def is_full(self) -> bool:
        return self.outlet is not None and self.outlet.full

    def wake(self) -> None:
        """Schedule a push, but never run it within the call that brought it."""
        if self.outlet is not None and not self._is_push_scheduled:
            self._is_push_scheduled = True
            self._broadcaster.schedule_push(self)

    def on_drained(self) -> None:
        self.wake()

    def push(self) -> None:
        """Send about 64 KiB of the client's own bytes; once it has everything, join an audience."""
        self._is_push_scheduled = False
        outlet, subscription = self.outlet, self.subscription
        # A full outlet gets nothing but an end, which must not wait until the client takes more.
        if outlet is None or self.is_end_written or (outlet.full and not subscription.end_reason):
            return
        data = self._source.take()  # nothing if the stream is to end
        if data:
            self.sent_at = asyncio.get_running_loop().time()
            outlet.write(data)
        if subscription.end_reason:
            self.is_end_written = True
            if subscription.end_reason is EndReason.CHANGED:
                outlet.hand_over()
            else:
                outlet.finish(self._source.encode_end(subscription.end_reason))
            self._owner.on_delivered()
            return
        if outlet.full:
            pass  # `on_drained` wakes it
        elif data or subscription.has_more:
            self.wake()  # after the others that wait: a client far behind must not hold them up
        # Only a take that brought nothing shows that it has everything.
        elif (
            self.audience is None
            and subscription.is_fully_shared
            # A round does not look for gaps that end a stream (`offsetOutOfRange: fail`).
            and not subscription.channel.topics_ending_on_loss
        ):
            self._join_audience()
        if state_logger.isEnabledFor(logging.DEBUG):
            self._source.log_changes(is_full=outlet.full)

    def _join_audience(self) -> None:
        self.audience = self._broadcaster.add_client(self)

    def on_audience_left(self) -> None:
        self.audience = None
        if self.outlet is not None:
            # Again it has to hear of each chunk itself. Something may be there already.
            self.subscription.channel.start_waking(self.subscription)
            self.wake()
            if state_logger.isEnabledFor(logging.DEBUG):
                self._source.log_changes(is_full=self.outlet.full)

    def write_event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Write an event; it follows whatever waits in the outlet already."""
        if self.outlet is not None and not self.is_end_written:
            self.outlet.write(self._source.encode_event(kind, data))

    def check_heartbeat(self, now: float, heartbeat: float) -> None:
        if self.audience is not None:
            self.sent_at = max(self.sent_at, self.audience.sent_at)
        if now - self.sent_at >= heartbeat and not self.is_full:
            self.sent_at = now
            self.probe()

    def probe(self) -> None:
        """Write a heartbeat now: the connection shows by it whether the client is still there."""
        if self.outlet is not None and not self.is_end_written:
            heartbeat = self._source.encode_heartbeat()
            if heartbeat:
                self.outlet.write(heartbeat)

    def close(self) -> None:
        self.outlet = None  # so that leaving the audience does not wake it
        if self.audience is not None:
            self.audience.remove_client(self)


class PullDelivery:
    """Hand out bytes: by `iter_bytes`, or by `begin` and `next_bytes` until it returns None.

    `Client` creates it when its bytes are pulled.

    Attributes:
        is_full: Nobody asks for bytes now: the client has not read the last ones, or works on them.
    """

    __slots__ = ("_client", "_event", "_timed_out", "_woken", "is_end_written", "is_full")

    def __init__(self, client: Client) -> None:
        self.is_full = True
        self.is_end_written = False
        self._client = client
        # For this client only, until it is pulled.
        self._event: tuple[str, Mapping[str, Any]] | None = None
        self._woken = asyncio.Event()
        self._timed_out = False
        client.source.subscription.delivery = self

    def begin(self) -> bytes:
        return self._client.begin()

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """Yield everything the client is sent, from the first block to `end`; then close it."""
        try:
            yield self.begin()
            while (data := await self.next_bytes()) is not None:
                yield data
        finally:
            self._client.close()
            if self._client.source.subscription.end_reason is not EndReason.CHANGED:
                self._client.source.close()  # also if `end` was to come

    async def next_bytes(self) -> bytes | None:
        """Return what comes next: data, a heartbeat, at last `end`; then None.

        It may be cancelled and called again: nothing is taken before there is something to return.
        """
        client, source = self._client, self._client.source
        subscription = source.subscription
        self.is_full = False
        try:
            while not self.is_end_written:
                self._woken.clear()  # before looking: a wake after the look must not be lost
                is_expired = subscription.end_reason is EndReason.TOKEN_EXPIRED
                if self._event is not None and not is_expired:
                    (kind, event_data), self._event = self._event, None
                    return source.encode_event(kind, event_data)
                data = source.take()
                if state_logger.isEnabledFor(logging.DEBUG):
                    source.log_changes()
                if data:
                    return data
                elif subscription.end_reason:
                    self.is_end_written = True
                    if subscription.end_reason is EndReason.CHANGED:
                        return None
                    last = source.encode_end(subscription.end_reason)
                    if subscription.delivery is None:  # closed before; kept its position for `end`
                        source.close()
                    return last
                elif subscription.has_more:  # a filter lets nothing through for a while
                    await asyncio.sleep(0)
                elif asyncio.get_running_loop().time() >= client.ends_at:
                    subscription.end(EndReason.LIFETIME)
                elif not await self._wait(client.heartbeat, client.ends_at):
                    return source.encode_heartbeat()
            return None
        finally:
            self.is_full = True

    def wake(self) -> None:
        self._woken.set()

    def write_event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Hand out an event next, in place of one that was not handed out yet."""
        self._event = kind, data
        self.wake()

    async def _wait(self, heartbeat: float, ends_at: float) -> bool:
        """Wait until the client is woken; return False if a heartbeat is due instead."""
        loop = asyncio.get_running_loop()
        # A timer of the loop: 3.7 us a wait, 6.5 us with asyncio.timeout; each delivery waits once.
        timer = loop.call_at(min(loop.time() + heartbeat, ends_at), self._on_timeout)
        self._timed_out = False
        try:
            await self._woken.wait()
        finally:
            timer.cancel()
        return not self._timed_out or loop.time() >= ends_at

    def _on_timeout(self) -> None:
        self._timed_out = True
        self._woken.set()
