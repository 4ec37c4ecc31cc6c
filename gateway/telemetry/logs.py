"""Write log lines to stderr, as text or JSON, with levels that can be changed at run time.

A text line ends with its context (see `log_context`) in brackets; a JSON line has it as members.
Anything that looks like a secret is hidden. Characters by which a client's text could imitate
another log line, move a terminal's cursor or reorder the text are escaped. The formatters do both,
so it holds for every logger, those of libraries included.

`redact_url` and `redact_text` also hide secrets elsewhere. EventSource cannot set a header, so its
clients put their tokens into the query: an error response or a span that shows such a URL must not
give the token away.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import logging
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextvars import Context, ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, TextIO, TypeVar
from urllib.parse import unquote_plus

T = TypeVar("T")

_NONE: Mapping[str, Any] = {}
_log_context: ContextVar[Mapping[str, Any]] = ContextVar("gateway_about", default=_NONE)


class log_context:
    """A context manager that adds ids to the log lines of its block; None removes an id.

    The ids are those of the client's stream, its route, topic, partition and trace.

        with log_context(route="/events/{customer}", stream="7"):
            log.info("...")  # this line has both, as have those of tasks that are created here

    Tasks inherit the context. A task that serves all clients, but is created for the first client
    that needs it, must not: its lines would name that client for ever. `create_detached_task`
    creates it.
    """

    __slots__ = ("_ids", "_token")

    def __init__(self, **ids: Any) -> None:
        self._ids = ids

    def __enter__(self) -> None:
        self._token = _log_context.set({**_log_context.get(), **self._ids})

    def __exit__(self, *_: object) -> None:
        _log_context.reset(self._token)


def bind_log_context(**ids: Any) -> None:
    _log_context.set({**_log_context.get(), **ids})


def get_log_context() -> Mapping[str, Any]:
    return _log_context.get()


def create_detached_task(coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Create a task whose log lines have no ids of the current context."""
    return asyncio.get_running_loop().create_task(coro, context=Context())


REDACTED = "***"
_SECRET_NAMES = {
    *("token", "access_token", "id_token", "refresh_token", "jwt", "bearer", "auth"),
    *("authorization", "api_key", "apikey", "key", "password", "secret", "signature", "sig"),
    *("code", "session", "ticket", "credentials"),
}
# A JWT has three parts (RFC 7519), and the first begins with "eyJ", which is `{"` in base64. One
# pattern for it would take quadratic time on a text of many "eyJ", so runs of its characters are
# searched for, and `_redact_jwts` splits them.
_TOKEN_CHARS = re.compile(r"[A-Za-z0-9_.-]+")
_JWT_PREFIX, _MIN_JWT_CHARS = "eyJ", 8
_AUTH_SCHEME = re.compile(r"\b(bearer|basic)(\s+|\.)[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^/?#@\s]*@")
_QUERY_PAIR = re.compile(r"([?&;]|^)([^=&;?#\s]+)=([^&;#\s\"']*)")


def add_secret_names(names: Iterable[str]) -> None:
    """Add names of query parameters that hold secrets, besides the usual ones."""
    _SECRET_NAMES.update(_normalize_name(name) for name in names)


def redact_url(url: str) -> str:
    """Hide credentials before the host of a URL, and the values of secret parameters."""
    path, mark, query = url.partition("?")
    path = _USERINFO.sub(f"{REDACTED}@", path)
    return path + mark + _QUERY_PAIR.sub(_redact_pair, query) if mark else path


def redact_text(text: str) -> str:
    if "=" in text and ("?" in text or "&" in text):
        text = _QUERY_PAIR.sub(_redact_pair, text)
    if "eyJ" in text:
        text = _TOKEN_CHARS.sub(_redact_jwts, text)
    if "://" in text and "@" in text:
        text = _USERINFO.sub(f"{REDACTED}@", text)
    lowered = text.lower()
    if "bearer" in lowered or "basic" in lowered:
        text = _AUTH_SCHEME.sub(rf"\1\2{REDACTED}", text)
    return text


def _redact_jwts(run: re.Match[str]) -> str:
    """Return a run of token characters in which JWTs are hidden.

    A JWT may follow other characters in its first part, and may have been cut after its second.
    """
    parts, kept = run[0].split("."), []
    while len(parts) > 1:
        part = parts.pop(0)
        at = part.find(_JWT_PREFIX)
        if 0 <= at <= len(part) - _MIN_JWT_CHARS:
            kept.append(part[:at] + REDACTED)
            del parts[:2]
        else:
            kept.append(part)
    return ".".join([*kept, *parts])


def _redact_pair(pair: re.Match[str]) -> str:
    before, name, value = pair.groups()
    secret = _normalize_name(name) in _SECRET_NAMES
    return f"{before}{name}={REDACTED if secret and value else value}"


def _normalize_name(name: str) -> str:
    """Return a name as the parser of the query sees it, so that %-encoding cannot hide it."""
    return unquote_plus(name).lower().replace("-", "_")


# Python loads a codec at its first use, when there may be no free descriptor for that.
codecs.lookup("unicode_escape")

LEVELS = ("debug", "info", "warning", "error")
# Packages that log in a process that serves. A name covers the packages within it.
COMPONENTS = (
    "api", "config", "formats", "hub", "hub.fanout", "hub.reads", "hub.wires", "kafka",
    "kafka.client", "kafka.fetch", "kafka.group", "kafka.produce", "sidecar",
    "sidecar.consumer", "sidecar.dead_letter_retry", "sidecar.http", "sidecar.ksqldb",
    "sidecar.producer", "sidecar.reactive", "sidecar.replay", "telemetry", "web", "web.access",
    "web.admin", "web.app", "web.console", "web.demo", "web.http",
    "web.routing", "web.streams", "web.websocket", "web.workers",
)  # fmt: skip
# Those of the process that runs Spark jobs, which reads the same configuration.
PIPELINE_COMPONENTS = (
    "pipeline", "pipeline.checkpoint", "pipeline.exactly_once", "pipeline.jobs",
    "pipeline.progress", "pipeline.run", "pipeline.tables",
)  # fmt: skip
LIBRARIES = ("aiokafka", "httpx", "uvicorn", "opentelemetry")  # other names: our packages
DEFAULT_LIBRARY_LEVELS = {
    "aiokafka": "warning",
    "httpx": "warning",
}  # below warning, both report each attempt of what the gateway logs once
EXTRA_FIELDS = ("topic", "partition", "broker", "cause")  # keys of `extra` that JSON lines have

# Control characters (C0, DEL, C1), line separators, invisible characters, those that change the
# direction of text (UAX #9), tag characters, and lone surrogates, which no stream can encode.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)

# Names of loggers as lines have them. uvicorn's logger of all that is no access is `uvicorn.error`,
# which in a line about a start reads as if there was an error.
_SHOWN_NAMES = {"uvicorn.error": "uvicorn"}

line_counts: Counter[str] = Counter()
"""Log lines of this process, by level."""


def configure(
    format: Literal["console", "json"] = "console",
    level: str = "info",
    levels: Mapping[str, str] | None = None,
    *,
    worker: int | None = None,
    stream: TextIO | None = None,
) -> None:
    """Configure the root logger in place of an earlier configuration, or raise ValueError.

    Args:
        format: `console` for text, `json` for one object per line.
        level: The level of everything that `levels` does not name.
        levels: Levels by component (`kafka`, `kafka.fetch`) or library (`aiokafka`). The longest
            name that covers a logger decides.
        worker: The number of this worker, added to every line; None if there is one process.
    """
    handler = _CountingHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter(worker) if format == "json" else _ConsoleFormatter(worker))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _CountingHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    set_levels(level, levels or {})


def announce(text: str) -> None:
    """Print a line about the start of a process to stdout, as JSON if the log is JSON."""
    print(format_output(text), flush=True)


def format_output(text: str, level: int = logging.INFO) -> str:
    """Return text to be printed past the log: an object for each line if the log is JSON."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _CountingHandler) and isinstance(handler.formatter, _JsonFormatter):
            records = [
                logging.LogRecord("gateway", level, "", 0, line, None, None)
                for line in text.splitlines()
            ]
            return "\n".join(map(handler.formatter.format, records))
    return text


def capture_stray_lines() -> None:
    """Log Python's warnings and uncaught errors: a JSON log must have no other lines."""
    logging.captureWarnings(True)
    log = logging.getLogger("gateway")

    def log_error(
        kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            return
        log.critical("an error that nobody caught: %s", kind.__name__, exc_info=error or True)

    sys.excepthook = log_error
    threading.excepthook = lambda args: log_error(args.exc_type, args.exc_value, args.exc_traceback)
    sys.unraisablehook = lambda args: log_error(args.exc_type, args.exc_value, args.exc_traceback)


def set_levels(level: str, levels: Mapping[str, str]) -> None:
    """Change all levels, or none and raise ValueError. Unnamed loggers get the general one."""
    wanted = {**DEFAULT_LIBRARY_LEVELS, **levels}
    for each in (level, *wanted.values()):
        if each not in LEVELS:
            raise ValueError(f"'{each}' is no level; use one of {', '.join(LEVELS)}")
    logging.getLogger().setLevel(level.upper())
    for name in _configured_loggers - {_logger_name(each) for each in wanted}:
        logging.getLogger(name).setLevel(logging.NOTSET)
    _configured_loggers.clear()
    for component, component_level in wanted.items():
        name = _logger_name(component)
        logging.getLogger(name).setLevel(component_level.upper())
        _configured_loggers.add(name)


def get_levels() -> dict[str, str]:
    general = {"": logging.getLevelName(logging.getLogger().level).lower()}
    named = {
        name.removeprefix("gateway."): logging.getLevelName(logging.getLogger(name).level).lower()
        for name in sorted(_configured_loggers)
    }
    return general | named


def is_logger(name: str) -> bool:
    if name in COMPONENTS or name in LIBRARIES:
        return True
    known = logging.root.manager.loggerDict.get(f"gateway.{name}")
    return isinstance(known, logging.Logger)


_configured_loggers: set[str] = set()  # the names of loggers whose level `set_levels` set


def _logger_name(name: str) -> str:
    return name if name in LIBRARIES else f"gateway.{name}"


class _CountingHandler(logging.StreamHandler[TextIO]):
    """A handler that counts its lines. Its type tells it from others' handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        line_counts[record.levelname.lower()] += 1
        super().emit(record)


class _ConsoleFormatter(logging.Formatter):
    def __init__(self, worker: int | None) -> None:
        name = "%(shown_name)s" if worker is None else f"worker {worker} %(shown_name)s"
        super().__init__(f"%(asctime)s %(levelname)s {name}: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = super().formatMessage(record)
        ids = " ".join(f"{key}={value}" for key, value in _get_context_ids(record).items())
        return f"{text} [{ids}]" if ids else text

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback follows indented, so that it cannot imitate a log line."""
        record.message = record.getMessage()
        record.shown_name = _SHOWN_NAMES.get(record.name, record.name)
        record.asctime = self.formatTime(record)
        text = escape_line(redact_text(self.formatMessage(record)))
        traceback = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        for more in (traceback, record.stack_info):
            if more:
                text += "".join(
                    [f"\n  {escape_line(line)}" for line in redact_text(more).split("\n")]
                )
        return text


class _JsonFormatter(logging.Formatter):
    """One JSON object per line, with `time` (RFC 3339, UTC) and a traceback in `error`."""

    def __init__(self, worker: int | None) -> None:
        super().__init__()
        self._worker = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        members: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": _SHOWN_NAMES.get(record.name, record.name),
            "message": redact_text(record.getMessage()),
            **self._worker,
            **{name: _get_extra(record, name) for name in EXTRA_FIELDS if hasattr(record, name)},
            **_get_context_ids(record),
        }
        if record.exc_info:
            members["error"] = redact_text(self.formatException(record.exc_info))
        return _UNSAFE.sub(_escape_in_json, json.dumps(members, ensure_ascii=False, default=str))


def escape_line(text: str) -> str:
    """Return a text that stays on one line: unsafe characters become Python's escapes."""
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_escape_in_text, text)


def _escape_in_text(char: re.Match[str]) -> str:
    return char[0].encode("unicode_escape").decode()


def _escape_in_json(char: re.Match[str]) -> str:
    """Return JSON's escape of a character (RFC 8259 7): a parser restores the character."""
    return json.dumps(char[0])[1:-1]


def _get_extra(record: logging.LogRecord, name: str) -> Any:
    value = getattr(record, name)
    return value if isinstance(value, (int, float)) else redact_text(str(value))


def _get_context_ids(record: logging.LogRecord) -> dict[str, Any]:
    return {
        name: redact_text(value) if isinstance(value, str) else value
        for name, value in get_log_context().items()
        if value is not None
    }


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
    """A filter of one logger: one line per level and message template every few seconds.

    It bounds the lines that a library or a client causes. While a broker is away, aiokafka writes
    10 to 20 error lines a second for each consumer, and about 1,000 for a topic that it may not
    read (measured). Any client can be refused as often as it likes. The next line of a kind has the
    number of lines that were held back.
    """

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
