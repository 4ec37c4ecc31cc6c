"""Bound what the channels of one client may cost, however many connections it has.

A client is known by its identity or address. It may have a share of the memory that cannot be
freed, and a number of conditions that are asked about each record. The bytes of a small view are in
no account, nor is the condition by which an index finds it: all views may have the same value, but
most ask for nothing else.
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

# Of one client: 9 to 25 ms of each record. 50 sockets of 100 streams with 3 conditions fit in.
MAX_CLIENT_CONDITIONS = 16_000


class ClientShares:
    """The bytes and conditions of channels by the clients that follow them. `Hubs` has one.

    Attributes:
        max_bytes: Of the views of one client; None for any number of bytes and conditions.
    """

    def __init__(self) -> None:
        self.max_bytes: int | None = None
        self._used: dict[ClientKey, tuple[int, int]] = {}  # bytes and conditions
        # How many streams of the client follow the channel, and its bytes and conditions.
        self._followed: dict[tuple[ClientKey, Channel], tuple[int, int, int]] = {}

    def add(self, client_key: ClientKey, channel: Channel, view: View) -> None:
        """Count a channel for a client that follows it, or raise Busy if it is too much.

        The only channel of a client may have any size.
        """
        streams, size, conditions = self._followed.get((client_key, channel), (0, 0, 0))
        if not streams:
            size = view.size if view.size > MAX_UNCOUNTED_BYTES else 0
            conditions = view.condition_count if size else view.filters.condition_count
            if conditions and view.filters.has_index_terms:
                conditions -= 1
            if not client_key or not (size or conditions):
                return
            others = self._used.get(client_key, (0, 0))
            used = others[0] + size, others[1] + conditions
            if self.max_bytes is not None and any(others):
                if used[0] > self.max_bytes:
                    self._refuse(client_key, "take as much memory")
                if used[1] > MAX_CLIENT_CONDITIONS:
                    self._refuse(client_key, f"have as many conditions ({MAX_CLIENT_CONDITIONS})")
            self._used[client_key] = used
        self._followed[client_key, channel] = streams + 1, size, conditions

    def remove(self, client_key: ClientKey, channel: Channel) -> None:
        """Note that a stream of a client leaves a channel. It may be one that was not counted."""
        streams, size, conditions = self._followed.pop((client_key, channel), (0, 0, 0))
        if streams > 1:
            self._followed[client_key, channel] = streams - 1, size, conditions
        elif streams:
            used = self._used.pop(client_key)
            if used != (size, conditions):
                self._used[client_key] = used[0] - size, used[1] - conditions

    def _refuse(self, client_key: ClientKey, what: str) -> None:
        detail = f"your streams {what} as those of one client may; close some"
        log.warning("a stream of %s is refused: %s", client_key, detail)
        # A random delay spreads the reconnects of the streams that are refused together.
        raise Busy(429, detail, retry_after=random.uniform(3.0, 10.0))
