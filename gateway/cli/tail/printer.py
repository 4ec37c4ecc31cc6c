"""Format records as lines of standard output, write them, and report other events on stderr.

pretty: For people. Time, partition:offset, key and value of the format `envelope`; of other formats
        the whole event.
json:   For jq. One JSON value per line: the line that the stream has as NDJSON. An `envelope` has
        its value as JSON if that is a JSON object or array, and the digits of numbers stay.
value:  Only the values, byte for byte; a tombstone has none. An `envelope` is unpacked; with other
        formats, the whole event is the value.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import stat
import sys
from collections import Counter
from datetime import datetime
from typing import Any

import orjson

from gateway.cli.output import (
    NO_COLOURS,
    Colours,
    escape_controls,
    format_count,
    format_list,
    paint,
    paint_json,
)
from gateway.core.channel.exact_json import parse_json
from gateway.formats.event import json_to_bytes

from .source import StreamEvent
from .target import OutputFormat

_ENVELOPE_KEYS = {"topic", "partition", "offset", "timestamp", "key", "value", "headers"}
_LINE_BREAK = re.compile(r"\s*[\r\n]\s*")
_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")


class Printer:
    """The formatter of a stream's records. On a `tty` it escapes control characters."""

    def __init__(self, style: OutputFormat, *, tty: bool, colours: Colours = NO_COLOURS) -> None:
        lines = {
            OutputFormat.PRETTY: self._format_pretty,
            OutputFormat.JSON: self._format_json,
            OutputFormat.VALUE: self._format_value,
        }
        self._format = lines[style]
        self._tty = tty and style is not OutputFormat.PRETTY
        self._colours = colours
        self._deleted = paint("(deleted)", "bad", colours)
        self._topics: frozenset[str] = frozenset()

    def start_stream(self, topics: list[str]) -> None:
        """Begin a stream. Only events of these topics are envelopes: records may look like one."""
        self._topics = frozenset(topics)

    def format_line(self, event: StreamEvent) -> bytes:
        """Return the line of a record with its end; empty for a tombstone in the format `value`."""
        line = self._format(event)
        if self._tty and line:
            return escape_controls(line.decode(errors="replace"), allowed="\n\t").encode()
        return line

    # the styles

    def _format_json(self, event: StreamEvent) -> bytes:
        if event.name == "delete":
            return b'{"@delete":%b}\n' % event.data
        if envelope := self._parse_envelope(event):
            return orjson.dumps({**envelope, "value": _nest_json(envelope["value"])}) + b"\n"
        try:
            parse_json(event.data)
        except orjson.JSONDecodeError:
            return orjson.dumps(event.data.decode(errors="replace")) + b"\n"
        return event.data.translate(_LINE_BREAKS) + b"\n"  # JSON strings contain no line breaks

    def _format_value(self, event: StreamEvent) -> bytes:
        envelope = self._parse_envelope(event)
        if envelope is not None:
            value = json_to_bytes(envelope["value"])
            return b"" if value is None else value + b"\n"
        return b"" if event.name == "delete" else event.data + b"\n"

    def _format_pretty(self, event: StreamEvent) -> bytes:
        envelope = self._parse_envelope(event)
        if envelope is not None:
            value = envelope["value"]
            parts = [
                self._paint_time(envelope["timestamp"]),
                self._paint_offset(envelope),
                self._paint_text(envelope["key"], "-"),
                self._deleted if value is None else self._paint_value(value),
            ]
        elif event.name == "delete":
            key = parse_json(event.data).get("key")
            parts = [self._paint_text(key, "-"), self._deleted]
        else:
            parts = [self._paint_value(event.data.decode(errors="replace"))]
        return (" ".join(parts) + "\n").encode()

    # parts of a pretty line

    def _paint_time(self, timestamp: int) -> str:
        try:
            at = datetime.fromtimestamp(timestamp / 1000) if timestamp >= 0 else None
        except (ValueError, OverflowError, OSError):  # past the year 9999
            at = None
        text = f"{at:%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}" if at else "-" * 18
        return paint(text, "time", self._colours)

    def _paint_offset(self, envelope: dict[str, Any]) -> str:
        topic = f"{envelope['topic']}/" if len(self._topics) > 1 else ""
        return paint(
            escape_controls(f"{topic}{envelope['partition']}:{envelope['offset']}"),
            "place",
            self._colours,
        )

    def _paint_text(self, value: str | dict[str, str] | None, placeholder: str) -> str:
        """Return a key or value of an envelope: text, or an object with bytes in base64."""
        if value is None:
            return paint(placeholder, "dim", self._colours)
        if isinstance(value, dict):
            return paint("base64:", "dim", self._colours) + escape_controls(value["base64"])
        return escape_controls(value) or paint('""', "dim", self._colours)

    def _paint_value(self, value: str | dict[str, str]) -> str:
        if isinstance(value, dict):
            return self._paint_text(value, "")
        try:
            parse_json(value.encode())
        except orjson.JSONDecodeError:
            return self._paint_text(value, "")
        return paint_json(escape_controls(_LINE_BREAK.sub(" ", value.strip())), self._colours)

    def _parse_envelope(self, event: StreamEvent) -> dict[str, Any] | None:
        if not event.data.startswith(b'{"topic":'):
            return None
        try:
            value = parse_json(event.data)
        except orjson.JSONDecodeError:
            return None
        is_envelope = value.keys() == _ENVELOPE_KEYS and value["topic"] in self._topics
        return value if is_envelope else None


def _nest_json(value: str | dict[str, str]) -> Any:
    """Return a value of an envelope, as JSON if it is the text of an object or array.

    Other JSON stays text: the text `null` is no tombstone, and `1` no number to whoever wrote `01`.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(orjson.JSONDecodeError):
            data = value.encode()
            parse_json(data)
            return orjson.Fragment(data.translate(_LINE_BREAKS))
    return value


PIPE_BUF = 4096  # bytes that a writable pipe accepts without blocking (POSIX)


class OutputClosed(Exception):
    """The reader of the output has ended, as after `| head`."""


class OutputWriter:
    """The writer of a file descriptor.

    Other processes may share the descriptor, so it is not set to non-blocking. It is written to
    only when it is ready, so that a full pipe never delays ^C or the network.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        mode = os.fstat(fd).st_mode
        self._is_pipe = stat.S_ISFIFO(mode)
        self._must_poll = self._is_pipe or stat.S_ISSOCK(mode) or os.isatty(fd)

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                if not self._must_poll:
                    view = view[os.write(self._fd, view) :]
                    continue
                if not select.select((), (self._fd,), (), 0)[1]:
                    await self._wait_ready(for_read=False)
                view = view[os.write(self._fd, view[:PIPE_BUF]) :]
        except BrokenPipeError:
            raise OutputClosed from None

    async def wait_closed(self) -> None:
        """Return when the reader of a pipe has ended; never if the output is not a pipe."""
        if self._is_pipe:
            # The writing end of a pipe becomes readable only by an error.
            await self._wait_ready(for_read=True)
        else:
            await asyncio.get_running_loop().create_future()

    async def _wait_ready(self, *, for_read: bool) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        add, remove = (
            (loop.add_reader, loop.remove_reader)
            if for_read
            else (loop.add_writer, loop.remove_writer)
        )
        add(self._fd, _set_ready, ready)
        try:
            await ready
        finally:
            remove(self._fd)


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class StatusReporter:
    def __init__(self, *, quiet: bool, colours: Colours) -> None:
        self._quiet = quiet
        self._colours = colours

    def report(self, text: str, tone: str = "dim") -> None:
        """Write a line; its colour is that of the tone. Failures to write are ignored."""
        if not self._quiet:
            with contextlib.suppress(OSError):
                print(
                    paint(f"gateway: {escape_controls(text)}", tone, self._colours), file=sys.stderr
                )

    def report_event(self, event: StreamEvent, data: dict[str, Any]) -> None:
        match event.name:
            case "begin":
                self.report(_describe_begin(data))
            case "ready":
                note = " (found by time)" if data.get("resolved") == "approximate" else ""
                self.report(
                    f"{_format_partition(data)} is ready at {data.get('offset')}{note}", "good"
                )
            case "partitions-ready":
                self.report(f"{_format_groups(data)} are ready", "good")
            case "partitions-error":
                self.report(f"{_format_groups(data)} cannot be read for now", "bad")
            case "gap":
                self.report(describe_gap(data), "warn")
            case "error":
                self.report(f"{data.get('code')}: {data.get('message')}", "bad")
            case "end" | "position":
                pass
            case _:
                self.report(f"{event.name} {json.dumps(data, ensure_ascii=False)}")


def describe_gap(data: dict[str, Any]) -> str:
    if data.get("topic") is None:
        return f"gap: it is not known what was missed ({data.get('reason')})"
    span = f"from offset {data.get('from')} to {data.get('to')}"
    return f"gap in {_format_partition(data)} {span} ({data.get('reason')})"


def _describe_begin(data: dict[str, Any]) -> str:
    counts = data.get("partitions") or {}
    topics = ", ".join(f"{name} ({format_count(n, 'partition')})" for name, n in counts.items())
    pending = [_format_partition(each) for each in data.get("pending") or ()]
    late = f"; not ready yet: {format_list(pending)}" if pending else ""
    return f"following {topics}{late}"


def _format_groups(data: dict[str, Any]) -> str:
    counts: Counter[str] = Counter()
    for group in data.get("topics") or ():
        counts[group.get("topic")] += len(group.get("partitions") or ())
    return ", ".join(f"{count} partitions of {topic}" for topic, count in counts.items())


def _format_partition(data: dict[str, Any]) -> str:
    return f"{data.get('topic')}-{data.get('partition')}"
