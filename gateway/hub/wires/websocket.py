"""Entries as WebSocket messages: JSON, batched, framed once for all who want the same.

A run of records is one message with the position after the last of them; everything else is
a message of its own, in its place among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.channel.byte_counts import Sum
from gateway.core.channel.channel import Event
from gateway.core.log.record import News, Record
from gateway.core.token.resume_token import seal
from gateway.formats import Format, json_text
from gateway.wire.websocket import deflated, frame, open_deflated, open_frame

from .control_events import REFUSED, tell
from .grouped import join_statuses, status_head

BATCH = 64 * 1024  # bytes of records after which another message begins


@dataclass(frozen=True, slots=True)
class WebSocket:
    """The wire of one stream on a WebSocket.

    labelled: The socket has several streams, and each message names its own. The frames made here
        lack the label, so that all subscriptions of a view share them whatever ids their clients
        chose; who writes them to a socket adds it (`wire.websocket.insert_member`).
    deflate: The client takes compressed frames.
    grouped: The client takes events about many partitions.
    """

    labelled: bool = False
    deflate: bool = False
    grouped: bool = False

    @property
    def name(self) -> str:
        return "websocket"

    def encoder(self, format: Format) -> MessageEncoder:
        return MessageEncoder(self, format)

    def begin(
        self, data: dict[str, Any], token: bytes, *, refused: bool, again: bool = False
    ) -> bytes:
        first = self.message("begin", {**data, "position": token.decode()})
        return first + self.message("gap", REFUSED) if refused else first

    def tell(self, kind: str, data: dict[str, Any]) -> bytes:
        return self.message(kind, data)

    def heartbeat(self) -> bytes:
        """Nothing: the protocol below pings."""
        return b""

    def end(self, reason: str, token: bytes, got: Sum | None = None) -> bytes:
        return self.message("end", {"reason": reason, "position": token.decode()})

    def message(self, kind: str, data: dict[str, Any]) -> bytes:
        """A whole message, framed."""
        return self.framed(self.opened(kind, orjson.dumps(data)) + b"}")

    def opened(self, kind: str, data: bytes) -> bytes:
        """A message with the members of `data`, without its last brace."""
        head = orjson.dumps({"type": kind})[:-1]
        return head if data == b"{}" else head + b"," + data[1:-1]

    def framed(self, payload: bytes) -> bytes:
        if self.labelled:
            return open_deflated(payload) if self.deflate else open_frame(payload)
        return deflated(payload) if self.deflate else frame(payload)


def label_member(label: str) -> bytes:
    """Return the member that names the stream of a message, for `insert_member`."""
    return b'"id":%b,' % orjson.dumps(label)


class Told(bytes):
    """A message without its last brace; a head that is not one is a record."""

    __slots__ = ()


class MessageEncoder:
    """See the module."""

    def __init__(self, wire: WebSocket, format: Format) -> None:
        self._wire = wire
        self._format = format
        self._json = json_text(format)
        self._records = wire.opened("records", b"{}") + b',"records":['
        self._position = Told(wire.opened("position", b"{}"))

    def head(self, entry: News) -> bytes | None:
        if type(entry) is Record:
            name, payload = self._format(entry)
            if name is None:
                return self._json(payload)
            if name == "delete":
                return Told(self._wire.opened("delete", b'{"record":%b}' % payload))
            return Told(self._wire.opened(name, payload))
        told = tell(entry)
        if told is None:
            return None
        head = self._control(*told)
        return status_head(entry, head) if self._wire.grouped else head

    def _control(self, name: str, data: dict[str, Any]) -> Told:
        return Told(self._wire.opened(name, orjson.dumps(data)))

    def position(self) -> bytes:
        return self._position

    def render(self, events: Iterable[Event], view: bytes) -> bytes:
        if self._wire.grouped:
            events = join_statuses(events, self._control)
        out: list[bytes] = []
        batch: list[bytes] = []
        size, last = 0, None
        for _, head, text, _ in events:
            # A position is that after the last record, also where not every record has one.
            if type(head) is Told or size > BATCH or (text is None and last is not None):
                self._flush(out, batch, last, view)
                size, last = 0, None
            if type(head) is Told:
                out.append(self._wire.framed(head + _closed(text, view)))
            else:
                batch.append(head)
                size += len(head)
                last = text
        self._flush(out, batch, last, view)
        return b"".join(out)

    def _flush(self, out: list[bytes], batch: list[bytes], text: bytes | None, view: bytes) -> None:
        if batch:
            records = self._records + b",".join(batch) + b"]"
            out.append(self._wire.framed(records + _closed(text, view)))
            batch.clear()


def _closed(text: bytes | None, view: bytes) -> bytes:
    return b"}" if text is None else b',"position":"%b"}' % seal(text, view)
