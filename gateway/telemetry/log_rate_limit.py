"""Limit the rate of log lines that a library or a client causes.

While a broker is away, aiokafka writes 10 to 20 error lines a second for each consumer, and about
1,000 for a topic that it may not read (measured). Any client can be refused as often as it likes.
The filter lets one line of a kind pass every few seconds, with the number of lines that it held
back.
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
    """A filter of one logger: one line per level and message template every few seconds."""

    def __init__(self, interval: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.interval = interval
        self._clock = clock
        # By kind: when a line passed last, and how many were held back since then.
        self._last_passed: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
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
    for name in LIMITED_LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(existing, LogRateLimit) for existing in logger.filters):
            logger.addFilter(LogRateLimit(interval))
