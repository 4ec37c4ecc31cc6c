"""Encoders of tests whose events end one by one."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.channel.chunk_ring import ChannelEvent
from gateway.core.token.resume_token import seal_token


class PerEventEncoder:
    """Renders with `end(token)`, which a test's encoder has."""

    def encode_event_end(self, token: bytes | None) -> bytes:
        raise NotImplementedError

    def encode_events(self, events: Iterable[ChannelEvent], view_digest: bytes) -> bytes:
        return b"".join(
            event.payload
            + self.encode_event_end(
                None if event.token_text is None else seal_token(event.token_text, view_digest)
            )
            for event in events
        )
