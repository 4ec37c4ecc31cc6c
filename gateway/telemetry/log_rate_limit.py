"""Limit the rate of log lines that a library or a client causes.

While a broker is away, aiokafka writes 10 to 20 error lines a second for each consumer, and about
1,000 for a topic that it may not read (measured). Any client can be refused as often as it
likes. The filter lets one line of a kind pass every few seconds, with the number of lines that it
held back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

# A logger's filters are not applied to the lines of its children, so each logger is listed.
LIMITED_LOGGERS = (
    "aiokafka.client",
    "aiokafka.cluster",
    "aiokafka.conn",
    "aiokafka.consumer.consumer",
    "aiokafka.consumer.fetcher",
    "aiokafka.consumer.group_coordinator",
    "aiokafka.producer.producer",
    "aiokafka.producer.sender",
)


class LogRateLimit(logging.Filter):
    """A filter that passes one line per logger, level and message template every few seconds.

    Each logger has one of its own.

    Attributes:
        interval: Seconds between two lines of a kind.
    """

    def __init__(self, interval: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        """Create the filter.

        Args:
            interval: Seconds between two lines of a kind.
            clock: The current time in seconds of any monotonic clock.
        """
        super().__init__()
        self.interval = interval
        self._clock = clock
        # By kind: when a line passed last, and how many were held back since then.
        self._last_passed: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line passes. Its text then says how many did not."""
        if record.levelno < logging.INFO:
            return True  # whoever turned debug lines on wants all of them
        kind = (record.name, record.levelno, str(record.msg)[:80])
        now = self._clock()
        last, held = self._last_passed.get(kind, (-self.interval, 0))
        if now - last < self.interval:
            self._last_passed[kind] = (last, held + 1)
            return False
        # Messages that are formatted before they are logged are a kind each: bound the memory.
        if len(self._last_passed) > 1000:
            self._last_passed.clear()
        self._last_passed[kind] = (now, 0)
        if held:
            record.msg = f"{record.msg} ({held} more of these in {now - last:.0f}s)"
        return True


def limit_log_rate(interval: float = 5.0) -> None:
    """Add the filter to aiokafka's loggers that do not have it yet.

    Args:
        interval: Seconds between two lines of a kind.
    """
    for name in LIMITED_LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(existing, LogRateLimit) for existing in logger.filters):
            logger.addFilter(LogRateLimit(interval))
