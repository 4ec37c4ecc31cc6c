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


class EndRetries:
    def __init__(self) -> None:
        self._delays: ReconnectDelays | None = None

    def draw_ms(self) -> int:
        # Not at the import: processes that are forked after that would share their start.
        self._delays = self._delays or ReconnectDelays(*END_RETRY_RANGE_S, start=random.random())
        return self._delays.draw_ms()

    def spread(self, client_count: int) -> None:
        """Let the clients of this process, which drains, come back no faster than others take them.

        30,000 clients or more are sent away for longer than usual.
        """
        low_s, usual_s = END_RETRY_RANGE_S
        high_s = min(MAX_END_RETRY_S, low_s + client_count / RECONNECTS_PER_SECOND)
        if high_s > usual_s:
            self._delays = ReconnectDelays(low_s, high_s, start=random.random())


end_retries = EndRetries()
"""Of the clients of this process."""
