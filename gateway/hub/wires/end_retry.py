"""Say when the clients of streams that end are to reconnect.

The range is longer than that of `retry:` at the beginning of a stream, since many streams end at
once when the gateway drains.
"""

from __future__ import annotations

import random
from functools import cache

from gateway.core.client.reconnect_delays import ReconnectDelays

END_RETRY_RANGE_S = (1.0, 15.0)


def draw_end_retry_ms() -> int:
    """Return when the next client is to reconnect, in milliseconds."""
    return _get_delays().draw_ms()


@cache
def _get_delays() -> ReconnectDelays:
    """Return the sequence of this process.

    It is not created at the import: processes that are forked after that would share their start.
    """
    return ReconnectDelays(*END_RETRY_RANGE_S, start=random.random())
