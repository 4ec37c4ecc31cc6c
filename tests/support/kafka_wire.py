"""Just enough of Kafka's protocol to read requests' headers and to alter answers.

Written apart from the gateway's own codec and from aiokafka's, so that a fault in either is
not shared by the tests. Field tables follow the message JSON files of Apache Kafka 4.3
(clients/src/main/resources/common/message); tagged fields are carried over unread.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, NamedTuple


class ApiKey(IntEnum):
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


class FieldLayout(NamedTuple):
    """`kind`: a scalar of `_SCALARS`, str, bytes, uuid, [scalar], or a list of fields (array)."""

    name: str
    field_type: Any
    min_version: int = 0
    max_version: int = 32767


class ResponseLayout(NamedTuple):
    """How an answer is laid out; from version `flexible` on, compact and with tags."""

    first_flexible: int
    fields: list[FieldLayout]


_SCALAR_FORMATS = {"i8": ">b", "bool": ">?", "i16": ">h", "i32": ">i", "i64": ">q"}

RESPONSE_LAYOUTS: dict[int, ResponseLayout] = {
    ApiKey.PRODUCE: ResponseLayout(
        9,
        [
            FieldLayout(
                "topics",
                [
                    FieldLayout("name", "str", 0, 12),
                    FieldLayout("topic_id", "uuid", 13),
                    FieldLayout(
                        "partitions",
                        [
                            FieldLayout("partition", "i32"),
                            FieldLayout("error_code", "i16"),
                            FieldLayout("base_offset", "i64"),
                            FieldLayout("log_append_time", "i64", 2),
                            FieldLayout("log_start_offset", "i64", 5),
                            FieldLayout(
                                "record_errors",
                                [FieldLayout("batch_index", "i32"), FieldLayout("message", "str")],
                                8,
                            ),
                            FieldLayout("error_message", "str", 8),
                        ],
                    ),
                ],
            ),
            FieldLayout("throttle_ms", "i32", 1),
        ],
    ),
    ApiKey.FETCH: ResponseLayout(
        12,
        [
            FieldLayout("throttle_ms", "i32", 1),
            FieldLayout("error_code", "i16", 7),
            FieldLayout("session_id", "i32", 7),
            FieldLayout(
                "topics",
                [
                    FieldLayout("name", "str", 0, 12),
                    FieldLayout("topic_id", "uuid", 13),
                    FieldLayout(
                        "partitions",
                        [
                            FieldLayout("partition", "i32"),
                            FieldLayout("error_code", "i16"),
                            FieldLayout("high_watermark", "i64"),
                            FieldLayout("last_stable_offset", "i64", 4),
                            FieldLayout("log_start_offset", "i64", 5),
                            FieldLayout(
                                "aborted",
                                [
                                    FieldLayout("producer_id", "i64"),
                                    FieldLayout("first_offset", "i64"),
                                ],
                                4,
                            ),
                            FieldLayout("preferred_read_replica", "i32", 11),
                            FieldLayout("records", "bytes"),
                        ],
                    ),
                ],
            ),
        ],
    ),
    ApiKey.LIST_OFFSETS: ResponseLayout(
        6,
        [
            FieldLayout("throttle_ms", "i32", 2),
            FieldLayout(
                "topics",
                [
                    FieldLayout("name", "str"),
                    FieldLayout(
                        "partitions",
                        [
                            FieldLayout("partition", "i32"),
                            FieldLayout("error_code", "i16"),
                            FieldLayout("old_style_offsets", ["i64"], 0, 0),
                            FieldLayout("timestamp", "i64", 1),
                            FieldLayout("offset", "i64", 1),
                            FieldLayout("leader_epoch", "i32", 4),
                        ],
                    ),
                ],
            ),
        ],
    ),
    ApiKey.METADATA: ResponseLayout(
        9,
        [
            FieldLayout("throttle_ms", "i32", 3),
            FieldLayout(
                "brokers",
                [
                    FieldLayout("node_id", "i32"),
                    FieldLayout("host", "str"),
                    FieldLayout("port", "i32"),
                    FieldLayout("rack", "str", 1),
                ],
            ),
            FieldLayout("cluster_id", "str", 2),
            FieldLayout("controller_id", "i32", 1),
            FieldLayout(
                "topics",
                [
                    FieldLayout("error_code", "i16"),
                    FieldLayout("name", "str"),
                    FieldLayout("topic_id", "uuid", 10),
                    FieldLayout("is_internal", "bool", 1),
                    FieldLayout(
                        "partitions",
                        [
                            FieldLayout("error_code", "i16"),
                            FieldLayout("partition", "i32"),
                            FieldLayout("leader", "i32"),
                            FieldLayout("leader_epoch", "i32", 7),
                            FieldLayout("replicas", ["i32"]),
                            FieldLayout("isr", ["i32"]),
                            FieldLayout("offline", ["i32"], 5),
                        ],
                    ),
                    FieldLayout("authorized_operations", "i32", 8),
                ],
            ),
            FieldLayout("cluster_authorized_operations", "i32", 8, 10),
            FieldLayout("error_code", "i16", 13),
        ],
    ),
    ApiKey.FIND_COORDINATOR: ResponseLayout(
        3,
        [
            FieldLayout("throttle_ms", "i32", 1),
            FieldLayout("error_code", "i16", 0, 3),
            FieldLayout("error_message", "str", 1, 3),
            FieldLayout("node_id", "i32", 0, 3),
            FieldLayout("host", "str", 0, 3),
            FieldLayout("port", "i32", 0, 3),
            FieldLayout(
                "coordinators",
                [
                    FieldLayout("key", "str"),
                    FieldLayout("node_id", "i32"),
                    FieldLayout("host", "str"),
                    FieldLayout("port", "i32"),
                    FieldLayout("error_code", "i16"),
                    FieldLayout("error_message", "str"),
                ],
                4,
            ),
        ],
    ),
    ApiKey.END_TXN: ResponseLayout(
        3,
        [
            FieldLayout("throttle_ms", "i32"),
            FieldLayout("error_code", "i16"),
            FieldLayout("producer_id", "i64", 5),
            FieldLayout("producer_epoch", "i16", 5),
        ],
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ResponseLayout(
        4,
        [
            FieldLayout("throttle_ms", "i32", 2),
            FieldLayout(
                "topics",
                [
                    FieldLayout("name", "str"),
                    FieldLayout(
                        "partitions",
                        [
                            FieldLayout("error_code", "i16"),
                            FieldLayout("partition", "i32"),
                            FieldLayout("leader_epoch", "i32", 1),
                            FieldLayout("end_offset", "i64"),
                        ],
                    ),
                ],
            ),
        ],
    ),
}


class RequestHeader(NamedTuple):
    """The head of a request; -1 where the bytes are not a Kafka request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def parse_request_header(frame: bytes) -> RequestHeader:
    """`frame`: a request without its size."""
    if len(frame) < 8:
        return RequestHeader(-1, -1, -1, None)
    key, version, correlation = struct.unpack_from(">hhi", frame)
    length = struct.unpack_from(">h", frame, 8)[0] if len(frame) >= 10 else -1
    client = None if length < 0 else frame[10 : 10 + length].decode(errors="replace")
    return RequestHeader(key, version, correlation, client)


def decode_response(api_key: int, version: int, frame: bytes) -> dict[str, Any] | None:
    """An answer without its size, as a dict; None where its layout is not known here."""
    layout = RESPONSE_LAYOUTS.get(api_key)
    if layout is None:
        return None
    reader = _ResponseReader(frame, version >= layout.first_flexible, version)
    answer: dict[str, Any] = {"correlation_id": reader.read_scalar("i32")}
    if reader.is_flexible:
        answer["header_tags"] = reader.read_tags()
    answer |= reader.read_struct(layout.fields)
    if reader.position != len(frame):
        raise ValueError(
            f"{len(frame) - reader.position} bytes left over in api {api_key} v{version}"
        )
    return answer


def encode_response(api_key: int, version: int, response: dict[str, Any]) -> bytes:
    """The inverse of `decode`."""
    layout = RESPONSE_LAYOUTS[api_key]
    writer = _ResponseWriter(version >= layout.first_flexible, version)
    writer.write_scalar("i32", response["correlation_id"])
    if writer.is_flexible:
        writer.write_tags(response["header_tags"])
    writer.write_struct(layout.fields, response)
    return b"".join(writer.parts)


class _ResponseReader:
    def __init__(self, data: bytes, is_flexible: bool, version: int) -> None:
        self.data = data
        self.position = 0
        self.is_flexible = is_flexible
        self.version = version

    def read_bytes(self, count: int) -> bytes:
        piece = self.data[self.position : self.position + count]
        if len(piece) < count:
            raise ValueError(f"{count} bytes wanted at {self.position}, {len(piece)} there")
        self.position += count
        return piece

    def read_scalar(self, field_type: str) -> Any:
        code = _SCALAR_FORMATS[field_type]
        return struct.unpack(code, self.read_bytes(struct.calcsize(code)))[0]

    def read_varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.read_bytes(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def read_length(self, field_type: str) -> int:
        return self.read_varint() - 1 if self.is_flexible else int(self.read_scalar(field_type))

    def read_tags(self) -> list[tuple[int, bytes]]:
        return [
            (self.read_varint(), self.read_bytes(self.read_varint()))
            for _ in range(self.read_varint())
        ]

    def read_value(self, field_type: Any) -> Any:
        if isinstance(field_type, list):
            count = self.read_length("i32")
            return None if count < 0 else [self.read_element(field_type) for _ in range(count)]
        if field_type == "uuid":
            return self.read_bytes(16)
        if field_type in ("str", "bytes"):
            size = self.read_length("i16" if field_type == "str" else "i32")
            raw = None if size < 0 else self.read_bytes(size)
            return raw.decode() if field_type == "str" and raw is not None else raw
        return self.read_scalar(field_type)

    def read_element(self, field_type: list[Any]) -> Any:
        return (
            self.read_struct(field_type)
            if isinstance(field_type[0], FieldLayout)
            else self.read_value(field_type[0])
        )

    def read_struct(self, fields: list[FieldLayout]) -> dict[str, Any]:
        found = {
            f.name: self.read_value(f.field_type)
            for f in fields
            if f.min_version <= self.version <= f.max_version
        }
        if self.is_flexible:
            found["tags"] = self.read_tags()
        return found


class _ResponseWriter:
    def __init__(self, is_flexible: bool, version: int) -> None:
        self.parts: list[bytes] = []
        self.is_flexible = is_flexible
        self.version = version

    def write_scalar(self, field_type: str, value: Any) -> None:
        self.parts.append(struct.pack(_SCALAR_FORMATS[field_type], value))

    def write_varint(self, value: int) -> None:
        while value > 0x7F:
            self.parts.append(bytes([value & 0x7F | 0x80]))
            value >>= 7
        self.parts.append(bytes([value]))

    def write_length(self, field_type: str, value: int) -> None:
        if self.is_flexible:
            self.write_varint(value + 1)
        else:
            self.write_scalar(field_type, value)

    def write_tags(self, tags: list[tuple[int, bytes]]) -> None:
        self.write_varint(len(tags))
        for tag, raw in tags:
            self.write_varint(tag)
            self.write_varint(len(raw))
            self.parts.append(raw)

    def write_value(self, field_type: Any, value: Any) -> None:
        if isinstance(field_type, list):
            self.write_length("i32", -1 if value is None else len(value))
            for element in value or ():
                if isinstance(field_type[0], FieldLayout):
                    self.write_struct(field_type, element)
                else:
                    self.write_value(field_type[0], element)
        elif field_type == "uuid":
            self.parts.append(value)
        elif field_type in ("str", "bytes"):
            raw = value.encode() if isinstance(value, str) else value
            self.write_length(
                "i16" if field_type == "str" else "i32", -1 if raw is None else len(raw)
            )
            self.parts.append(raw or b"")
        else:
            self.write_scalar(field_type, value)

    def write_struct(self, fields: list[FieldLayout], values: dict[str, Any]) -> None:
        for field in fields:
            if field.min_version <= self.version <= field.max_version:
                self.write_value(field.field_type, values[field.name])
        if self.is_flexible:
            self.write_tags(values["tags"])
