"""Encode entries as WebSocket messages: JSON, batched, framed once for all that want the same.

A run of records is one message with the position after the last of them. Everything else is a
message of its own, in its place among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.channel.chunk_ring import ByteSum, ChannelEvent
from gateway.core.client.terms import EndReason
from gateway.core.log.record import Record, StreamItem
from gateway.core.token.resume_token import seal_token
from gateway.formats import Format, create_json_encoder
from gateway.wire.websocket import (
    encode_deflated_text,
    encode_open_deflated_text,
    encode_open_text,
    encode_text,
)

from .control_events import POSITION_REFUSED_GAP, create_status_head, describe_entry, join_statuses
from .wire import Beginning, end_retries

MAX_BATCH_BYTES = 64 * 1024  # bytes of records after which the next message begins


@dataclass(frozen=True, slots=True)
class WebSocketWire:
    """Encode one stream of a WebSocket.

    Attributes:
        labelled: The WebSocket has several streams, and each message names its own. The frames made
            here lack the label, so that all subscriptions of a view share them whatever ids their
            clients chose; the connection adds it (`wire.websocket.insert_member`).
        deflate: The client accepts compressed frames (RFC 7692).
    """

    labelled: bool = False
    deflate: bool = False

    @property
    def name(self) -> str:
        return "websocket"

    def create_encoder(self, format: Format) -> MessageEncoder:
        return MessageEncoder(self, format)

    def encode_begin(self, beginning: Beginning) -> bytes:
        data = {**beginning.data, "position": beginning.token.decode()}
        first = self.build_message("begin", data)
        if beginning.position_refused:
            first += self.build_message("gap", POSITION_REFUSED_GAP)
        return first

    def encode_event(self, kind: str, data: dict[str, Any]) -> bytes:
        return self.build_message(kind, data)

    def encode_heartbeat(self) -> bytes:
        """Return nothing: the protocol below sends pings."""
        return b""

    def encode_end(
        self, reason: EndReason, token: bytes, delivered_sum: ByteSum | None = None
    ) -> bytes:
        data: dict[str, Any] = {"reason": reason, "position": token.decode()}
        if reason is EndReason.DRAIN:
            data["retry"] = end_retries.draw_ms()
        return self.build_message("end", data)

    def build_message(self, kind: str, data: dict[str, Any]) -> bytes:
        return self.frame_message(self.open_message(kind, orjson.dumps(data)) + b"}")

    def open_message(self, kind: str, data: bytes) -> bytes:
        """Return a message without its last brace; `data` is an object of its other members."""
        # Put together as bytes: `data` is JSON already, often that of a record.
        head = orjson.dumps({"type": kind})[:-1]
        return head if data == b"{}" else head + b"," + data[1:-1]

    def frame_message(self, payload: bytes) -> bytes:
        """Return a message as a frame; without its label if it gets one."""
        if self.labelled:
            return encode_open_deflated_text(payload) if self.deflate else encode_open_text(payload)
        return encode_deflated_text(payload) if self.deflate else encode_text(payload)


def encode_label(label: str) -> bytes:
    """Return the member that names the stream of a message, for `insert_member`."""
    return b'"id":%b,' % orjson.dumps(label)


class ControlHead(bytes):
    """A message without its last brace; a head of another type is a record."""

    __slots__ = ()


class MessageEncoder:
    def __init__(self, wire: WebSocketWire, format: Format) -> None:
        self._wire = wire
        self._format = format
        self._encode_json = create_json_encoder(format)
        self._records_head = wire.open_message("records", b"{}") + b',"records":['
        self._position_head = ControlHead(wire.open_message("position", b"{}"))

    def encode_entry(self, entry: StreamItem) -> bytes | None:
        """Return the head of an entry: a record's JSON, or a message without its last brace."""
        if type(entry) is Record:
            name, payload = self._format(entry)
            if name is None:
                return self._encode_json(payload)
            if name == "delete":
                return ControlHead(self._wire.open_message("delete", b'{"record":%b}' % payload))
            return ControlHead(self._wire.open_message(name, payload))
        description = describe_entry(entry)
        if description is None:
            return None
        return create_status_head(entry, self._encode_control(*description))

    def _encode_control(self, name: str, data: dict[str, Any]) -> ControlHead:
        return ControlHead(self._wire.open_message(name, orjson.dumps(data)))

    def encode_position(self) -> bytes:
        return self._position_head

    def encode_events(self, events: Sequence[ChannelEvent], view_digest: bytes) -> bytes:
        frames: list[bytes] = []
        batch: list[bytes] = []
        size, batch_token = 0, None
        for _, head, token_text, _ in join_statuses(events, self._encode_control):
            # The position of a message is that after its last record: where not every record has
            # one, a record with a position must be the last of its message.
            if (
                type(head) is ControlHead
                or size > MAX_BATCH_BYTES
                or (token_text is None and batch_token is not None)
            ):
                self._flush_records(frames, batch, batch_token, view_digest)
                size, batch_token = 0, None
            # A control message goes out in its place: the records before it were flushed above.
            if type(head) is ControlHead:
                frames.append(
                    self._wire.frame_message(head + _close_message(token_text, view_digest))
                )
            else:
                batch.append(head)
                size += len(head)
                batch_token = token_text
        self._flush_records(frames, batch, batch_token, view_digest)
        return b"".join(frames)

    def _flush_records(
        self, frames: list[bytes], batch: list[bytes], token_text: bytes | None, view_digest: bytes
    ) -> None:
        """Append the records of a batch as one frame, and clear the batch."""
        if batch:
            records = self._records_head + b",".join(batch) + b"]"
            frames.append(
                self._wire.frame_message(records + _close_message(token_text, view_digest))
            )
            batch.clear()


def _close_message(token_text: bytes | None, view_digest: bytes) -> bytes:
    return (
        b"}" if token_text is None else b',"position":"%b"}' % seal_token(token_text, view_digest)
    )
