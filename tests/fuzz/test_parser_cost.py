"""Every parser of bytes from outside, with the dearest input there is as long as it may be.

A quarter of it must take no less than an eleventh of the time (`QUADRATIC`): the work is linear.
And all of it takes at most `TURNS` turns of an empty loop, 20 ms where a turn is 20 ns, or what its
case says. Who adds a parser adds its case.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple

import httptools
import pytest
from starlette.requests import Request
from support.budgets import MAX_LINEAR_GROWTH, measure_growth, measure_turns
from support.raw_websocket import (
    OPCODE_BINARY,
    OPCODE_CONTINUATION,
    OPCODE_TEXT,
    build_frame,
    deflate_payload,
)
from support.record_sets import BatchRecord, build_batch, decode_record_set

from gateway.config.types.condition import ShortCondition, merge_conditions
from gateway.config.types.filters import parse_fields, parse_filter
from gateway.config.types.substitution import find_closest
from gateway.core.channel.filters import matches_glob, parse_pointer
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import GatewayError
from gateway.formats.avro.codec import AvroCodec
from gateway.formats.cloudevents import encode_cloudevents
from gateway.formats.exact_values import has_inexact_number
from gateway.formats.plain import create_value_format
from gateway.formats.projection import project_format
from gateway.formats.protobuf import ProtobufCodec
from gateway.sidecar.consumer.dialect import iter_accepted_types
from gateway.sidecar.consumer.instance_options import build_base_uri
from gateway.sidecar.http.spec import Spec
from gateway.sidecar.http.status import StatusError
from gateway.sidecar.ksqldb.rows import ResponseParser
from gateway.telemetry import traceparent
from gateway.telemetry.logs import redact_text, redact_url
from gateway.web.access.x509 import get_certificate
from gateway.web.http.asgi_middleware import ForwardedMiddleware
from gateway.web.http.browsers import CorsRequest
from gateway.web.http.content import iter_ranges, lists_record, parse_preferences
from gateway.web.http.head import to_origin_form
from gateway.web.http.query import parse_start_request, wants_positions
from gateway.web.routing.messages import parse_message, parse_target
from gateway.web.routing.views import parse_selection
from gateway.web.websocket.handshake import HANDSHAKES, UpgradeRequest
from gateway.wire.message_reader import MessageReader, ProtocolError

pytestmark = pytest.mark.night

KiB, MiB = 1 << 10, 1 << 20
HEAD = 64 * KiB  # of a request
PATH = 16 * KiB  # in a message
TURNS = 1_000_000
TP = TopicPartition("orders", 0)
REFUSED = (GatewayError, StatusError, ValueError, ProtocolError, httptools.HttpParserError)


class Case(NamedTuple):
    """parse: what is given `make(longest)`, and may refuse it. turns: where `TURNS` do not do."""

    parse: Callable[[Any], object]
    make: Callable[[int], Any]
    longest: int
    turns: float = TURNS


def request(**headers: str) -> Request:
    pairs = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    scope = {"type": "http", "path": "/", "query_string": b"", "headers": pairs}
    return Request({**scope, "method": "GET", "server": ("a", 80), "scheme": "http"})


def queried(query: str) -> Request:
    scope = {"type": "http", "path": "/", "query_string": query.encode(), "headers": []}
    return Request({**scope, "method": "GET"})


def repeated(text: str, *, before: str = "", after: str = "") -> Callable[[int], str]:
    return lambda n: before + text * ((n - len(before) - len(after)) // len(text)) + after


def xfcc(header: str) -> object:
    return get_certificate({"extensions": {"gateway.certificate": header}}, trust_forwarded=True)


async def _nothing(*_: object) -> None:
    pass


def forwarded_for(header: str) -> None:
    app = ForwardedMiddleware(_nothing, ("10.0.0.0/8",))
    scope = {
        "type": "http",
        "client": ("10.0.0.1", 1),
        "headers": [(b"x-forwarded-for", header.encode())],
    }
    with pytest.raises(StopIteration):
        app(scope, _nothing, _nothing).send(None)  # type: ignore[arg-type]


def handshaken(value: str) -> object:
    names = ("sec-websocket-extensions", "sec-websocket-protocol", "connection")
    many = [(name.encode(), value.encode()) for name in names]
    usual = [(b"host", b"a"), (b"upgrade", b"websocket"), (b"sec-websocket-version", b"13")]
    key = (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ==")
    return HANDSHAKES[True].negotiate(UpgradeRequest("GET", "/ws", "1.1", [*many, *usual, key]))


def request_head(data: bytes) -> None:
    class Sink:
        def on_header(self, name: bytes, value: bytes) -> None:
            pass

    httptools.HttpRequestParser(Sink()).feed_data(data)


def heard(data: bytes) -> None:
    reader = MessageReader(12)
    reader.feed(data)
    while reader.read(0.0) is not None:
        pass


def in_pieces(data: bytes) -> None:
    reader = MessageReader()
    for at in range(0, len(data), 256):
        reader.feed(data[at : at + 256])
        reader.read(0.0)


def zigzag(number: int) -> bytes:
    number, out = number << 1, bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


@lru_cache
def avro(schema: str) -> AvroCodec:
    return AvroCodec(schema, {})


@lru_cache
def protobuf() -> ProtobufCodec:
    return ProtobufCodec('syntax = "proto3"; message A { repeated int32 n = 1; A a = 2; }', {})


@lru_cache
def spec() -> Spec:
    return Spec(["producer"])


def nulls(n: int) -> bytes:
    return zigzag(n) + b"\0"


def produced(body: str) -> object:
    wanted = spec()["postData"].parse_body(body.encode(), "application/json")
    record = spec().create_validator("ProduceRecord")
    for each in wanted["records"]:
        record.check_names(each)
    return wanted


def rows(data: bytes) -> None:
    reading = ResponseParser()
    for at in range(0, len(data), 16 * KiB):
        reading.feed(data[at : at + 16 * KiB])


ARRAY = '{"type": "array", "items": "%s"}'
DEEP = '{"type": "record", "name": "r", "fields": [{"name": "next", "type": ["null", "r"]}]}'

CASES: dict[str, Case] = {
    # queries
    "filters": Case(
        lambda text: parse_selection(parse_target(text)[1]),
        repeated("filter=/&", before="/?"),
        HEAD,
    ),
    "filter: list": Case(parse_filter, repeated(",", before="/a=in(", after=")"), PATH),
    "filter: short": Case(parse_filter, repeated("=", before="/"), PATH),
    "filter: JSON": Case(parse_filter, repeated("[", before='{"key": '), PATH),
    "filter: number": Case(parse_filter, repeated("1", before='{"key": {"gt": ', after="}}"), PATH),
    "filter: zeros": Case(parse_filter, repeated("0", before="/a>=1"), PATH),
    "filter: unknown": Case(parse_filter, repeated("k", before='{"', after='": 1}'), PATH),
    "filters merged": Case(
        lambda many: merge_conditions([ShortCondition.parse(each) for each in many]),
        lambda n: [f"/{i % 7}>={i}" for i in range(n)],
        4096,
        4 * TURNS,  # of which no request has more than 64
    ),
    "fields": Case(parse_fields, repeated("/a,"), HEAD),
    "pointer": Case(parse_pointer, repeated("/~0"), KiB),
    "pointer: bad": Case(parse_pointer, repeated("/~0", after="~"), KiB),
    "query": Case(lambda text: parse_target(text), repeated("a&", before="/?"), HEAD, 3 * TURNS),
    "from": Case(
        lambda text: parse_start_request(queried(text), default="live", history="all"),
        repeated("1", before="from=-"),
        HEAD,
    ),
    "until": Case(
        lambda text: parse_start_request(queried(text), default="live", history="all"),
        repeated("9", before="until="),
        HEAD,
    ),
    "positions": Case(
        lambda text: wants_positions(queried(text)), repeated("t", before="positions="), HEAD
    ),
    "pattern": Case(lambda text: matches_glob(text, "a" * 249), repeated("*a", after="b"), 249),
    # headers
    "accept": Case(lambda text: list(iter_ranges(text)), repeated(';"\\"', before='"'), HEAD),
    "accept: many": Case(lambda text: list(iter_ranges(text)), repeated("a;q=1,"), HEAD, 3 * TURNS),
    "prefer": Case(
        lambda text: parse_preferences(request(prefer=text)), repeated("a=,;"), HEAD, 2 * TURNS
    ),
    "if-match": Case(lambda text: lists_record(text, "0.1.2"), repeated('"a",'), HEAD),
    "certificate: quotes": Case(xfcc, repeated('\\"', before='"'), HEAD),
    "certificate: elements": Case(xfcc, repeated('a="",'), HEAD, 2 * TURNS),
    "certificate: spaces": Case(xfcc, repeated(" ", before="a", after='"'), HEAD),
    "forwarded for": Case(forwarded_for, repeated("10.0.0.1,"), HEAD, 4 * TURNS),
    "forwarded": Case(
        lambda text: build_base_uri(request(forwarded=text), None, "g", "n"), repeated("a"), HEAD
    ),
    "forwarded path": Case(
        lambda text: build_base_uri(request(x_forwarded_prefix=text), None, "g", "n"),
        repeated("/a", after="?"),
        HEAD,
    ),
    "traceparent": Case(traceparent.parse, lambda n: b"0" * n, HEAD),
    "preflight": Case(
        lambda text: CorsRequest(
            "a", {"headers": [(b"access-control-request-headers", text)], "method": "OPTIONS"}
        ),
        lambda n: b"a," * (n // 2),
        HEAD,
    ),
    "handshake": Case(handshaken, repeated("a;b=1,"), HEAD // 3, 8 * TURNS),
    "handshake: quotes": Case(handshaken, repeated('\\"', before='a;b="'), HEAD // 3),
    "target": Case(
        lambda text: to_origin_form(b"GET", text, []), lambda n: b"http://" + b"a" * n + b"@", HEAD
    ),
    "request head": Case(
        request_head, lambda n: b"GET / HTTP/1.1\r\n" + b"a:\r\n" * (n // 4), HEAD
    ),
    "dialect": Case(
        lambda text: list(iter_accepted_types(request(accept=text).headers)),
        repeated("a; q=1 ;,"),
        HEAD,
        2 * TURNS,
    ),
    "log line: tokens": Case(redact_text, repeated("eyJ"), HEAD),
    "log line: pairs": Case(redact_text, repeated("?a", after="="), HEAD, 2 * TURNS),
    "log line: schemes": Case(redact_text, repeated("bearer "), HEAD, 2 * TURNS),
    "log line: URLs": Case(redact_text, repeated("://", after="@"), HEAD),
    "URL": Case(redact_url, repeated("&token=a", before="/?"), HEAD, 4 * TURNS),
    # messages
    "message: type": Case(parse_message, repeated("x", before='{"type": "', after='"}'), MiB),
    "message: member": Case(
        parse_message, repeated("x", before='{"type": "ping", "', after='": 1}'), MiB
    ),
    "message: members": Case(
        parse_message,
        lambda n: json.dumps({"type": "ping", **{f"{i:x}": 1 for i in range(n // 12)}}),
        MiB,
        6 * TURNS,  # orjson
    ),
    "message: fields": Case(
        parse_message,
        repeated(
            "1,", before='{"type": "subscribe", "id": "a", "path": "/", "fields": [', after="1]}"
        ),
        MiB,
        2 * TURNS,
    ),
    "message: headers": Case(
        parse_message,
        lambda n: json.dumps(
            {
                "type": "produce",
                "id": "a",
                "value": 1,
                "headers": {f"{i:x}": 1 for i in range(n // 12)},
            }
        ),
        MiB,
        6 * TURNS,  # orjson
    ),
    "message: lists": Case(
        parse_message,
        repeated("[],", before='{"type": "produce", "id": "a", "value": [', after="1]}"),
        MiB,
        15 * TURNS,  # orjson, and the garbage collector
    ),
    "message: digits": Case(
        parse_message,
        repeated("1", before='{"type": "produce", "id": "a", "value": 1.', after="}"),
        MiB,
    ),
    "message: depth": Case(
        parse_message,
        lambda n: '{"type": "produce", "id": "a", "value": ' + "[" * n + "]" * n + "}",
        MiB,
    ),
    "nearest": Case(lambda word: find_closest(word, ["a" * 250] * 5000), repeated("a"), 249),
    "long numbers": Case(
        partial(has_inexact_number, value=None), lambda n: b'"' + b"a1e" * (n // 3), MiB
    ),
    # frames
    "frame": Case(heard, lambda n: build_frame(OPCODE_TEXT, b"x" * n), MiB - 16),
    "frame: in pieces": Case(
        in_pieces, lambda n: build_frame(OPCODE_TEXT, b"x" * n), MiB - 16, 3 * TURNS
    ),
    "frame: fragments": Case(
        heard,
        lambda n: (
            build_frame(OPCODE_BINARY, b"x" * 200, fin=False)
            + build_frame(OPCODE_CONTINUATION, b"x" * 200, fin=False) * (n // 208)
        ),
        MiB - KiB,
        2 * TURNS,
    ),
    "frame: compressed": Case(
        heard, lambda n: build_frame(OPCODE_TEXT, deflate_payload(b"x" * n), rsv=4), MiB - KiB
    ),
    # records
    "record set: records": Case(
        lambda data: decode_record_set(TP, data, 0),
        lambda n: build_batch([BatchRecord(i, b"", None) for i in range(n // 7)]),
        64 * KiB,
    ),
    "record set: batches": Case(
        lambda data: decode_record_set(TP, data, 0),
        lambda n: b"".join(build_batch([i]) for i in range(n // 70)),
        64 * KiB,
    ),
    "record set: broken": Case(
        lambda data: decode_record_set(TP, data, 0),
        lambda n: build_batch(
            [
                BatchRecord(0, encoded_fields=b"\0\0\0\xff"),
                *(BatchRecord(i + 1) for i in range(n // 8)),
            ]
        ),
        64 * KiB,
        3 * TURNS,
    ),
    "avro: nulls": Case(avro(ARRAY % "null").decode_text, nulls, 10**8),
    "avro: ints": Case(
        avro(ARRAY % "int").decode_text, lambda n: zigzag(n) + b"\2" * n + b"\0", 64 * KiB
    ),
    "avro: depth": Case(avro(DEEP).decode_text, lambda n: b"\2" * n + b"\0", 64 * KiB),
    "protobuf: packed": Case(
        lambda data: protobuf().decode_text(data),
        lambda n: b"\0\x0a" + zigzag(n // 2) + b"\1" * n,
        64 * KiB,
        6 * TURNS,  # protobuf's own, in Python
    ),
    "protobuf: unknown": Case(
        lambda data: protobuf().decode_text(data), lambda n: b"\0" + b"\x78\1" * (n // 2), MiB
    ),
    "protobuf: depth": Case(
        lambda data: protobuf().decode_text(data), lambda n: b"\0" + b"\x13" * n, MiB
    ),
    "cloudevents": Case(
        lambda headers: encode_cloudevents(Record(TP, 0, 0, 0, b"k", b"{}", headers)),
        lambda n: [("ce_specversion", b"1.0"), *((f"ce_a{i}", b"1") for i in range(n // 8))],
        64 * KiB,
    ),
    "projection": Case(
        lambda value: project_format(create_value_format("error"), ["/a"])(
            Record(TP, 0, 0, 0, None, value)
        ),
        lambda n: b'{"a": [' + b"1.5," * (n // 4) + b"1]}",
        64 * KiB,
        2 * TURNS,
    ),
    # the sidecar
    "sidecar: records": Case(
        produced,
        repeated('{"a":1},', before='{"records": [', after='{"value": 1}]}'),
        64 * KiB,
        8 * TURNS,
    ),
    "sidecar: members": Case(
        produced,
        lambda n: json.dumps(
            {"records": [{"value": 1}], **{f"recor{i:x}": 1 for i in range(n // 12)}}
        ),
        64 * KiB,
    ),
    "ksqlDB: a row": Case(
        rows,
        lambda n: b'[{"columnNames": ["a"]},["' + b"\\" * (n // 2),
        MiB,
        30 * TURNS,  # each mark is looked at
    ),
}


def tried(case: Case) -> Callable[[Any], None]:
    def parse(given: Any) -> None:
        with suppress(*REFUSED):
            case.parse(given)

    return parse


@pytest.mark.parametrize("name", CASES)
def test_the_work_is_linear(name: str):
    case = CASES[name]
    small, large = case.make(case.longest // 4), case.make(case.longest)
    grown = measure_growth(tried(case), small, large)
    assert grown < MAX_LINEAR_GROWTH, f"{grown:.1f} times the time for four times the input"


@pytest.mark.parametrize("name", CASES)
def test_the_longest_input_takes_little(name: str):
    case = CASES[name]
    longest = case.make(case.longest)
    taken = measure_turns(lambda: tried(case)(longest), case.turns)
    assert taken < case.turns, f"{taken:.0f} turns, {case.turns:.0f} are allowed"


def test_a_frame_of_records_is_what_the_cases_take_it_for():
    assert len(decode_record_set(TP, CASES["record set: records"].make(70), 0).entries) == 10
    assert struct.calcsize(">qiibIhiqqqhii") == 61
