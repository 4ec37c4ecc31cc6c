"""Encode records and events as bytes that are fast to decode again in the same process.

Channels share chunks of bytes, whatever the wire. Here a chunk is a sequence of frames with fixed
heads. What records hold is neither JSON nor base64, so that keys, values and headers are exact.
Partitions are numbers of the encoder's own table, which grows with the partitions only.

Measured for a record of 200 bytes: encoded in 0.55 us, decoded in 0.8 us; its position takes 0.65
us more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import orjson

from gateway.core.channel.chunk_ring import ByteSum, ChannelEvent
from gateway.core.client.terms import EndReason
from gateway.core.log.record import Record as Entered
from gateway.core.log.record import StreamItem, TopicPartition
from gateway.formats import Format
from gateway.formats.event import Payload
from gateway.formats.exact_values import InvalidValue, describe_invalid
from gateway.formats.projection import project_format
from gateway.hub.wires.control_events import describe_entry
from gateway.hub.wires.wire import Beginning

from .events import Begin, End, Event, Fault, Gap, Headers, LazyToken, Position, Ready, Record

# Kind, partition, offset, timestamp, lengths of key and value (-1: none), number of headers.
_RECORD = Struct("<BIqqiiI")
_CONTROL = Struct("<BI")  # kind, length of the JSON
_LENGTH = Struct("<i")  # length of the token after each frame; -1 for none
_HEADER = Struct("<ii")  # lengths of name and content
_KINDS = ("record", "begin", "gap", "ready", "error", "position", "end")
_KIND_NUMBERS = {name: kind for kind, name in enumerate(_KINDS)}
_NO_TOKEN = _LENGTH.pack(-1)

# Not through the constructor of the named tuple: a record is decoded 1.2 times as fast.
_new = tuple.__new__


@dataclass(frozen=True, slots=True)
class ObjectWire:
    """Encode a stream for a program in this process.

    Attributes:
        fields: The parts of the value that are shown, as JSON pointers; empty for all of it.
    """

    fields: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the wire in metrics and logs."""
        return "program"

    def create_encoder(self, format: Format) -> ObjectEncoder:
        """Return the encoder of a channel's entries.

        Args:
            format: Not used: records are shown as they are.
        """
        return ObjectEncoder(self.fields)

    def encode_begin(self, beginning: Beginning) -> bytes:
        """Return the first frame of a stream; see `Wire`."""
        return (
            _encode_control("begin", {**beginning.data, "token": beginning.token.decode()})
            + _NO_TOKEN
        )

    def encode_event(self, kind: str, data: dict[str, Any]) -> bytes:
        """Return nothing; see `Wire`."""
        return b""  # such events are for clients that a guard let in

    def encode_heartbeat(self) -> bytes:
        """Return nothing: there is no connection to keep alive."""
        return b""

    def encode_end(
        self, reason: EndReason, token: bytes, delivered_sum: ByteSum | None = None
    ) -> bytes:
        """Return the last frame of a stream; see `Wire`."""
        return _encode_control("end", {"reason": reason, "token": token.decode()}) + _NO_TOKEN


class ObjectEncoder:
    """Encode entries as frames, and decode them again; an `Encoder` of channels.

    It is shared by all streams whose channels have an equal wire, and keeps the numbers of
    partitions.
    """

    def __init__(self, fields: Iterable[str] = ()) -> None:
        self._partition_numbers: dict[TopicPartition, int] = {}
        self._partitions: list[TopicPartition] = []
        self._encode_head: Format = (
            project_format(self._encode_record, fields) if fields else self._encode_record
        )

    def encode_entry(self, entry: StreamItem) -> bytes | None:
        """Return the frame of an entry, without the token; see `Encoder`."""
        if type(entry) is Entered:
            if type(entry.value) is InvalidValue:
                return _encode_control("error", describe_invalid(entry, entry.value))
            name, payload = self._encode_head(entry)
            if name == "error":
                return _encode_control(name, orjson.loads(payload))
            return payload
        description = describe_entry(entry)
        if description is None or description[0] not in _KIND_NUMBERS:
            return None  # an event that `events` has no type for
        return _encode_control(*description)

    def encode_position(self) -> bytes:
        """Return the frame of a `Position`, without the token; see `Encoder`."""
        return _encode_control("position", {})

    def encode_events(self, events: Sequence[ChannelEvent], view_digest: bytes) -> bytes:
        """Return events as frames, each followed by its token; see `Encoder`."""
        parts: list[bytes] = []
        for _, head, token_text, _ in events:
            parts += (
                (head, _NO_TOKEN)
                if token_text is None
                else (head, _LENGTH.pack(len(token_text)), token_text)
            )
        return b"".join(parts)

    def _encode_record(self, record: Entered) -> Payload:
        tp, offset, _, timestamp, key, value, headers = record
        number = self._partition_numbers.get(tp)
        if number is None:
            number = self._partition_numbers[tp] = len(self._partitions)
            self._partitions.append(tp)
        head = _RECORD.pack(
            0, number, offset, timestamp,
            -1 if key is None else len(key), -1 if value is None else len(value), len(headers),
        )  # fmt: skip
        if headers:
            return None, b"".join((head, key or b"", value or b"", *_iter_headers(headers)))
        return None, b"".join((head, key or b"", value or b""))

    def decode_events(
        self, data: bytes, last_token: LazyToken | str, view_digest: bytes
    ) -> list[Event]:
        """Return the events of a chunk.

        Args:
            data: The chunk.
            last_token: The token of the last event before it, which events without one get.
            view_digest: The digest of the channel's view, for the tokens.
        """
        events: list[Event] = []
        at, end = 0, len(data)
        while at < end:
            if data[at]:  # the kind: 0 is a record
                name, content, at = _read_control(data, at)
            else:
                _, number, offset, timestamp, key_length, value_length, header_count = (
                    _RECORD.unpack_from(data, at)
                )
                at += _RECORD.size
                key = value = None
                headers: Headers = ()
                if key_length >= 0:
                    key, at = data[at : at + key_length], at + key_length
                if value_length >= 0:
                    value, at = data[at : at + value_length], at + value_length
                if header_count:
                    headers, at = _read_headers(data, at, header_count)
                name = None
            (token_length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            if token_length >= 0:
                last_token, at = (
                    _new(LazyToken, (data[at : at + token_length], view_digest)),
                    at + token_length,
                )
            if name is None:
                tp = self._partitions[number]
                record = (*tp, offset, timestamp, key, value, headers, last_token)
                events.append(_new(Record, record))
            else:
                events.append(_build_event(name, content, last_token))
        return events


def _encode_control(name: str, data: dict[str, Any]) -> bytes:
    content = orjson.dumps(data)
    return _CONTROL.pack(_KIND_NUMBERS[name], len(content)) + content


def _read_control(data: bytes, at: int) -> tuple[str, dict[str, Any], int]:
    """Return the name and the data of a control frame, and the offset after it."""
    kind, length = _CONTROL.unpack_from(data, at)
    start = at + _CONTROL.size
    return _KINDS[kind], orjson.loads(data[start : start + length]), start + length


def _build_event(name: str, data: dict[str, Any], token: LazyToken | str) -> Event:
    """Return the event of a control frame."""
    if name == "begin":
        pending = tuple((item["topic"], item["partition"]) for item in data["pending"])
        topics, partitions, changed = tuple(data["topics"]), data["partitions"], "view" in data
        return Begin(topics, partitions, pending, data["resume"], changed, data["token"])
    if name == "end":
        return End(data["reason"], data["token"])
    if name == "position":
        return Position(str(token))
    topic, partition = data["topic"], data["partition"]
    if name == "gap":
        return Gap(topic, partition, data["from"], data["to"], data["reason"], str(token))
    if name == "ready":
        approximate = data["resolved"] == "approximate"
        return Ready(topic, partition, data["offset"], approximate, str(token))
    return Fault(topic, partition, data["code"], data["message"], str(token))


def _iter_headers(headers: Sequence[tuple[str, bytes | None]]) -> Iterator[bytes]:
    for name, content in headers:
        # "surrogatepass": names that are not UTF-8 have lone surrogates here, and stay as they are.
        encoded = name.encode("utf-8", "surrogatepass")
        yield _HEADER.pack(len(encoded), -1 if content is None else len(content))
        yield encoded
        yield content or b""


def _read_headers(data: bytes, at: int, count: int) -> tuple[Headers, int]:
    """Return the headers of a record, and the offset after them."""
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name_length, length = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        name, at = data[at : at + name_length].decode("utf-8", "surrogatepass"), at + name_length
        headers.append((name, None if length < 0 else data[at : at + length]))
        at += max(0, length)
    return tuple(headers), at
