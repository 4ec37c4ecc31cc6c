"""Entries as lines of JSON (NDJSON): one line a record, for `jq`, cron jobs and programs.

Plain lines are the records as the route's format has them; every other line is an object
whose first key begins with `@`. With positions records are wrapped too, so that a value
which begins with such a key itself cannot be taken for what it is not:

    {"@record": VALUE, "@position": "TOKEN"}
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.channel.byte_counts import ByteSum
from gateway.core.channel.channel import ChannelEvent
from gateway.core.log.record import Ready, Record, StreamItem
from gateway.core.token.resume_token import seal_token
from gateway.formats import Format, create_json_encoder

from .control_events import POSITION_REFUSED_GAP, describe_entry
from .grouped import PARTITIONS_READY, create_status_head, iter_joined_statuses

HEARTBEAT = b"\n"

_STATUS_PREFIXES = (
    b'{"@begin"',
    b'{"@ready"',
    b'{"@%b"' % PARTITIONS_READY.encode(),
    b'{"@position"',
    HEARTBEAT,
)
# In JSON they stand within strings only. Readers that end lines where Python's `str` does
# (httpx's `iter_lines`) would break there, so they go out escaped.
_LINE_BREAKS = (
    (b"\xe2\x80\xa8", rb"\u2028"),
    (b"\xe2\x80\xa9", rb"\u2029"),
    (b"\xc2\x85", rb"\u0085"),
)


@dataclass(frozen=True, slots=True)
class NdjsonWire:
    """The wire of lines. positions: each line says where the stream stands after it, `begin`,
    `ready` and idle moves of the position have lines of their own. grouped: The client takes lines
    about many partitions."""

    positions: bool = False
    grouped: bool = False

    @property
    def name(self) -> str:
        return "ndjson"

    def create_encoder(self, format: Format) -> NdjsonEncoder:
        return NdjsonEncoder(format, self.positions, grouped=self.grouped)

    def encode_begin(
        self,
        data: dict[str, Any],
        token: bytes,
        *,
        position_refused: bool,
        is_continuation: bool = False,
    ) -> bytes:
        first = (
            encode_line("begin", {**data, "position": token.decode()}) if self.positions else b""
        )
        return first + encode_line("gap", POSITION_REFUSED_GAP) if position_refused else first

    def encode_event(self, kind: str, data: dict[str, Any]) -> bytes:
        return encode_line(kind, data)

    def encode_heartbeat(self) -> bytes:
        return HEARTBEAT

    def encode_end(self, reason: str, token: bytes, delivered_sum: ByteSum | None = None) -> bytes:
        return encode_line("end", {"reason": reason, "position": token.decode()})

    def has_content(self, data: bytes) -> bool:
        """Is there more in these lines than where the stream stands?"""
        if not self.positions:  # nothing but that is not sent; a record may look like it
            return data not in (b"", HEARTBEAT)
        return any(not each.startswith(_STATUS_PREFIXES) for each in data.splitlines(keepends=True))


class NdjsonEncoder:
    """An `Encoder` of core's channels. With positions, heads lack what ends their line."""

    def __init__(self, format: Format, positions: bool, *, grouped: bool = False) -> None:
        self._format = format
        self._grouped = grouped
        self._encode_json = create_json_encoder(format)
        self._positions = positions

    def encode_entry(self, entry: StreamItem) -> bytes | None:
        told = self._describe_line(entry)
        if told is None:
            return None
        name, data = told
        if name == "record" and not self._positions:
            return b"%b\n" % data
        head = self._encode_head(name, data)
        return create_status_head(entry, head) if self._grouped else head

    def encode_position(self) -> bytes:
        return b"{" if self._positions else b""

    def encode_events(self, events: Iterable[ChannelEvent], view: bytes) -> bytes:
        if self._grouped:
            events = iter_joined_statuses(
                events, lambda name, data: self._encode_head(name, orjson.dumps(data))
            )
        if not self._positions:
            return b"".join([event.payload for event in events])
        parts: list[bytes] = []
        for _, head, text, _ in events:
            if text is None:
                parts.append(head + b"}\n")
            else:
                comma = b"" if head == b"{" else b","
                parts.append(b'%b%b"@position":"%b"}\n' % (head, comma, seal_token(text, view)))
        return b"".join(parts)

    def _encode_head(self, name: str, data: bytes) -> bytes:
        """Return the head of a line with an object whose first key is a name."""
        return b'{"@%b":%b%b' % (name.encode(), data, b"" if self._positions else b"}\n")

    def _describe_line(self, entry: StreamItem) -> tuple[str, bytes] | None:
        """The name of a line without its `@`, and its JSON."""
        if type(entry) is Record:
            name, payload = self._format(entry)
            data = self._encode_json(payload) if name is None else payload
            return name or "record", escape_line_breaks(data)
        if type(entry) is Ready and not self._positions:
            return None
        told = describe_entry(entry)
        return None if told is None else (told[0], orjson.dumps(told[1]))


def encode_line(name: str, data: dict[str, Any]) -> bytes:
    """A whole line that is no record."""
    return b'{"@%b":%b}\n' % (name.encode(), orjson.dumps(data))


def escape_line_breaks(data: bytes) -> bytes:
    """JSON without what some readers take for the end of a line."""
    if not data.isascii():
        for character, escape in _LINE_BREAKS:
            if character in data:
                data = data.replace(character, escape)
    return data
