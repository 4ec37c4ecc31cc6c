"""Write the bytes of one client to its outlet, without a task.

What is published is written in rounds by the `Broadcaster`; a `PushDelivery` writes only what is
the client's own: what it is sent while it catches up, heartbeats and the end. Its states:

- In an `Audience`: the client has all that was published, and rounds write to its outlet.
- Otherwise `push` takes from the `ClientSource`. A client that has caught up joins an audience.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from gateway.core.client.end_reason import EndReason

from .broadcaster import Audience, Broadcaster
from .client_source import ClientSource
from .outlet import Outlet
from .state_log import log as state_logger


class DeliveryOwner(Protocol):
    """Define what a delivery needs of the `Client` that it belongs to."""

    def on_delivered(self) -> None:
        """Release everything: the last bytes were written."""


class PushDelivery:
    """Push the bytes of a `ClientSource` to an outlet.

    `Client.attach` creates it, and the client closes it. A closed one has no outlet.

    Args:
        source: What is delivered.
        broadcaster: Writes to it while the client has everything.
        owner: Closes it when the last bytes were written. A bound method in its place would take
            64 bytes of each client.

    Attributes:
        subscription: The subscription of the source.
        outlet: The connection; None once it is closed.
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
        """Return whether rounds write to it, so that it has all that was published."""
        return self.audience is not None

    @property
    def is_full(self) -> bool:
        """Return whether the outlet waits for the other side."""
        return self.outlet is not None and self.outlet.full

    def wake(self) -> None:
        """Look for something to send soon, but never within the call that brought it."""
        if self.outlet is not None and not self._is_push_scheduled:
            self._is_push_scheduled = True
            self._broadcaster.schedule_push(self)

    def on_drained(self) -> None:
        """Go on: the outlet is no longer full."""
        self.wake()

    def push(self) -> None:
        """Send about 64 KiB of what is this client's own.

        Once it has everything, it joins the audience that the `Broadcaster` writes to.
        """
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
        """Let rounds write to this client: it has everything that was published."""
        self.audience = self._broadcaster.add_client(self)

    def on_audience_left(self) -> None:
        """Take over from the rounds of an audience, which no longer write to this client."""
        self.audience = None
        if self.outlet is not None:
            # Again it has to hear of each chunk itself. Something may be there already.
            self.subscription.channel.start_waking(self.subscription)
            self.wake()
            if state_logger.isEnabledFor(logging.DEBUG):
                self._source.log_changes(is_full=self.outlet.full)

    def write_event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Write an event; it follows whatever waits in the outlet already.

        Args:
            data: Its data, which is encoded as JSON.
        """
        if self.outlet is not None and not self.is_end_written:
            self.outlet.write(self._source.encode_event(kind, data))

    def check_heartbeat(self, now: float, heartbeat: float) -> None:
        """Write a heartbeat if nothing was sent for a while.

        Args:
            now: The time by the loop's clock, in seconds.
            heartbeat: Seconds after which an idle stream is sent a heartbeat.
        """
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
        """Write nothing more. It may be called again."""
        self.outlet = None  # so that leaving the audience does not wake it
        if self.audience is not None:
            self.audience.remove_client(self)
