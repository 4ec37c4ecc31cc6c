"""Just enough of Kafka's protocol to read requests' headers and to alter answers.

Written apart from the gateway's own codec and from aiokafka's, so that a fault in either is
not shared by the tests. Field tables follow the message JSON files of Apache Kafka 4.3
(clients/src/main/resources/common/message); tagged fields are carried over unread.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, NamedTuple


class Api(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    SASL_AUTHENTICATE = 36
    DESCRIBE_CLUSTER = 60


class Field(NamedTuple):
    """`kind`: a scalar of `_SCALARS`, str, bytes, uuid, [scalar], or a list of fields (array)."""

    name: str
    kind: Any
    since: int = 0
    until: int = 32767


class Layout(NamedTuple):
    """How an answer is laid out; from version `flexible` on, compact and with tags."""

    flexible: int
    fields: list[Field]


_SCALARS = {"i8": ">b", "bool": ">?", "i16": ">h", "i32": ">i", "i64": ">q"}

ANSWERS: dict[int, Layout] = {
    Api.PRODUCE: Layout(
        9,
        [
            Field(
                "topics",
                [
                    Field("name", "str", 0, 12),
                    Field("topic_id", "uuid", 13),
                    Field(
                        "partitions",
                        [
                            Field("partition", "i32"),
                            Field("error_code", "i16"),
                            Field("base_offset", "i64"),
                            Field("log_append_time", "i64", 2),
                            Field("log_start_offset", "i64", 5),
                            Field(
                                "record_errors",
                                [Field("batch_index", "i32"), Field("message", "str")],
                                8,
                            ),
                            Field("error_message", "str", 8),
                        ],
                    ),
                ],
            ),
            Field("throttle_ms", "i32", 1),
        ],
    ),
    Api.FETCH: Layout(
        12,
        [
            Field("throttle_ms", "i32", 1),
            Field("error_code", "i16", 7),
            Field("session_id", "i32", 7),
            Field(
                "topics",
                [
                    Field("name", "str", 0, 12),
                    Field("topic_id", "uuid", 13),
                    Field(
                        "partitions",
                        [
                            Field("partition", "i32"),
                            Field("error_code", "i16"),
                            Field("high_watermark", "i64"),
                            Field("last_stable_offset", "i64", 4),
                            Field("log_start_offset", "i64", 5),
                            Field(
                                "aborted",
                                [Field("producer_id", "i64"), Field("first_offset", "i64")],
                                4,
                            ),
                            Field("preferred_read_replica", "i32", 11),
                            Field("records", "bytes"),
                        ],
                    ),
                ],
            ),
        ],
    ),
    Api.LIST_OFFSETS: Layout(
        6,
        [
            Field("throttle_ms", "i32", 2),
            Field(
                "topics",
                [
                    Field("name", "str"),
                    Field(
                        "partitions",
                        [
                            Field("partition", "i32"),
                            Field("error_code", "i16"),
                            Field("old_style_offsets", ["i64"], 0, 0),
                            Field("timestamp", "i64", 1),
                            Field("offset", "i64", 1),
                            Field("leader_epoch", "i32", 4),
                        ],
                    ),
                ],
            ),
        ],
    ),
    Api.METADATA: Layout(
        9,
        [
            Field("throttle_ms", "i32", 3),
            Field(
                "brokers",
                [
                    Field("node_id", "i32"),
                    Field("host", "str"),
                    Field("port", "i32"),
                    Field("rack", "str", 1),
                ],
            ),
            Field("cluster_id", "str", 2),
            Field("controller_id", "i32", 1),
            Field(
                "topics",
                [
                    Field("error_code", "i16"),
                    Field("name", "str"),
                    Field("topic_id", "uuid", 10),
                    Field("is_internal", "bool", 1),
                    Field(
                        "partitions",
                        [
                            Field("error_code", "i16"),
                            Field("partition", "i32"),
                            Field("leader", "i32"),
                            Field("leader_epoch", "i32", 7),
                            Field("replicas", ["i32"]),
                            Field("isr", ["i32"]),
                            Field("offline", ["i32"], 5),
                        ],
                    ),
                    Field("authorized_operations", "i32", 8),
                ],
            ),
            Field("cluster_authorized_operations", "i32", 8, 10),
            Field("error_code", "i16", 13),
        ],
    ),
    Api.FIND_COORDINATOR: Layout(
        3,
        [
            Field("throttle_ms", "i32", 1),
            Field("error_code", "i16", 0, 3),
            Field("error_message", "str", 1, 3),
            Field("node_id", "i32", 0, 3),
            Field("host", "str", 0, 3),
            Field("port", "i32", 0, 3),
            Field(
                "coordinators",
                [
                    Field("key", "str"),
                    Field("node_id", "i32"),
                    Field("host", "str"),
                    Field("port", "i32"),
                    Field("error_code", "i16"),
                    Field("error_message", "str"),
                ],
                4,
            ),
        ],
    ),
    Api.OFFSET_FOR_LEADER_EPOCH: Layout(
        4,
        [
            Field("throttle_ms", "i32", 2),
            Field(
                "topics",
                [
                    Field("name", "str"),
                    Field(
                        "partitions",
                        [
                            Field("error_code", "i16"),
                            Field("partition", "i32"),
                            Field("leader_epoch", "i32", 1),
                            Field("end_offset", "i64"),
                        ],
                    ),
                ],
            ),
        ],
    ),
}


class Header(NamedTuple):
    """The head of a request; -1 where the bytes are not a Kafka request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def request_header(frame: bytes) -> Header:
    """`frame`: a request without its size."""
    if len(frame) < 8:
        return Header(-1, -1, -1, None)
    key, version, correlation = struct.unpack_from(">hhi", frame)
    length = struct.unpack_from(">h", frame, 8)[0] if len(frame) >= 10 else -1
    client = None if length < 0 else frame[10 : 10 + length].decode(errors="replace")
    return Header(key, version, correlation, client)


def decode(api_key: int, version: int, frame: bytes) -> dict[str, Any] | None:
    """An answer without its size, as a dict; None where its layout is not known here."""
    layout = ANSWERS.get(api_key)
    if layout is None:
        return None
    reader = _Reader(frame, version >= layout.flexible, version)
    answer: dict[str, Any] = {"correlation_id": reader.scalar("i32")}
    if reader.flexible:
        answer["header_tags"] = reader.tags()
    answer |= reader.struct(layout.fields)
    if reader.at != len(frame):
        raise ValueError(f"{len(frame) - reader.at} bytes left over in api {api_key} v{version}")
    return answer


def encode(api_key: int, version: int, answer: dict[str, Any]) -> bytes:
    """The inverse of `decode`."""
    layout = ANSWERS[api_key]
    writer = _Writer(version >= layout.flexible, version)
    writer.scalar("i32", answer["correlation_id"])
    if writer.flexible:
        writer.tags(answer["header_tags"])
    writer.struct(layout.fields, answer)
    return b"".join(writer.parts)


class _Reader:
    def __init__(self, data: bytes, flexible: bool, version: int) -> None:
        self.data = data
        self.at = 0
        self.flexible = flexible
        self.version = version

    def take(self, count: int) -> bytes:
        piece = self.data[self.at : self.at + count]
        if len(piece) < count:
            raise ValueError(f"{count} bytes wanted at {self.at}, {len(piece)} there")
        self.at += count
        return piece

    def scalar(self, kind: str) -> Any:
        code = _SCALARS[kind]
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def length(self, kind: str) -> int:
        return self.varint() - 1 if self.flexible else int(self.scalar(kind))

    def tags(self) -> list[tuple[int, bytes]]:
        return [(self.varint(), self.take(self.varint())) for _ in range(self.varint())]

    def value(self, kind: Any) -> Any:
        if isinstance(kind, list):
            count = self.length("i32")
            return None if count < 0 else [self.element(kind) for _ in range(count)]
        if kind == "uuid":
            return self.take(16)
        if kind in ("str", "bytes"):
            size = self.length("i16" if kind == "str" else "i32")
            raw = None if size < 0 else self.take(size)
            return raw.decode() if kind == "str" and raw is not None else raw
        return self.scalar(kind)

    def element(self, kind: list[Any]) -> Any:
        return self.struct(kind) if isinstance(kind[0], Field) else self.value(kind[0])

    def struct(self, fields: list[Field]) -> dict[str, Any]:
        found = {f.name: self.value(f.kind) for f in fields if f.since <= self.version <= f.until}
        if self.flexible:
            found["tags"] = self.tags()
        return found


class _Writer:
    def __init__(self, flexible: bool, version: int) -> None:
        self.parts: list[bytes] = []
        self.flexible = flexible
        self.version = version

    def scalar(self, kind: str, value: Any) -> None:
        self.parts.append(struct.pack(_SCALARS[kind], value))

    def varint(self, value: int) -> None:
        while value > 0x7F:
            self.parts.append(bytes([value & 0x7F | 0x80]))
            value >>= 7
        self.parts.append(bytes([value]))

    def length(self, kind: str, value: int) -> None:
        if self.flexible:
            self.varint(value + 1)
        else:
            self.scalar(kind, value)

    def tags(self, tags: list[tuple[int, bytes]]) -> None:
        self.varint(len(tags))
        for tag, raw in tags:
            self.varint(tag)
            self.varint(len(raw))
            self.parts.append(raw)

    def value(self, kind: Any, value: Any) -> None:
        if isinstance(kind, list):
            self.length("i32", -1 if value is None else len(value))
            for element in value or ():
                if isinstance(kind[0], Field):
                    self.struct(kind, element)
                else:
                    self.value(kind[0], element)
        elif kind == "uuid":
            self.parts.append(value)
        elif kind in ("str", "bytes"):
            raw = value.encode() if isinstance(value, str) else value
            self.length("i16" if kind == "str" else "i32", -1 if raw is None else len(raw))
            self.parts.append(raw or b"")
        else:
            self.scalar(kind, value)

    def struct(self, fields: list[Field], values: dict[str, Any]) -> None:
        for field in fields:
            if field.since <= self.version <= field.until:
                self.value(field.kind, values[field.name])
        if self.flexible:
            self.tags(values["tags"])
