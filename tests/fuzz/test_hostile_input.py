"""Whatever comes, parsers refuse or take it, within a budget of time and memory.

Short by default, and without the budget; `make fuzz MINUTES=..` goes on for as long as that.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httptools
import orjson
from aiokafka.record.util import calc_crc32c
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.requests import Request
from support.budgets import Budget
from support.fuzzing import MEASURES_COST, run_for_duration
from support.raw_websocket import build_frame
from support.record_sets import build_batch, decode_record_set

from gateway.config.types.filters import parse_fields
from gateway.core.log.record import TopicPartition
from gateway.errors import GatewayError
from gateway.formats.avro.codec import AvroCodec
from gateway.formats.protobuf import ProtobufCodec
from gateway.sidecar.consumer.dialect import iter_accepted_types
from gateway.sidecar.http.spec import Spec
from gateway.sidecar.http.status import StatusError
from gateway.sidecar.ksqldb.rows import KsqlError, KsqlProtocolError, ResponseParser
from gateway.web.access.x509 import get_certificate
from gateway.web.http.content import iter_ranges, parse_preferences
from gateway.web.http.head import parse_body_length, to_origin_form
from gateway.web.routing.messages import parse_message, parse_target
from gateway.web.routing.views import parse_selection
from gateway.web.websocket.handshake import HANDSHAKES, UpgradeRequest
from gateway.wire.message_reader import MessageReader, ProtocolError

BUDGET = Budget(memory_per_byte=200)
JSON = Budget(base_turns=200_000, memory_per_byte=200)
TP = TopicPartition("orders", 0)
REFUSED = (GatewayError, StatusError, ValueError, ProtocolError, httptools.HttpParserError)

marks = st.sampled_from(list(' \t,;:="\\/~*.-+()[]{}<>^!?&%#@0123456789aeEqQjJ\x00\r\né\U0001f600'))
words = st.sampled_from(
    [
        *("key", "header.a", "/a", "in(", "^=", ">=", "Cert=", "-----BEGIN CERTIFICATE-----"),
        *("%0A", "q=0.5", "gzip", "permessage-deflate", "filter=", "fields=", "true", "1e9"),
    ]
)
hostile = st.lists(st.one_of(marks, words), max_size=400).map("".join)
repeated = st.tuples(hostile, st.integers(1, 400)).map(
    lambda each: (each[0][:40] * each[1])[:16384]
)
texts = st.one_of(hostile, repeated)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), hostile),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.one_of(words, hostile), inner)),
    max_leaves=20,
)


def within(budget: Budget, parse: Callable[[Any], object], given: Any, length: int) -> None:
    def parse_or_refuse() -> None:
        with suppress(*REFUSED):
            parse(given)

    if MEASURES_COST:
        budget.check_cost(parse_or_refuse, length)
    else:
        parse_or_refuse()


@run_for_duration
@given(st.lists(texts, max_size=80), st.sampled_from(["filter", "fields"]))
def test_queries(given: list[str], name: str):
    query = [(name, text) for text in given]
    within(JSON, parse_selection, query, sum(map(len, given)))


@run_for_duration
@given(st.one_of(texts, st.lists(texts, max_size=200)))
def test_fields(given: str | list[str]):
    within(BUDGET, parse_fields, given, sum(map(len, given)))


@run_for_duration
@given(texts)
def test_addresses(given: str):
    within(BUDGET, parse_target, "/?" + given, len(given))


@run_for_duration
@given(texts)
@example('"' * 5000)
def test_forwarded_certificates(given: str):
    told = {"extensions": {"gateway.certificate": given}}
    within(BUDGET, lambda scope: get_certificate(scope, trust_forwarded=True), told, len(given))


@run_for_duration
@given(texts, st.sampled_from([iter_ranges, iter_accepted_types, parse_preferences]))
def test_preferences(given: str, parse: Callable[[Any], Any]):
    value = given.encode(errors="replace")
    scope = {"type": "http", "headers": [(b"accept", value), (b"prefer", value)]}

    def parsed(_: object) -> None:
        if parse is iter_ranges:
            list(iter_ranges(given))
        elif parse is iter_accepted_types:
            list(iter_accepted_types(Request(scope).headers))
        else:
            parse_preferences(Request(scope))

    within(BUDGET, parsed, None, len(given))


@run_for_duration
@given(texts, texts)
def test_handshakes(key: str, value: str):
    names = (
        "connection",
        "upgrade",
        "origin",
        "sec-websocket-extensions",
        "sec-websocket-protocol",
    )
    key, value = (each.translate(dict.fromkeys(b"\0\r\n")) for each in (key, value))  # llhttp does
    headers = [(name.encode(), value.encode("latin-1", "replace")) for name in names]
    headers += [(b"sec-websocket-key", key.encode("latin-1", "replace"))]
    asked = UpgradeRequest("GET", "/", "1.1", headers)
    within(JSON, HANDSHAKES[True].negotiate, asked, len(key) + 4 * len(value))


@run_for_duration
@given(st.binary(max_size=4096))
def test_request_heads(data: bytes):
    class Sink:
        def __init__(self) -> None:
            self.headers: list[tuple[bytes, bytes]] = []

        def on_header(self, name: bytes, value: bytes) -> None:
            self.headers.append((name.lower(), value))

    def parse(data: bytes) -> None:
        sink = Sink()
        httptools.HttpRequestParser(sink).feed_data(b"GET / HTTP/1.1\r\nhost: " + data)
        parse_body_length("1.1", sink.headers)
        to_origin_form(b"GET", data, sink.headers)

    within(BUDGET, parse, data, len(data))


@run_for_duration
@given(st.one_of(texts, values.map(json.dumps)))
def test_messages(given: str):
    within(JSON, parse_message, given, len(given))


@run_for_duration
@given(st.sampled_from(["subscribe", "change", "produce", "credit", "token"]),
       st.dictionaries(st.sampled_from(["id", "path", "filter", "fields", "headers", "value", "x"]),
                       values))  # fmt: skip
def test_members_of_messages(kind: str, members: dict[str, Any]):
    text = json.dumps({"type": kind, **members})
    within(JSON, parse_message, text, len(text))


frames = st.builds(
    build_frame, st.integers(0, 15), st.binary(max_size=300),
    fin=st.booleans(), rsv=st.sampled_from([0, 4]),
)  # fmt: skip


@run_for_duration
@given(st.lists(st.one_of(frames, st.binary(max_size=40)), max_size=40), st.integers(1, 50))
def test_frames(given: list[bytes], size: int):
    data = b"".join(given)

    def parse(data: bytes) -> None:
        reader = MessageReader(12)
        for at in range(0, len(data), size):
            reader.feed(data[at : at + size])
            while reader.read(0.0) is not None:
                pass

    # a compressed frame of 300 bytes may hold 300 KB
    within(
        Budget(base_turns=400_000, turns_per_byte=1000, memory_per_byte=4000),
        parse,
        data,
        len(data),
    )


SPEC = Spec(["producer", "consumer.consumers"])


def dumped(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return b""


OPERATIONS = sorted(
    operation["operationId"]
    for item in SPEC.document["paths"].values()
    for operation in item.values()
    if isinstance(operation, dict) and "requestBody" in operation
)


@run_for_duration
@given(st.sampled_from(OPERATIONS), st.one_of(st.binary(max_size=2000), values.map(dumped)))
def test_bodies_of_the_sidecar(operation: str, data: bytes):
    parse = SPEC[operation]
    within(JSON, lambda data: parse.parse_body(data, "application/json"), data, len(data))


AVRO = AvroCodec(json.dumps({"type": "record", "name": "r", "fields": [
    {"name": "a", "type": {"type": "array", "items": "null"}},
    {"name": "m", "type": {"type": "map", "values": ["null", "r", "string"]}},
    {"name": "b", "type": ["null", "bytes", {"type": "enum", "name": "e", "symbols": ["x", "y"]}]},
]}), {})  # fmt: skip
PROTO = ProtobufCodec(
    'syntax = "proto3"; import "google/protobuf/any.proto"; message A { repeated A a = 1;'
    " map<string, A> m = 2; repeated int64 n = 3; google.protobuf.Any any = 4; bytes b = 5; }",
    {},
)
# 1 MiB of JSON is free, for whatever input
RECORD = Budget(
    base_turns=40_000_000, turns_per_byte=20_000, base_memory=40 << 20, memory_per_byte=20_000
)


@run_for_duration
@given(st.binary(max_size=600))
@example(b"\xfe\xff\xff\xff\x0f\x00")
def test_avro(data: bytes):
    within(RECORD, AVRO.decode_text, data, len(data))


@run_for_duration
@given(st.binary(max_size=600))
def test_protobuf(data: bytes):
    within(RECORD, PROTO.decode_text, b"\0" + data, len(data))


@run_for_duration
@given(st.integers(0, 7), st.binary(max_size=600), st.integers(-1, 2**31 - 1))
def test_record_sets(codec: int, payload: bytes, count: int):
    whole = bytearray(build_batch([0, 1, 2], attributes=codec)[:61] + payload)
    whole[8:12] = (len(whole) - 12).to_bytes(4, "big")
    whole[57:61] = count.to_bytes(4, "big", signed=True)
    whole[17:21] = calc_crc32c(bytes(whole[21:])).to_bytes(4, "big")
    within(
        Budget(base_turns=4_000_000, base_memory=4 << 20),
        lambda data: decode_record_set(TP, data, 0),
        bytes(whole),
        600,
    )


@run_for_duration
@given(
    st.lists(st.one_of(hostile.map(str.encode), st.sampled_from([b"[", b'["', b"{", b"]", b"\\"])))
)
def test_rows_of_ksqldb(pieces: list[bytes]):
    def parse(pieces: list[bytes]) -> None:
        reading = ResponseParser()
        with suppress(KsqlError, KsqlProtocolError):
            for piece in pieces:
                reading.feed(piece)
            reading.feed_eof()

    within(JSON, parse, pieces, sum(map(len, pieces)))
