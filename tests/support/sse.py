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
class Event:
    """What a browser would dispatch. `raw` is `data` before its decoding."""

    type: str
    raw: bytes
    last_event_id: str

    @property
    def data(self) -> str:
        return self.raw.decode(errors="replace")

    def json(self) -> Any:
        return json.loads(self.data)


@dataclass(slots=True)
class Parser:
    """Feed it bytes cut anywhere; it answers with the events that became whole.

    last_event_id: what a client would reconnect with; give the one of the last connection.
    retry_ms:      the last `retry`, None before the first.
    comments:      how many comment lines were read.
    """

    last_event_id: str = ""
    retry_ms: int | None = None
    comments: int = 0
    _id: str = field(init=False)
    _type: str = ""
    _data: list[bytes] = field(default_factory=list)
    _rest: bytes = b""
    _started: bool = False
    _after_cr: bool = False

    def __post_init__(self) -> None:
        self._id = self.last_event_id

    def feed(self, chunk: bytes) -> list[Event]:
        return [event for line in self._lines(chunk) if (event := self._line(line))]

    def _lines(self, chunk: bytes) -> list[bytes]:
        text = self._rest + chunk
        if not self._started:
            if len(text) < len(_BOM) and _BOM.startswith(text):
                self._rest = text
                return []
            self._started = True
            text = text.removeprefix(_BOM)
        if self._after_cr and text:
            text = text.removeprefix(b"\n")
            self._after_cr = False
        *lines, self._rest = _LINE_END.split(text)
        self._after_cr |= text.endswith(b"\r")
        return lines

    def _line(self, line: bytes) -> Event | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"":
                self.comments += 1
            case b"event":
                self._type = value.decode(errors="replace")
            case b"data":
                self._data.append(value)
            case b"id" if b"\0" not in value:
                self._id = value.decode(errors="replace")
            case b"retry" if value and not value.strip(b"0123456789"):
                self.retry_ms = int(value)
        return None

    def _dispatch(self) -> Event | None:
        self.last_event_id = self._id
        data, type_ = self._data, self._type
        self._data, self._type = [], ""
        if not data:
            return None
        return Event(type_ or "message", b"\n".join(data), self.last_event_id)


def parse(stream: bytes) -> list[Event]:
    """The events of a stream that ended; one that was not closed is not among them."""
    return Parser().feed(stream)
