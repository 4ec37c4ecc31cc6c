"""Say when the clients of streams that end are to reconnect.

The range is longer than that of `retry:` at the beginning of a stream, since many streams end at
once when the gateway drains, and longer still where they are very many.
"""

from __future__ import annotations

import random

from gateway.core.client.reconnect_delays import ReconnectDelays

END_RETRY_RANGE_S = (1.0, 15.0)
MAX_END_RETRY_S = 300.0
RECONNECTS_PER_SECOND = 2000  # clients that a replica takes back while it does other work as well

_delays: ReconnectDelays | None = None


def draw_end_retry_ms() -> int:
    """Return when the next client is to reconnect, in milliseconds."""
    global _delays
    # Not at the import: processes that are forked after that would share their start.
    _delays = _delays or ReconnectDelays(*END_RETRY_RANGE_S, start=random.random())
    return _delays.draw_ms()


def spread_end_retries(client_count: int) -> None:
    """Let the clients of this process, which drains, come back no faster than others take them.

    30,000 clients or more are sent away for longer than usual.
    """
    global _delays
    low_s, usual_s = END_RETRY_RANGE_S
    high_s = min(MAX_END_RETRY_S, low_s + client_count / RECONNECTS_PER_SECOND)
    if high_s > usual_s:
        _delays = ReconnectDelays(low_s, high_s, start=random.random())
