"""Encode entries as lines of JSON (NDJSON): one line a record, for `jq`, cron jobs and programs.

Plain lines are the records as the route's format has them; every other line is an object whose
first key begins with `@`. With positions, records are wrapped, too, so that a value which itself
begins with such a key cannot be mistaken for another line:

    {"@record": VALUE, "@position": "TOKEN"}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.channel.chunk_ring import ByteSum, ChannelEvent
from gateway.core.client.terms import EndReason
from gateway.core.log.record import Ready, Record, StreamItem
from gateway.core.token.resume_token import seal_token
from gateway.formats import Format, create_json_encoder

from .control_events import (
    POSITION_REFUSED_GAP,
    PartitionsReadyEvent,
    create_status_head,
    describe_entry,
    join_statuses,
)
from .wire import Beginning

HEARTBEAT = b"\n"

# How the lines begin that only say where the stream stands.
_STATUS_PREFIXES = (
    b'{"@begin"',
    b'{"@ready"',
    b'{"@%b"' % PartitionsReadyEvent.name.encode(),
    b'{"@position"',
    HEARTBEAT,
)
# Line separators of Unicode, which JSON has within strings only. Readers that end lines where
# Python's `str.splitlines` does (httpx's `iter_lines`) would break there, so they are escaped.
_LINE_BREAKS = (
    (b"\xe2\x80\xa8", rb"\u2028"),
    (b"\xe2\x80\xa9", rb"\u2029"),
    (b"\xc2\x85", rb"\u0085"),
)


@dataclass(frozen=True, slots=True)
class NdjsonWire:
    """Encode a stream as lines.

    Attributes:
        positions: Each line says where the stream stands after it; `begin`, `ready` and moves of
            the position while idle have lines of their own.
    """

    positions: bool = False

    @property
    def name(self) -> str:
        return "ndjson"

    def create_encoder(self, format: Format) -> NdjsonEncoder:
        return NdjsonEncoder(format, self.positions)

    def encode_begin(self, beginning: Beginning) -> bytes:
        data = {**beginning.data, "position": beginning.token.decode()}
        first = encode_line("begin", data) if self.positions else b""
        if beginning.position_refused:
            first += encode_line("gap", POSITION_REFUSED_GAP)
        return first

    def encode_event(self, kind: str, data: dict[str, Any]) -> bytes:
        return encode_line(kind, data)

    def encode_heartbeat(self) -> bytes:
        return HEARTBEAT

    def encode_end(
        self, reason: EndReason, token: bytes, delivered_sum: ByteSum | None = None
    ) -> bytes:
        return encode_line("end", {"reason": reason, "position": token.decode()})

    def has_content(self, data: bytes) -> bool:
        """Return whether these whole lines have more than where the stream stands."""
        if not self.positions:  # such lines are not sent then, and a record may look like one
            return data not in (b"", HEARTBEAT)
        return any(not line.startswith(_STATUS_PREFIXES) for line in data.splitlines(keepends=True))


class NdjsonEncoder:
    """Encode entries as lines; with positions, a head is a line that `encode_events` completes."""

    def __init__(self, format: Format, positions: bool) -> None:
        self._format = format
        self._encode_json = create_json_encoder(format)
        self._positions = positions

    def encode_entry(self, entry: StreamItem) -> bytes | None:
        line = self._describe_line(entry)
        if line is None:
            return None
        name, data = line
        if name == "record" and not self._positions:
            return b"%b\n" % data
        return create_status_head(entry, self._encode_head(name, data))

    def encode_position(self) -> bytes:
        return b"{" if self._positions else b""

    def encode_events(self, events: Sequence[ChannelEvent], view_digest: bytes) -> bytes:
        events = join_statuses(
            events, lambda name, data: self._encode_head(name, orjson.dumps(data))
        )
        if not self._positions:
            return b"".join([event.payload for event in events])
        parts: list[bytes] = []
        for _, head, token_text, _ in events:
            if token_text is None:
                parts.append(head + b"}\n")
            else:
                comma = b"" if head == b"{" else b","
                parts.append(
                    b'%b%b"@position":"%b"}\n' % (head, comma, seal_token(token_text, view_digest))
                )
        return b"".join(parts)

    def _encode_head(self, name: str, data: bytes) -> bytes:
        return b'{"@%b":%b%b' % (name.encode(), data, b"" if self._positions else b"}\n")

    def _describe_line(self, entry: StreamItem) -> tuple[str, bytes] | None:
        """Return the name of a line without its `@`, and its JSON; None for no line."""
        if type(entry) is Record:
            name, payload = self._format(entry)
            data = self._encode_json(payload) if name is None else payload
            return name or "record", escape_line_breaks(data)
        if type(entry) is Ready and not self._positions:
            return None
        description = describe_entry(entry)
        return None if description is None else (description[0], orjson.dumps(description[1]))


def encode_line(name: str, data: dict[str, Any]) -> bytes:
    return b'{"@%b":%b}\n' % (name.encode(), orjson.dumps(data))


def escape_line_breaks(data: bytes) -> bytes:
    if not data.isascii():
        for character, escape in _LINE_BREAKS:
            if character in data:
                data = data.replace(character, escape)
    return data
