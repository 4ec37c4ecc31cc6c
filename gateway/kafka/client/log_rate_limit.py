"""aiokafka's own log lines, at a bearable rate.

With a broker away aiokafka writes 10 to 20 error lines a second and reader, with a denied
topic about 1,000 (measured). One of a kind passes every few seconds and says how many did not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

# A logger's filters see only what is logged through itself, not through its children.
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
    """Passes one line per logger, level and message template every `interval` seconds."""

    def __init__(self, interval: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.interval = interval
        self._clock = clock
        self._last_passed: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return True  # someone asked for debug lines: all of them
        kind = (record.name, record.levelno, str(record.msg)[:80])
        now = self._clock()
        last, held = self._last_passed.get(kind, (-self.interval, 0))
        if now - last < self.interval:
            self._last_passed[kind] = (last, held + 1)
            return False
        if len(self._last_passed) > 1000:  # templates that are not: bound the memory
            self._last_passed.clear()
        self._last_passed[kind] = (now, 0)
        if held:
            record.msg = f"{record.msg} ({held} more of these in {now - last:.0f}s)"
        return True


def limit_log_rate(interval: float = 5.0) -> None:
    """Put the filter on aiokafka's loggers, once."""
    for name in LIMITED_LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(existing, LogRateLimit) for existing in logger.filters):
            logger.addFilter(LogRateLimit(interval))
