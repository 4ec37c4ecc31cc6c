"""Keep what one client got over all of its connections: which records, and how often.

Values are those of `records`; anything else with their mark counts as damaged. A client that was
cut comes back with the last id that it read, as a browser would.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .records import MARK

if TYPE_CHECKING:
    from .client_pool import Client

_VALUE_PATTERN = rb'\{"m":"~","at":\d{16},"n":(\d+),"pad":"[a-z ]*"\}'
_EVENT_PATTERN = re.compile(rb"data: ?" + _VALUE_PATTERN + rb"\n(?:id: ?\S+\n)?\n")
_RECORD_PATTERN = re.compile(_VALUE_PATTERN)
_ID_PATTERN = re.compile(rb"^id: ?(\S+)$", re.MULTILINE)
_POSITION_PATTERN = re.compile(rb'"position":"([^"]+)"')


class Ledger:
    """What one client has.

    token: of the last event. id_count: how many events had one. byte_count: behind the head.
    duplicate_count: records that came again. damaged_count: those that were not whole.
    client: the connection that it has. close_reason: why it ended, if it was not cut.
    `expect_records` says which records make it whole, and live; `completed_at` is when it was both.
    dictionary: what it decodes `dcz` with.
    """

    def __init__(self, dictionary: bytes = b"") -> None:
        self.dictionary = dictionary
        self.client: Client | None = None
        self.token = b""
        self.seen_numbers = bytearray()
        self.record_count = self.duplicate_count = self.damaged_count = 0
        self.id_count = self.byte_count = 0
        self.is_compressed = False  # something came so
        self.close_reason = ""
        self.completed_at = 0.0
        self.missing_count = 0
        self._expected_first = self._expected_end = 1 << 62

    def expect_records(self, first: int, end: int) -> None:
        """Whole with all of these, live with any after them."""
        self._expected_first, self._expected_end, self.missing_count = first, end, end - first
        self.completed_at = 0.0

    def count_lost(self, first: int, end: int) -> int:
        return end - first - sum(self.seen_numbers[first:end])

    def has_received(self, count: int) -> bool:
        """Raises ConnectionError if no more will come."""
        if self.record_count < count and self.close_reason:
            raise ConnectionError(self.close_reason)
        return self.record_count >= count

    def disconnect(self) -> None:
        """Cut its connection; what still comes over it is nothing."""
        client, self.client = self.client, None
        if client is not None:
            client.transport.abort()

    def read_events(self, text: bytes) -> None:
        """Read whole server-sent events."""
        numbers = _EVENT_PATTERN.findall(text)
        self.damaged_count += text.count(MARK) - len(numbers)
        self.id_count += text.count(b"\nid:")
        if last := _ID_PATTERN.search(text, max(0, text.rfind(b"\nid:"))):
            self.token = last[1]
        self.record_numbers(numbers)

    def read_message(self, payload: bytes) -> None:
        """Read a message of a WebSocket."""
        numbers = _RECORD_PATTERN.findall(payload)
        self.damaged_count += payload.count(MARK) - len(numbers)
        if position := _POSITION_PATTERN.search(payload, max(0, payload.rfind(b'"position":'))):
            self.token = position[1]
            self.id_count += 1
        self.record_numbers(numbers)

    def record_numbers(self, numbers: list[bytes]) -> None:
        if not numbers:
            return
        self.record_count += len(numbers)
        seen, first, end, live = self.seen_numbers, self._expected_first, self._expected_end, False
        for n in map(int, numbers):
            if n >= len(seen):
                seen.extend(bytes(n + 10_000 - len(seen)))
            if seen[n]:
                self.duplicate_count += 1
                continue
            seen[n] = 1
            if n >= end:
                live = True
            elif n >= first:
                self.missing_count -= 1
        if live and not self.missing_count and not self.completed_at:
            self.completed_at = time.monotonic()


def count_received(ledgers: Iterable[Ledger]) -> int:
    return sum(ledger.record_count for ledger in ledgers)
