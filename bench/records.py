"""Build JSON values of 200 bytes that can be counted by three bytes and contain their send time.

    {"m":"~","at":1000000123456789,"n":17,"pad":"xxx..."}

`"~"` is in no token, no framing and no control event, so that clients count records without
parsing (0.16 us each; a single byte would take 0.08, but any can occur in the length of a
WebSocket frame). `at` is `time.monotonic()` in us, the same clock in every process of a machine.
"""

from __future__ import annotations

import random
import re
import time

MARK = b'"~"'
VALUE_BYTES = 200
ARRIVAL_PATTERN = re.compile(rb'"at":(\d{16}),"n":(\d+)')
_BASE_US = 10**15  # so that `at` has the same width on a machine that has just been started

# An order has the members and the few values of all orders, and 20 letters that are its own.
_PROSE = bytes(random.Random(1).choices(b"eeeettaaooiinnsshhrrdlcum   ", k=4096))
_ORDER = (
    b"order customer %b status %b currency eur items sku %b quantity %b warehouse %b carrier post "
    b"created by web shop region east total "
)
_STATES, _COUNTS, _PLACES = (
    (b"paid", b"open", b"shipped", b"cancelled"),
    (b"one", b"two", b"three", b"four"),
    (b"hamburg", b"rotterdam", b"antwerp"),
)


def build_value(n: int, value_bytes: int = VALUE_BYTES, *, is_order: bool = False) -> bytes:
    """is_order: the padding is one, for works that compress."""
    head = b'{"m":"~","at":%d,"n":%d,"pad":"' % (_BASE_US + time.monotonic_ns() // 1000, n)
    count = value_bytes - len(head) - 2
    if not is_order:
        return head + b"x" * count + b'"}'
    at = n * 61 % (len(_PROSE) - value_bytes)
    letters = _PROSE[at : at + 20].replace(b" ", b"x")
    chosen = _STATES[n % 4], letters[8:14], _COUNTS[n // 3 % 4], _PLACES[n // 5 % 3]
    padding = (_ORDER % (letters[:8], *chosen) + letters[14:]).ljust(count)[:count]
    return head + padding + b'"}'


def parse_time(digits: bytes) -> float:
    """When, as `time.monotonic()`."""
    return (int(digits) - _BASE_US) / 1e6
