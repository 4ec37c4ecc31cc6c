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

from .about import noted
from .redact import cleaned

LEVELS = ("debug", "info", "warning", "error")
LIBRARIES = ("aiokafka", "httpx", "uvicorn", "opentelemetry")  # any other name is a room of ours
QUIET = {"aiokafka": "warning", "httpx": "warning"}  # said by us, once, where it matters
EXTRAS = ("topic", "partition", "broker", "cause")  # members that a line's `extra` may have

# Control characters (C0, DEL, C1), what breaks lines or is not shown, what changes the direction of
# text (UAX 9), tags, and halves of surrogate pairs, which no stream can encode.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)

lines: Counter[str] = Counter()
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
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(_Json(worker) if format == "json" else _Console(worker))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    set_levels(level, levels or {})


def set_levels(level: str, levels: Mapping[str, str]) -> None:
    """What is logged from now on, at all and of single rooms; those not named say what all do.

    Raises ValueError for what is no level.
    """
    wanted = {**QUIET, **levels}
    for each in (level, *wanted.values()):
        if each not in LEVELS:
            raise ValueError(f"'{each}' is no level; use one of {', '.join(LEVELS)}")
    logging.getLogger().setLevel(level.upper())
    for name in _set - {_logger(room) for room in wanted}:
        logging.getLogger(name).setLevel(logging.NOTSET)
    _set.clear()
    for room, each in wanted.items():
        logging.getLogger(_logger(room)).setLevel(each.upper())
        _set.add(_logger(room))


def current_levels() -> dict[str, str]:
    """What is logged: `""` is at all."""
    at_all = {"": logging.getLevelName(logging.getLogger().level).lower()}
    named = {
        name.removeprefix("gateway."): logging.getLevelName(logging.getLogger(name).level).lower()
        for name in sorted(_set)
    }
    return at_all | named


_set: set[str] = set()  # loggers that were given a level here


def _logger(room: str) -> str:
    return room if room in LIBRARIES else f"gateway.{room}"


class _Handler(logging.StreamHandler[TextIO]):
    def emit(self, record: logging.LogRecord) -> None:
        lines[record.levelname.lower()] += 1
        super().emit(record)


class _Console(logging.Formatter):
    """`2026-11-21 10:00:00,000 INFO gateway.hub.fanout.client: text [route=/events stream=7]`"""

    def __init__(self, worker: int | None) -> None:
        name = "%(name)s" if worker is None else f"worker {worker} %(name)s"
        super().__init__(f"%(asctime)s %(levelname)s {name}: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = super().formatMessage(record)
        ids = " ".join(f"{key}={value}" for key, value in _ids(record).items())
        return f"{text} [{ids}]" if ids else text

    def format(self, record: logging.LogRecord) -> str:
        """The line; a traceback follows, each of its lines indented, so that none looks like one
        of the log."""
        record.message = record.getMessage()
        record.asctime = self.formatTime(record)
        text = escaped(cleaned(self.formatMessage(record)))
        trace = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        for more in (trace, record.stack_info):
            if more:
                text += "".join([f"\n  {escaped(line)}" for line in cleaned(more).split("\n")])
        return text


class _Json(logging.Formatter):
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
            "message": cleaned(record.getMessage()),
            **self._worker,
            **{name: _extra(record, name) for name in EXTRAS if hasattr(record, name)},
            **_ids(record),
        }
        if record.exc_info:
            told["error"] = cleaned(self.formatException(record.exc_info))
        return _UNSAFE.sub(_in_json, json.dumps(told, ensure_ascii=False, default=str))


def escaped(text: str) -> str:
    """Text for one line of a terminal: what is no plain character is written as Python does."""
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_in_text, text)


def _in_text(char: re.Match[str]) -> str:
    return char[0].encode("unicode_escape").decode()


def _in_json(char: re.Match[str]) -> str:
    """As a JSON text has it (RFC 8259 7): whoever parses the line gets the character itself."""
    return json.dumps(char[0])[1:-1]


def _extra(record: logging.LogRecord, name: str) -> Any:
    value = getattr(record, name)
    return value if isinstance(value, (int, float)) else cleaned(str(value))


def _ids(record: logging.LogRecord) -> dict[str, Any]:
    """Of the context, in which the line was written: handlers run there."""
    return {
        name: cleaned(value) if isinstance(value, str) else value
        for name, value in noted().items()
        if value is not None
    }
