"""Bound what the channels of one client may cost, however many connections it has.

A client is known by its identity or address. It may have a share of the memory that cannot be
freed, and a number of conditions that are asked about each record. Most channels are in no account:
those of a small view that an index finds by a value cost a client no more than its connection.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from gateway.client_memory import MAX_UNCOUNTED_BYTES
from gateway.errors import Busy
from gateway.telemetry.logs import LogRateLimit

if TYPE_CHECKING:
    from gateway.core.channel.channel import Channel
    from gateway.core.client.terms import ClientKey
    from gateway.hub.reads.view import View

log = logging.getLogger(__name__)
log.addFilter(LogRateLimit())

# Of one client: up to 8 ms of each record. 50 sockets of 100 streams with 3 conditions fit in.
MAX_CLIENT_CONDITIONS = 16_000


class ClientShares:
    """The bytes and conditions of channels by the client for which they were created.

    `Hubs` has one. A channel counts for that client also while others follow it, until it is
    removed.

    Attributes:
        max_bytes: Of the views of one client; None for any number of bytes and conditions.
    """

    def __init__(self) -> None:
        self.max_bytes: int | None = None
        self._used: dict[ClientKey, tuple[int, int]] = {}  # bytes and conditions
        self._owners: dict[Channel, tuple[ClientKey, View]] = {}

    def add(
        self, client_key: ClientKey, channel: Channel, view: View, *, replaces_other: bool = False
    ) -> None:
        """Count a channel, or raise Busy if it is too much for the client.

        One that replaces another counts beside it until that is removed, so twice as much may be
        used. The only channel of a client may have any size.
        """
        if not client_key or (view.size <= MAX_UNCOUNTED_BYTES and view.filters.has_index_terms):
            return
        size, conditions = self._used.get(client_key, (0, 0))
        used = size + view.size, conditions + view.condition_count
        if self.max_bytes is not None and size:
            factor = 2 if replaces_other else 1
            if used[0] > factor * self.max_bytes:
                self._refuse(client_key, "take as much memory")
            if used[1] > factor * MAX_CLIENT_CONDITIONS:
                self._refuse(client_key, f"have as many conditions ({MAX_CLIENT_CONDITIONS})")
        self._used[client_key] = used
        self._owners[channel] = client_key, view

    def remove(self, channel: Channel) -> None:
        """Count a channel no more. It may be one that was not counted."""
        client_key, view = self._owners.pop(channel, ("", None))
        if view is not None:
            size, conditions = self._used.pop(client_key)
            if size > view.size:
                self._used[client_key] = size - view.size, conditions - view.condition_count

    def _refuse(self, client_key: ClientKey, what: str) -> None:
        detail = f"your streams {what} as those of one client may; close some"
        log.warning("a stream of %s is refused: %s", client_key, detail)
        # A random delay spreads the reconnects of the streams that are refused together.
        raise Busy(429, detail, retry_after=random.uniform(3.0, 10.0))
