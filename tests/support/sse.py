"""A strict reader of server-sent events, written from WHATWG HTML 9.2.6 alone.

It shares no code with the gateway, so a test that reads with it is about the standard.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class SseEvent:
    """What a browser would dispatch. `raw` is `data` before its decoding."""

    event_type: str
    raw_data: bytes
    last_event_id: str

    @property
    def data(self) -> str:
        return self.raw_data.decode(errors="replace")

    def parse_json(self) -> Any:
        return json.loads(self.data)


@dataclass(slots=True)
class SseParser:
    """Feed it bytes cut anywhere; it answers with the events that became whole.

    last_event_id: what a client would reconnect with; give the one of the last connection.
    retry_ms:      the last `retry`, None before the first.
    """

    last_event_id: str = ""
    retry_ms: int | None = None
    pending_id: str = field(init=False)
    _pending_type: str = ""
    _pending_data: list[bytes] = field(default_factory=list)
    _buffer: bytes = b""
    _has_started: bool = False
    _after_cr: bool = False

    def __post_init__(self) -> None:
        self.pending_id = self.last_event_id

    def feed(self, chunk: bytes) -> list[SseEvent]:
        return [event for line in self._split_lines(chunk) if (event := self._parse_line(line))]

    def _split_lines(self, chunk: bytes) -> list[bytes]:
        text = self._buffer + chunk
        if not self._has_started:
            if len(text) < len(_BOM) and _BOM.startswith(text):
                self._buffer = text
                return []
            self._has_started = True
            text = text.removeprefix(_BOM)
        if self._after_cr and text:
            text = text.removeprefix(b"\n")
            self._after_cr = False
        *lines, self._buffer = _LINE_END.split(text)
        self._after_cr |= text.endswith(b"\r")
        return lines

    def _parse_line(self, line: bytes) -> SseEvent | None:
        if not line:
            return self._dispatch_event()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"":
                pass  # a comment
            case b"event":
                self._pending_type = value.decode(errors="replace")
            case b"data":
                self._pending_data.append(value)
            case b"id" if b"\0" not in value:
                self.pending_id = value.decode(errors="replace")
            case b"retry" if value and not value.strip(b"0123456789"):
                self.retry_ms = int(value)
        return None

    def _dispatch_event(self) -> SseEvent | None:
        self.last_event_id = self.pending_id
        data, type_ = self._pending_data, self._pending_type
        self._pending_data, self._pending_type = [], ""
        if not data:
            return None
        return SseEvent(type_ or "message", b"\n".join(data), self.last_event_id)


def parse_stream(stream: bytes) -> list[SseEvent]:
    """The events of a stream that ended; one that was not closed is not among them."""
    return SseParser().feed(stream)
