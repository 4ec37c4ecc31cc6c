"""A strict reader of lines of JSON with positions, in the terms of server-sent events.

So that what judges a stream of events judges one of lines. It shares no code with the gateway.
"""

from __future__ import annotations

import json
from typing import Any

from support.sse import SseEvent, SseParser

_DECODER = json.JSONDecoder()
_RECORD_PREFIX = '{"@record":'


class NdjsonParser(SseParser):
    """Feed it bytes cut anywhere; lines that did not become whole are none.

    last_event_id: the last position.
    """

    _buffer = b""

    def feed(self, chunk: bytes) -> list[SseEvent]:
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        return [self._build_event(line.decode()) for line in lines if line]

    def _build_event(self, line: str) -> SseEvent:
        told: dict[str, Any] = json.loads(line)
        name = next(iter(told)).removeprefix("@")
        assert next(iter(told)) != name, f"not a line with positions: {line:.200}"
        assert not told.keys() - {f"@{name}", "@position"}, line
        at = told.get("@position", "")
        if name != "record":  # which may be text, and is as it is; not each has a position
            at = at or told[f"@{name}"].pop("position", "")
        self.last_event_id = at or self.last_event_id
        data = "{}" if name == "position" else json.dumps(told[f"@{name}"])
        if name == "record":
            name, data = "message", _get_record_text(line)
        return SseEvent(name, data.encode(), self.last_event_id)


def _get_record_text(line: str) -> str:
    """A record's value, to the byte where it is JSON; text where it is a string."""
    assert line.startswith(_RECORD_PREFIX), line
    value, end = _DECODER.raw_decode(line, len(_RECORD_PREFIX))
    return value if isinstance(value, str) else line[len(_RECORD_PREFIX) : end]
