"""The log: one handler on stderr, lines to read or JSON, levels that can be changed at any time.

A line says what it is about (`about`) behind its text, in JSON as members. What looks like a secret
is hidden in all of them, and what a client wrote cannot look like a line of its own, move the
cursor of a terminal or turn the text around: such characters are escaped here, for every logger.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from .log_context import get_log_context
from .redaction import redact_text

LEVELS = ("debug", "info", "warning", "error")
LIBRARIES = ("aiokafka", "httpx", "uvicorn", "opentelemetry")  # any other name is a room of ours
DEFAULT_LIBRARY_LEVELS = {
    "aiokafka": "warning",
    "httpx": "warning",
}  # said by us, once, where it matters
EXTRA_FIELDS = ("topic", "partition", "broker", "cause")  # members that a line's `extra` may have

# Control characters (C0, DEL, C1), what breaks lines or is not shown, what changes the direction of
# text (UAX 9), tags, and halves of surrogate pairs, which no stream can encode.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)

line_counts: Counter[str] = Counter()
"""Lines logged in this process, by level."""


def configure(
    format: Literal["console", "json"] = "console",
    level: str = "info",
    levels: Mapping[str, str] | None = None,
    *,
    worker: int | None = None,
    stream: TextIO | None = None,
) -> None:
    """Log from now on like this; it may be called again.

    levels: of single rooms (`kafka`) and libraries (`aiokafka`).
    worker: its number goes into every line, where there are several.
    stream: stderr if none is given.
    """
    handler = _CountingHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter(worker) if format == "json" else _ConsoleFormatter(worker))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _CountingHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    set_levels(level, levels or {})


def set_levels(level: str, levels: Mapping[str, str]) -> None:
    """What is logged from now on, at all and of single rooms; those not named say what all do.

    Raises ValueError for what is no level.
    """
    wanted = {**DEFAULT_LIBRARY_LEVELS, **levels}
    for each in (level, *wanted.values()):
        if each not in LEVELS:
            raise ValueError(f"'{each}' is no level; use one of {', '.join(LEVELS)}")
    logging.getLogger().setLevel(level.upper())
    for name in _configured_loggers - {_logger_name(room) for room in wanted}:
        logging.getLogger(name).setLevel(logging.NOTSET)
    _configured_loggers.clear()
    for room, each in wanted.items():
        logging.getLogger(_logger_name(room)).setLevel(each.upper())
        _configured_loggers.add(_logger_name(room))


def get_levels() -> dict[str, str]:
    """What is logged: `""` is at all."""
    at_all = {"": logging.getLevelName(logging.getLogger().level).lower()}
    named = {
        name.removeprefix("gateway."): logging.getLevelName(logging.getLogger(name).level).lower()
        for name in sorted(_configured_loggers)
    }
    return at_all | named


_configured_loggers: set[str] = set()  # loggers that were given a level here


def _logger_name(name: str) -> str:
    return name if name in LIBRARIES else f"gateway.{name}"


class _CountingHandler(logging.StreamHandler[TextIO]):
    def emit(self, record: logging.LogRecord) -> None:
        line_counts[record.levelname.lower()] += 1
        super().emit(record)


class _ConsoleFormatter(logging.Formatter):
    """`2026-11-21 10:00:00,000 INFO gateway.hub.fanout.client: text [route=/events stream=7]`"""

    def __init__(self, worker: int | None) -> None:
        name = "%(name)s" if worker is None else f"worker {worker} %(name)s"
        super().__init__(f"%(asctime)s %(levelname)s {name}: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = super().formatMessage(record)
        ids = " ".join(f"{key}={value}" for key, value in _get_context_ids(record).items())
        return f"{text} [{ids}]" if ids else text

    def format(self, record: logging.LogRecord) -> str:
        """The line; a traceback follows, each of its lines indented, so that none looks like one
        of the log."""
        record.message = record.getMessage()
        record.asctime = self.formatTime(record)
        text = escape_line(redact_text(self.formatMessage(record)))
        trace = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        for more in (trace, record.stack_info):
            if more:
                text += "".join(
                    [f"\n  {escape_line(line)}" for line in redact_text(more).split("\n")]
                )
        return text


class _JsonFormatter(logging.Formatter):
    """One object a line. time: RFC 3339 in UTC; error: the traceback."""

    def __init__(self, worker: int | None) -> None:
        super().__init__()
        self._worker = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact_text(record.getMessage()),
            **self._worker,
            **{name: _get_extra(record, name) for name in EXTRA_FIELDS if hasattr(record, name)},
            **_get_context_ids(record),
        }
        if record.exc_info:
            told["error"] = redact_text(self.formatException(record.exc_info))
        return _UNSAFE.sub(_escape_in_json, json.dumps(told, ensure_ascii=False, default=str))


def escape_line(text: str) -> str:
    """Text for one line of a terminal: what is no plain character is written as Python does."""
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_escape_in_text, text)


def _escape_in_text(char: re.Match[str]) -> str:
    return char[0].encode("unicode_escape").decode()


def _escape_in_json(char: re.Match[str]) -> str:
    """As a JSON text has it (RFC 8259 7): whoever parses the line gets the character itself."""
    return json.dumps(char[0])[1:-1]


def _get_extra(record: logging.LogRecord, name: str) -> Any:
    value = getattr(record, name)
    return value if isinstance(value, (int, float)) else redact_text(str(value))


def _get_context_ids(record: logging.LogRecord) -> dict[str, Any]:
    """Of the context, in which the line was written: handlers run there."""
    return {
        name: redact_text(value) if isinstance(value, str) else value
        for name, value in get_log_context().items()
        if value is not None
    }
