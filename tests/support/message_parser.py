"""A strict reader of a stream's WebSocket messages, in the terms of server-sent events.

So that what judges a stream of events judges one of messages. It shares no code with the gateway.
"""

from __future__ import annotations

import json

from support.sse import SseEvent


class MessageParser:
    """Feed it whole messages.

    label: the id that each must carry; None on the socket of a route's own path.
    last_event_id: the last position.
    """

    def __init__(self, label: str | None = None) -> None:
        self.last_event_id = ""
        self._label = label

    def feed_message(self, text: str) -> list[SseEvent]:
        """Each record is an event; the id of a message is that of its last one."""
        told = json.loads(text)
        kind = told.pop("type")
        label = told.pop("id", None)
        # What a bad message was about cannot always be told.
        assert label == self._label or (kind, label) == ("error", None), text
        at = told.pop("position", "")
        before, self.last_event_id = self.last_event_id, at or self.last_event_id
        if kind == "records":
            *early, last = told.pop("records")
            assert not told, text
            events = [_build_event("message", each, before) for each in early]
            return [*events, _build_event("message", last, self.last_event_id)]
        return [
            _build_event(kind, told["record"] if kind == "delete" else told, self.last_event_id)
        ]


def _build_event(event_type: str, data: object, position: str) -> SseEvent:
    text = data if isinstance(data, str) else json.dumps(data)
    return SseEvent(event_type, text.encode(), position)
