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

from gateway.core.channel.byte_counts import Sum
from gateway.core.channel.channel import Event
from gateway.core.log.record import News, Ready, Record
from gateway.core.token.resume_token import seal
from gateway.formats import Format, json_text

from .control_events import REFUSED, tell
from .grouped import READY, join_statuses, status_head

HEARTBEAT = b"\n"

_ASIDE = (b'{"@begin"', b'{"@ready"', b'{"@%b"' % READY.encode(), b'{"@position"', HEARTBEAT)
# In JSON they stand within strings only. Readers that end lines where Python's `str` does
# (httpx's `iter_lines`) would break there, so they go out escaped.
_BREAKS = ((b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"), (b"\xc2\x85", rb"\u0085"))


@dataclass(frozen=True, slots=True)
class Ndjson:
    """The wire of lines. positions: each line says where the stream stands after it, `begin`,
    `ready` and idle moves of the position have lines of their own. grouped: The client takes lines
    about many partitions."""

    positions: bool = False
    grouped: bool = False

    @property
    def name(self) -> str:
        return "ndjson"

    def encoder(self, format: Format) -> LineEncoder:
        return LineEncoder(format, self.positions, grouped=self.grouped)

    def begin(
        self, data: dict[str, Any], token: bytes, *, refused: bool, again: bool = False
    ) -> bytes:
        first = line("begin", {**data, "position": token.decode()}) if self.positions else b""
        return first + line("gap", REFUSED) if refused else first

    def tell(self, kind: str, data: dict[str, Any]) -> bytes:
        return line(kind, data)

    def heartbeat(self) -> bytes:
        return HEARTBEAT

    def end(self, reason: str, token: bytes, got: Sum | None = None) -> bytes:
        return line("end", {"reason": reason, "position": token.decode()})

    def tells(self, data: bytes) -> bool:
        """Is there more in these lines than where the stream stands?"""
        if not self.positions:  # nothing but that is not sent; a record may look like it
            return data not in (b"", HEARTBEAT)
        return any(not each.startswith(_ASIDE) for each in data.splitlines(keepends=True))


class LineEncoder:
    """An `Encoder` of core's channels. With positions, heads lack what ends their line."""

    def __init__(self, format: Format, positions: bool, *, grouped: bool = False) -> None:
        self._format = format
        self._grouped = grouped
        self._json = json_text(format)
        self._positions = positions

    def head(self, entry: News) -> bytes | None:
        told = self._told(entry)
        if told is None:
            return None
        name, data = told
        if name == "record" and not self._positions:
            return b"%b\n" % data
        head = self._control(name, data)
        return status_head(entry, head) if self._grouped else head

    def position(self) -> bytes:
        return b"{" if self._positions else b""

    def render(self, events: Iterable[Event], view: bytes) -> bytes:
        if self._grouped:
            events = join_statuses(
                events, lambda name, data: self._control(name, orjson.dumps(data))
            )
        if not self._positions:
            return b"".join([event.head for event in events])
        parts: list[bytes] = []
        for _, head, text, _ in events:
            if text is None:
                parts.append(head + b"}\n")
            else:
                comma = b"" if head == b"{" else b","
                parts.append(b'%b%b"@position":"%b"}\n' % (head, comma, seal(text, view)))
        return b"".join(parts)

    def _control(self, name: str, data: bytes) -> bytes:
        """Return the head of a line with an object whose first key is a name."""
        return b'{"@%b":%b%b' % (name.encode(), data, b"" if self._positions else b"}\n")

    def _told(self, entry: News) -> tuple[str, bytes] | None:
        """The name of a line without its `@`, and its JSON."""
        if type(entry) is Record:
            name, payload = self._format(entry)
            data = self._json(payload) if name is None else payload
            return name or "record", one_line(data)
        if type(entry) is Ready and not self._positions:
            return None
        told = tell(entry)
        return None if told is None else (told[0], orjson.dumps(told[1]))


def line(name: str, data: dict[str, Any]) -> bytes:
    """A whole line that is no record."""
    return b'{"@%b":%b}\n' % (name.encode(), orjson.dumps(data))


def one_line(data: bytes) -> bytes:
    """JSON without what some readers take for the end of a line."""
    if not data.isascii():
        for character, escape in _BREAKS:
            if character in data:
                data = data.replace(character, escape)
    return data
