"""Format records as lines of standard output.

pretty: For people. Time, partition:offset, key and value of the format `envelope`; of other formats
        the whole event.
json:   For jq. One JSON value per line: the line that the stream has as NDJSON.
value:  Only the values, byte for byte; a tombstone has none. An `envelope` is unpacked; with other
        formats, the whole event is the value.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import orjson

from gateway.core.channel.exact_json import parse_json
from gateway.formats.event import json_to_bytes

from .output_format import OutputFormat
from .source import StreamEvent
from .terminal import NO_COLOURS, Colours, escape_controls, paint, paint_json

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
            ]
            parts.append(self._paint_deleted() if value is None else self._paint_value(value))
        elif event.name == "delete":
            key = parse_json(event.data).get("key")
            parts = [self._paint_text(key, "-"), self._paint_deleted()]
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

    def _paint_deleted(self) -> str:
        return paint("(deleted)", "bad", self._colours)

    def _parse_envelope(self, event: StreamEvent) -> dict[str, Any] | None:
        if not event.data.startswith(b'{"topic":'):
            return None
        try:
            value = parse_json(event.data)
        except orjson.JSONDecodeError:
            return None
        is_envelope = value.keys() == _ENVELOPE_KEYS and value["topic"] in self._topics
        return value if is_envelope else None
