"""Entries as WebSocket messages: JSON, batched, framed once for all who want the same.

A run of records is one message with the position after the last of them; everything else is
a message of its own, in its place among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.channel.byte_counts import ByteSum
from gateway.core.channel.channel import ChannelEvent
from gateway.core.log.record import Record, StreamItem
from gateway.core.token.resume_token import seal_token
from gateway.formats import Format, create_json_encoder
from gateway.wire.websocket import (
    encode_deflated_text,
    encode_open_deflated_text,
    encode_open_text,
    encode_text,
)

from .control_events import POSITION_REFUSED_GAP, describe_entry
from .grouped import create_status_head, iter_joined_statuses

MAX_BATCH_BYTES = 64 * 1024  # bytes of records after which another message begins


@dataclass(frozen=True, slots=True)
class WebSocketWire:
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

    def create_encoder(self, format: Format) -> MessageEncoder:
        return MessageEncoder(self, format)

    def encode_begin(
        self,
        data: dict[str, Any],
        token: bytes,
        *,
        position_refused: bool,
        is_continuation: bool = False,
    ) -> bytes:
        first = self.build_message("begin", {**data, "position": token.decode()})
        return (
            first + self.build_message("gap", POSITION_REFUSED_GAP) if position_refused else first
        )

    def encode_event(self, kind: str, data: dict[str, Any]) -> bytes:
        return self.build_message(kind, data)

    def encode_heartbeat(self) -> bytes:
        """Nothing: the protocol below pings."""
        return b""

    def encode_end(self, reason: str, token: bytes, delivered_sum: ByteSum | None = None) -> bytes:
        return self.build_message("end", {"reason": reason, "position": token.decode()})

    def build_message(self, kind: str, data: dict[str, Any]) -> bytes:
        """A whole message, framed."""
        return self.frame_message(self.open_message(kind, orjson.dumps(data)) + b"}")

    def open_message(self, kind: str, data: bytes) -> bytes:
        """A message with the members of `data`, without its last brace."""
        head = orjson.dumps({"type": kind})[:-1]
        return head if data == b"{}" else head + b"," + data[1:-1]

    def frame_message(self, payload: bytes) -> bytes:
        if self.labelled:
            return encode_open_deflated_text(payload) if self.deflate else encode_open_text(payload)
        return encode_deflated_text(payload) if self.deflate else encode_text(payload)


def encode_label(label: str) -> bytes:
    """Return the member that names the stream of a message, for `insert_member`."""
    return b'"id":%b,' % orjson.dumps(label)


class ControlHead(bytes):
    """A message without its last brace; a head that is not one is a record."""

    __slots__ = ()


class MessageEncoder:
    """See the module."""

    def __init__(self, wire: WebSocketWire, format: Format) -> None:
        self._wire = wire
        self._format = format
        self._encode_json = create_json_encoder(format)
        self._records_head = wire.open_message("records", b"{}") + b',"records":['
        self._position_head = ControlHead(wire.open_message("position", b"{}"))

    def encode_entry(self, entry: StreamItem) -> bytes | None:
        if type(entry) is Record:
            name, payload = self._format(entry)
            if name is None:
                return self._encode_json(payload)
            if name == "delete":
                return ControlHead(self._wire.open_message("delete", b'{"record":%b}' % payload))
            return ControlHead(self._wire.open_message(name, payload))
        told = describe_entry(entry)
        if told is None:
            return None
        head = self._encode_control(*told)
        return create_status_head(entry, head) if self._wire.grouped else head

    def _encode_control(self, name: str, data: dict[str, Any]) -> ControlHead:
        return ControlHead(self._wire.open_message(name, orjson.dumps(data)))

    def encode_position(self) -> bytes:
        return self._position_head

    def encode_events(self, events: Iterable[ChannelEvent], view: bytes) -> bytes:
        if self._wire.grouped:
            events = iter_joined_statuses(events, self._encode_control)
        out: list[bytes] = []
        batch: list[bytes] = []
        size, last = 0, None
        for _, head, text, _ in events:
            # A position is that after the last record, also where not every record has one.
            if (
                type(head) is ControlHead
                or size > MAX_BATCH_BYTES
                or (text is None and last is not None)
            ):
                self._flush_records(out, batch, last, view)
                size, last = 0, None
            if type(head) is ControlHead:
                out.append(self._wire.frame_message(head + _close_message(text, view)))
            else:
                batch.append(head)
                size += len(head)
                last = text
        self._flush_records(out, batch, last, view)
        return b"".join(out)

    def _flush_records(
        self, out: list[bytes], batch: list[bytes], text: bytes | None, view: bytes
    ) -> None:
        if batch:
            records = self._records_head + b",".join(batch) + b"]"
            out.append(self._wire.frame_message(records + _close_message(text, view)))
            batch.clear()


def _close_message(text: bytes | None, view: bytes) -> bytes:
    return b"}" if text is None else b',"position":"%b"}' % seal_token(text, view)
