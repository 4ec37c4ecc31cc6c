"""The lines that one logger writes, with the context that each is written in."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from gateway.telemetry.logs import get_log_context


class LogLine(NamedTuple):
    """One line: its text, and the ids of its context."""

    text: str
    ids: dict[str, Any]


class _LineCollector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[LogLine] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(LogLine(record.getMessage(), dict(get_log_context())))


@contextmanager
def collect_lines(logger_name: str) -> Iterator[list[LogLine]]:
    """Log everything of this logger within the block, into the list that is yielded."""
    logger, collector = logging.getLogger(logger_name), _LineCollector()
    level = logger.level
    logger.addHandler(collector)
    logger.setLevel(logging.DEBUG)
    try:
        yield collector.lines
    finally:
        logger.setLevel(level)
        logger.removeHandler(collector)
