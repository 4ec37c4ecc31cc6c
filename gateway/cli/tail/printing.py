"""Records as lines of standard output.

pretty: for people. Time, place, key and value of an `envelope`; of any other format the value.
json:   for jq. One JSON a line, the same line that the stream has as NDJSON.
value:  for whoever wants the values, to the byte; a tombstone has none. An `envelope` is
        unpacked; whatever else the route makes of a record is the value.
"""

from __future__ import annotations

import base64
import re
from datetime import datetime
from typing import Any

import orjson

from .item import Item
from .screen import PLAIN, Colours, paint, paint_json, safe
from .style import Style

_ENVELOPE = {"topic", "partition", "offset", "timestamp", "key", "value", "headers"}
_BREAKS = re.compile(r"\s*[\r\n]\s*")
_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")


class Printer:
    """tty: the lines are for a terminal; nothing it would obey is passed on."""

    def __init__(self, style: Style, *, tty: bool, colours: Colours = PLAIN) -> None:
        lines = {Style.PRETTY: self._pretty, Style.JSON: self._json, Style.VALUE: self._value}
        self._line = lines[style]
        self._tty = tty and style is not Style.PRETTY
        self._colours = colours
        self._topics: frozenset[str] = frozenset()

    def begin(self, topics: list[str]) -> None:
        """Of the stream that follows: what looks like an envelope of these is one."""
        self._topics = frozenset(topics)

    def line(self, item: Item) -> bytes:
        line = self._line(item)
        if self._tty and line:
            return safe(line.decode(errors="replace"), keep="\n\t").encode()
        return line

    # the styles

    def _json(self, item: Item) -> bytes:
        if item.name == "delete":
            return b'{"@delete":%b}\n' % item.data
        try:
            orjson.loads(item.data)
        except orjson.JSONDecodeError:
            return orjson.dumps(item.data.decode(errors="replace")) + b"\n"
        return item.data.translate(_LINE_BREAKS) + b"\n"  # within its strings there is none

    def _value(self, item: Item) -> bytes:
        told = self._envelope(item)
        if told is not None:
            value = told["value"]
            return b"" if value is None else _bytes(value) + b"\n"
        return b"" if item.name == "delete" else item.data + b"\n"

    def _pretty(self, item: Item) -> bytes:
        told = self._envelope(item)
        if told is not None:
            value = told["value"]
            parts = [self._time(told["timestamp"]), self._place(told), self._text(told["key"], "-")]
            parts.append(self._gone() if value is None else self._shown(value))
        elif item.name == "delete":
            key = orjson.loads(item.data).get("key")
            parts = [self._text(key, "-"), self._gone()]
        else:
            parts = [self._shown(item.data.decode(errors="replace"))]
        return (" ".join(parts) + "\n").encode()

    # parts of a pretty line

    def _time(self, timestamp: int) -> str:
        """As clocks here show it; dashes for a record without a time."""
        try:
            at = datetime.fromtimestamp(timestamp / 1000) if timestamp >= 0 else None
        except (ValueError, OverflowError, OSError):  # past the year 9999
            at = None
        text = f"{at:%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}" if at else "-" * 18
        return paint(text, "time", self._colours)

    def _place(self, told: dict[str, Any]) -> str:
        topic = f"{told['topic']}/" if len(self._topics) > 1 else ""
        return paint(safe(f"{topic}{told['partition']}:{told['offset']}"), "place", self._colours)

    def _text(self, told: str | dict[str, str] | None, none: str) -> str:
        """By the envelope's rule: text, or bytes as base64."""
        if told is None:
            return paint(none, "dim", self._colours)
        if isinstance(told, dict):
            return paint("base64:", "dim", self._colours) + safe(told["base64"])
        return safe(told) or paint('""', "dim", self._colours)

    def _shown(self, value: str | dict[str, str]) -> str:
        if isinstance(value, dict):
            return self._text(value, "")
        try:
            orjson.loads(value)
        except orjson.JSONDecodeError:
            return self._text(value, "")
        return paint_json(safe(_BREAKS.sub(" ", value.strip())), self._colours)

    def _gone(self) -> str:
        return paint("(deleted)", "bad", self._colours)

    def _envelope(self, item: Item) -> dict[str, Any] | None:
        if not item.data.startswith(b'{"topic":'):
            return None
        try:
            told = orjson.loads(item.data)
        except orjson.JSONDecodeError:
            return None
        return told if told.keys() == _ENVELOPE and told["topic"] in self._topics else None


def _bytes(told: str | dict[str, str]) -> bytes:
    return told.encode() if isinstance(told, str) else base64.b64decode(told["base64"])
