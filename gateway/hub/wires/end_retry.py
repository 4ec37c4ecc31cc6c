"""Say when the clients of streams that end are to reconnect.

The range is longer than that of `retry:` at the beginning of a stream, since many streams end at
once when the gateway drains.
"""

from __future__ import annotations

import random

from gateway.core.client.reconnect_delays import ReconnectDelays

END_RETRY_RANGE_S = (1.0, 15.0)
_delays = ReconnectDelays(*END_RETRY_RANGE_S, start=random.random())


def draw_end_retry_ms() -> int:
    """Return when the next client is to reconnect, in milliseconds."""
    return _delays.draw_ms()
