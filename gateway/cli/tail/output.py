"""Format records as lines, and write them to standard output.

Anyone may have written a record. Control characters can make a terminal hide text, send input or
change its title, and bidirectional marks reorder text. For a terminal, both are replaced by JSON's
escapes, so that JSON stays JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import stat
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import IO, Any

import orjson

from gateway.core.channel.exact_json import parse_json
from gateway.formats.event import json_to_bytes

from .in_process import StreamEvent

PIPE_BUF = 4096  # bytes that a writable pipe accepts without blocking (POSIX)


class OutputClosed(Exception):
    """The reader of the output has ended, as after `| head`."""


class OutputWriter:
    """The writer of a file descriptor, which does not block the event loop.

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


class OutputFormat(StrEnum):
    """The values of `--format`.

    - pretty, for people: time, partition:offset, key and value of the format `envelope`; of other
      formats the whole event.
    - json, for jq: one JSON value per line, the line that the stream has as NDJSON.
    - value: only the values, byte for byte; a tombstone has none. An `envelope` is unpacked; with
      other formats, the whole event is the value.
    """

    PRETTY = "pretty"
    JSON = "json"
    VALUE = "value"


_CONTROL_CHARACTERS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_JSON_TOKEN = re.compile(
    r'(?P<key>"(?:\\.|[^"\\])*")(?=\s*:)|(?P<text>"(?:\\.|[^"\\])*")'
    r"|(?P<number>-?\d[\d.eE+-]*)|(?P<word>true|false|null)"
)

Colours = Mapping[str, str]
"""The SGR parameters of ECMA-48, by tone."""

COLOURS: Colours = {
    "key": "34",
    "text": "32",
    "number": "36",
    "word": "35",
    "time": "2",
    "place": "33",
    "dim": "2",
    "good": "32",
    "warn": "33",
    "bad": "31",
}
NO_COLOURS: Colours = {}


def escape_controls(text: str, allowed: str = "") -> str:
    return _CONTROL_CHARACTERS.sub(
        lambda m: m[0] if m[0] in allowed else f"\\u{ord(m[0]):04x}", text
    )


def paint(text: str, tone: str, colours: Colours) -> str:
    code = colours.get(tone)
    return f"\x1b[{code}m{text}\x1b[0m" if code and text else text


def paint_json(text: str, colours: Colours) -> str:
    """Return JSON whose names, strings, numbers and words have colours. It must be escaped."""
    if not colours:
        return text
    return _JSON_TOKEN.sub(lambda m: paint(m[0], m.lastgroup or "", colours), text)


def select_colours(stream: IO[Any], environ: Mapping[str, str] = os.environ) -> Colours:
    """Return the colours of an output; none without a terminal, or with NO_COLOR (no-color.org)."""
    wanted = stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    return COLOURS if wanted else NO_COLOURS


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


_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


def split_members(text: str) -> dict[str, str]:
    """Return the members of an object as texts; raise ValueError for other JSON.

    The texts are those of the input, so that numbers keep all digits and strings their escapes.
    """
    members: dict[str, str] = {}
    at = _skip_whitespace(text, _skip_bracket(text, "{"))
    while text[at] != "}":
        name, end = _DECODER.raw_decode(text, at)
        at = _skip_whitespace(text, _skip_whitespace(text, end) + 1)  # the colon
        _, end = _DECODER.raw_decode(text, at)
        members[str(name)] = text[at:end]
        at = _skip_comma(text, end)
    return members


def split_elements(text: str) -> list[str]:
    elements: list[str] = []
    at = _skip_whitespace(text, _skip_bracket(text, "["))
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        elements.append(text[at:end])
        at = _skip_comma(text, end)
    return elements


def _skip_bracket(text: str, bracket: str) -> int:
    json.loads(text)  # what follows relies on valid JSON
    at = _skip_whitespace(text, 0)
    if text[at] != bracket:
        raise ValueError(f"the text does not begin with {bracket}")
    return at + 1


def _skip_comma(text: str, end: int) -> int:
    at = _skip_whitespace(text, end)
    return _skip_whitespace(text, at + 1) if text[at] == "," else at


def _skip_whitespace(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None  # the pattern also matches the empty text
    return match.end()
