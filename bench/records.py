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
TIME_PATTERN = re.compile(rb'"at":(\d{16})')
NUMBER_PATTERN = re.compile(rb'"n":(\d+)')
_BASE_US = 10**15  # so that `at` has the same width on a machine that has just been started


# Letters drawn as in English, without its words: deflate makes about 0.6 of them.
_PROSE = bytes(random.Random(1).choices(b"eeeettaaooiinnsshhrrdlcum   ", k=4096))


def build_value(n: int, value_bytes: int = VALUE_BYTES, *, has_prose: bool = False) -> bytes:
    """prose: the padding is not one letter, for what compresses."""
    head = b'{"m":"~","at":%d,"n":%d,"pad":"' % (_BASE_US + time.monotonic_ns() // 1000, n)
    count = value_bytes - len(head) - 2
    at = n * 61 % (len(_PROSE) - value_bytes)
    return head + (_PROSE[at : at + count] if has_prose else b"x" * count) + b'"}'


def parse_time(digits: bytes) -> float:
    """When, as `time.monotonic()`."""
    return (int(digits) - _BASE_US) / 1e6
