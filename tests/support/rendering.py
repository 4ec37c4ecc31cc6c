"""Encoders of tests whose events end one by one."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.channel.channel import Event
from gateway.core.token.resume_token import seal


class Rendering:
    """Renders with `end(token)`, which a test's encoder has."""

    def end(self, token: bytes | None) -> bytes:
        raise NotImplementedError

    def render(self, events: Iterable[Event], view: bytes) -> bytes:
        return b"".join(
            event.head + self.end(None if event.text is None else seal(event.text, view))
            for event in events
        )
