"""Whatever a client sends: the right answer, the gateway alive, other streams unharmed."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Producer
from support.bad_requests import BAD_BODIES, BAD_HEADS
from support.brokers import embedded_kafka
from support.gateways import GatewayProcess, GatewayThread, build_config
from support.raw_http import RawConnection, RawResponse, build_request, send_request
from support.reference_stream import REFERENCE_TOPICS
from support.sse import SseEvent, SseParser
from support.topic_gateway import run_gateway_process_sync, run_gateway_sync
from support.waiting import WAIT_TIMEOUT_S, block_until

from gateway.core.token.resume_token import TokenWriter, TopicPositions, encode_varint, seal_token
from gateway.kafka.embedded import EmbeddedKafka

MIB = 1024 * 1024
TOPICS = {"orders": 3, "other": 3, "odd": 1, "busy": 1, **REFERENCE_TOPICS}
EVENT_SOURCE = (b"Accept: text/event-stream", b"Sec-Fetch-Mode: cors")

pytestmark = pytest.mark.usefixtures("unharmed")
kafka = embedded_kafka(TOPICS)


def build_gateway_config(kafka: EmbeddedKafka) -> dict[str, Any]:
    config = build_config(kafka.bootstrap, TOPICS, kafka={"bootstrap": list(TOPICS)})
    by_key = {"topic": "orders", "filters": [{"key": "${params.customer}"}]}
    config["routes"] += [
        {"when": [{"path": "/events/orders/{customer}"}], "with": by_key},
        {"when": [{"path": "/any/{topic}"}], "with": {"topic": "${params.topic}"}},
        {"when": [{"path": "/cloud/odd"}], "with": {"topic": "odd", "format": "cloudevents"}},
    ]
    return config


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    with run_gateway_sync(build_gateway_config(kafka)) as gateway:
        yield gateway


@pytest.fixture
def process(kafka: EmbeddedKafka) -> Iterator[GatewayProcess]:
    """Another gateway, whose memory is its own."""
    with run_gateway_process_sync(build_gateway_config(kafka)) as process:
        yield process


@pytest.fixture(scope="module")
def produce(kafka: EmbeddedKafka) -> Iterator[Callable[..., None]]:
    limit = {"message.max.bytes": 16 * MIB, "log_level": 0}
    producer = Producer({"bootstrap.servers": ",".join(kafka.bootstrap), "linger.ms": 0} | limit)

    def produce(topic: str, *values: bytes | None, **options: object) -> None:
        failed: list[object] = []
        for value in values:
            told = {"on_delivery": lambda error, _: failed.append(error) if error else None}
            producer.produce(topic, value, **options, **told)  # type: ignore[arg-type]
        assert producer.flush(WAIT_TIMEOUT_S) == 0 and not failed, failed

    yield produce


class SseStream:
    """An SSE response, event by event; `head` is its status line and headers."""

    def __init__(self, wire: RawConnection, request: bytes) -> None:
        self.wire = wire
        wire.send_bytes(request)
        self.head = wire.read_head()
        assert self.head.status == 200, (self.head, wire.read_body(self.head.headers))
        assert self.head.headers["content-type"].startswith("text/event-stream")
        self._parser = SseParser()
        self._events: list[SseEvent] = []

    def next_event(self) -> SseEvent:
        while not self._events:
            self._events = self._parser.feed(self.wire.read_chunk())
        return self._events.pop(0)

    def next_record(self) -> SseEvent:
        """The next one that says more than where the stream stands."""
        while (event := self.next_event()).event_type == "position":
            pass
        return event


def get_answer(gateway: GatewayThread, request: bytes) -> RawResponse:
    with RawConnection(gateway.port) as wire:
        wire.send_bytes(request)
        return wire.read_response()


def get_first_event(gateway: GatewayThread, request: bytes) -> list[str]:
    """The stream's first event, after which it is still open."""
    with RawConnection(gateway.port) as wire:
        return [SseStream(wire, request).next_event().event_type]


# Tokens


def get_token(gateway: GatewayThread, topic: str) -> bytes:
    """The id that a stream begins with."""
    with RawConnection(gateway.port) as wire:
        return (
            SseStream(wire, build_request(f"/events/{topic}")).next_event().last_event_id.encode()
        )


def change_character(token: bytes, at: int) -> bytes:
    old = token[at : at + 1]
    return token[:at] + (b"A" if old != b"A" else b"B") + token[at + 1 :]


def build_foreign_token(token: bytes) -> bytes:
    places = TopicPositions("orders", "", [5, 5, 5], [0, 0, 0])
    return seal_token(TokenWriter("elsewhere", [places], 1).to_text(), token[1:6])


TOKENS: dict[str, Callable[[bytes], bytes]] = {
    "changed": lambda token: change_character(token, 23),
    "a list": lambda token: token + b"," + token,
    "of another cluster": build_foreign_token,
    "2^59 topics": lambda token: seal_token(token[6:17] + encode_varint(1 << 59), token[1:6]),
    "null": lambda _: b"null",
    "60 KB": lambda _: b"1" + b"A" * 60_000,
    "UTF-8": lambda token: token[:9] + "é".encode() + token[9:],
    "bytes that are no text": lambda token: token[:9] + b"\xff\xfe" + token[9:],
}
"""One of each kind; tests/core/token has all that a token may lack."""


@pytest.fixture(scope="module")
def token(gateway: GatewayThread) -> bytes:
    return get_token(gateway, "orders")


def quote_bytes(data: bytes) -> bytes:
    return b"".join([b"%%%02X" % byte for byte in data])


@pytest.mark.parametrize("case", TOKENS)
def test_a_bad_token_is_refused_to_programs(gateway, token, case):
    bad = TOKENS[case](token)
    answer = get_answer(gateway, build_request("/events/orders", b"Last-Event-ID: " + bad))
    assert answer.status == 400
    assert "connect without" in answer.problem["detail"]


@pytest.mark.parametrize("case", ["changed", "UTF-8", "bytes that are no text"])
def test_a_bad_token_in_the_query_is_refused_to_programs(gateway, token, case):
    target = b"/events/orders?lastEventId=" + quote_bytes(TOKENS[case](token))
    assert get_answer(gateway, build_request(target)).problem["status"] == 400


@pytest.mark.parametrize("is_in_query", [False, True])
@pytest.mark.parametrize("case", ["changed", "of another cluster", "bytes that are no text"])
def test_a_bad_token_is_told_to_an_event_source_as_a_gap(gateway, token, case, is_in_query):
    """In the query it was a 400, so that a page that keeps its position was refused for ever."""
    bad = TOKENS[case](token)
    if is_in_query:
        request = build_request(b"/events/orders?lastEventId=" + quote_bytes(bad), *EVENT_SOURCE)
    else:
        request = build_request("/events/orders", b"Last-Event-ID: " + bad, *EVENT_SOURCE)
    with RawConnection(gateway.port) as wire:
        stream = SseStream(wire, request)
        assert stream.next_event().event_type == "begin"
        gap = stream.next_event()
        assert (gap.event_type, gap.parse_json()["reason"]) == ("gap", "position-refused")
        assert gap.last_event_id, "the gap is told again after the next cut"


def test_the_token_of_another_topic_is_refused(gateway: GatewayThread) -> None:
    line = b"Last-Event-ID: " + get_token(gateway, "other")
    assert get_answer(gateway, build_request("/events/orders", line)).problem["status"] == 400


def test_a_token_too_long_for_a_head_is_refused_by_its_length(gateway: GatewayThread) -> None:
    long = b"1" + b"A" * 65 * 1024
    assert (
        send_request(
            gateway.port, build_request("/events/orders", b"Last-Event-ID: " + long)
        ).status
        == 431
    )
    assert (
        send_request(gateway.port, build_request(b"/events/orders?lastEventId=" + long)).status
        == 414
    )


def test_the_header_beats_the_query(gateway: GatewayThread, token: bytes) -> None:
    good, bad = token, b"nonsense"
    line, query = b"Last-Event-ID: ", b"/events/orders?lastEventId="
    assert get_first_event(gateway, build_request(query + bad, line + good)) == ["begin"]
    assert get_answer(gateway, build_request(query + good, line + bad)).status == 400


# Where to start and to end

QUERIES = b"""
    from=-1 from=0 from=42 from=NaN from=inf from=1e9 from=99999999999999999999 from=yesterday
    from=LIVE from=-5 from=-5x from=5m from=-m from=-1.5h from=%00 from=%FF from=%D9%A1m
    from=-%D9%A1m from=%0D%0AX-Injected:%20yes from=2026-13-01 from=2026-02-30T00:00:00
    from=2024-01-01T00:00:00-99:00 from=0001-01-01 from=9999-12-31T23:59:59
    from=9999-12-31T23:59:59-23:59
    from=live&from=live from=live&from=earliest from=earliest&from= until=-1 until=0 until=NaN
    until=1e9 until=1.5 until=%D9%A1 until=99999999999999 until=tomorrow until=earliest
    until=9999-12-31 until=latest&until=latest until=1&until=2 from=live&until=nonsense
    from=nonsense&until=latest lastEventId=a&lastEventId=b
""".split()
QUERIES += [b"from=" + b"9" * 5000, b"from=" + b"-" * 5000 + b"5m"]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query[:40].decode())
def test_a_start_or_end_without_sense_is_refused(gateway: GatewayThread, query: bytes) -> None:
    problem = get_answer(gateway, build_request(b"/events/orders?" + query)).problem
    assert problem["status"] == 400
    assert len(problem["detail"]) < 500
    answer = get_answer(gateway, build_request(b"/events/orders?" + query, *EVENT_SOURCE))
    error, end = SseParser().feed(answer.body)
    assert (error.event_type, error.parse_json()["message"]) == ("error", problem["detail"])
    assert (end.event_type, end.parse_json()) == ("end", {"reason": "refused"})


@pytest.mark.parametrize(
    "query",
    [
        b"&&&===",
        b"from=",
        b"until=",
        b"_=1764158400000&t=1",
        b"from=-999999999d",
        b"until=999999999999",
        b"&".join([b"_a=b"] * 256),
    ],
    ids=lambda query: query[:40].decode(),
)
def test_a_query_of_no_meaning_is_no_harm(gateway: GatewayThread, query: bytes) -> None:
    assert get_first_event(gateway, build_request(b"/events/orders?" + query)) == ["begin"]


@pytest.mark.parametrize(
    "query",
    [b"%", b"unknown=1", b"%FF=%FF", b"From=nonsense", b"&".join([b"a=b"] * 256)],
    ids=lambda query: query[:40].decode(),
)
def test_a_parameter_that_nothing_reads_is_refused(gateway: GatewayThread, query: bytes) -> None:
    answer = get_answer(gateway, build_request(b"/events/orders?" + query))
    assert answer.status == 400 and b"nothing reads" in answer.body


def test_a_query_of_too_many_parameters_is_refused_unread(gateway: GatewayThread) -> None:
    answer = get_answer(gateway, build_request(b"/events/orders?" + b"&".join([b"a=b"] * 257)))
    assert answer.status == 400 and b"more than 256 parameters" in answer.body


# Methods and paths

METHODS = ["POST", "PUT", "DELETE", "PATCH", "TRACE", "QUERY", "PROPFIND", "SUBSCRIBE"]


@pytest.mark.parametrize("path", ["/events/orders", "/health/live"])
@pytest.mark.parametrize("method", METHODS)
def test_a_method_of_no_use_here_is_refused(gateway: GatewayThread, method: str, path: str) -> None:
    answer = get_answer(gateway, build_request(path, b"X-Secret: mirror", method=method))
    assert answer.problem["status"] == 405
    assert "GET" in answer.headers["allow"]
    assert b"mirror" not in answer.body  # TRACE


def test_options_is_answered_without_a_preflight(gateway: GatewayThread) -> None:
    answer = get_answer(gateway, build_request("/events/orders", method="OPTIONS"))
    assert (answer.status, answer.body) == (204, b"")
    assert get_answer(gateway, build_request("*", method="OPTIONS")).status == 204


PATHS = b"""
    /nowhere /events /events/ /events/orders/ /events/unknown //events/orders /events//orders
    /./events/orders /events/../events/orders /events/%2e%2e/events/orders
    /../../../../etc/passwd /..%2f..%2fetc%2fpasswd /events/orders%00 /events%2Forders
    /events%5Corders /EVENTS/orders /events/orders;a=b /events/orders/%FF%FE
    /events/orders/%C0%AF /events/orders/%ED%A0%80 /% /%zz /%u0041 /any/unknown
    /any/__consumer_offsets /any/.. /any/%00 /any/%FF /any/%F0%9F%92%A9 /any/orders,other
    /any/${params.topic} /health/live/ /health/%6Cive/x
""".split()
PATHS += [
    b"/events\\orders",
    b"/" + b"a" * 60_000,
    b"/" * 60_000,
    b"/" + b"%2F" * 20_000,
    b"/any/" + b"a" * 250,
    b"/any/" + b"a" * 60_000,
]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:40].decode())
def test_a_path_to_nowhere_is_not_found(gateway: GatewayThread, path: bytes) -> None:
    answer = get_answer(gateway, build_request(path))
    assert answer.problem["status"] == 404
    assert b"root:" not in answer.body
    assert get_answer(gateway, build_request(path, *EVENT_SOURCE)).status == 404


@pytest.mark.parametrize("key", [b"%00", b"a%2Fb", b"%0A%0D", b"..", b"%", b"a" * 60_000])
def test_any_text_may_be_the_key_in_a_path(gateway: GatewayThread, key: bytes) -> None:
    assert get_first_event(gateway, build_request(b"/events/orders/" + key)) == ["begin"]


# Requests that are none


HEADS = list({status: case for case, (status, _) in BAD_HEADS.items()}.values())
"""One of each status: web/http/test_transport.py has all of them."""


@pytest.mark.parametrize("case", HEADS)
def test_a_bad_head_is_refused(gateway: GatewayThread, case: str) -> None:
    status, request = BAD_HEADS[case]
    assert send_request(gateway.port, request).problem["status"] == status


@pytest.mark.parametrize("case", ["body too large", "chunk of -5"])
def test_a_bad_body_ends_the_connection(gateway: GatewayThread, case: str) -> None:
    status, request = BAD_BODIES[case]
    with RawConnection(gateway.port) as wire:
        wire.send_bytes(request)
        assert wire.read_response().problem["status"] in (
            404,
            status,
        )  # 404: answered before its body
        if wire.send_bytes(build_request("/health/live")):
            wire.read_close()


# Time


@pytest.mark.night
def test_what_is_not_said_to_its_end_in_ten_seconds_is_refused(gateway: GatewayThread) -> None:
    """All at once, for each takes its ten seconds; some send a byte now and then."""
    head = build_request("/events/orders")[:-4]
    post = build_request("/events/orders", b"Content-Length: 5", method="POST")
    told = {b"G": 408, b"GET / HTTP/1.1\r\nHo": 408, head: 408, head + b"\r\n\r": 408, b"PRI": 408}
    with ExitStack() as stack:
        silent = [(stack.enter_context(RawConnection(gateway.port)), sent) for sent in told]
        drops = [stack.enter_context(RawConnection(gateway.port)) for _ in range(5)]
        idle = [stack.enter_context(RawConnection(gateway.port)) for _ in range(5)]
        answered = stack.enter_context(RawConnection(gateway.port))
        answered.send_bytes(post)
        assert answered.read_response().status == 405
        for wire, sent in silent:
            wire.send_bytes(sent)
        for wire in drops:
            wire.send_bytes(head)
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while all([wire.send_bytes(b"\r\nX: y") for wire in drops]):
            assert time.monotonic() < deadline, "slow heads are listened to for ever"
            time.sleep(0.25)
        for wire, sent in silent:
            assert wire.read_last_response().problem["status"] == told[sent]
        for wire in drops:
            assert wire.read_response().status == 408
        for wire in (*idle, answered):
            wire.read_close()


def test_a_stream_with_a_request_body_that_never_comes_harms_itself_only(gateway):
    with RawConnection(gateway.port) as wire:
        stream = SseStream(wire, build_request("/events/orders", b"Content-Length: 5"))
        assert stream.next_event().event_type == "begin"


# Many


def test_two_hundred_connections_that_ask_nothing(gateway, calm):
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(RawConnection(gateway.port))
        block_until(lambda: gateway.connection_count >= 200, "they are not accepted")
        calm.check_unharmed()
        assert get_first_event(gateway, build_request("/events/orders")) == ["begin"]
    block_until(lambda: gateway.connection_count <= 10, "they stay open")


def test_two_hundred_streams_cut_by_a_reset_leave_nothing(gateway: GatewayThread) -> None:
    for n in range(200):
        with RawConnection(gateway.port) as wire:
            wire.send_bytes(build_request("/events/orders"))
            if n % 2:
                wire.read_head()
            reset = struct.pack("ii", 1, 0)
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    block_until(lambda: gateway.connection_count <= 10, "they stay open")


@pytest.mark.needs("process")
def test_clients_that_never_read_take_bounded_memory(process, produce):
    with ExitStack() as stack:
        stuck: list[SseStream] = []
        for _ in range(20):
            wire = stack.enter_context(RawConnection(process.port, receive_buffer=4096))
            stuck.append(SseStream(wire, build_request("/events/busy")))
            assert stuck[-1].next_event().event_type == "begin"
        reads = SseStream(
            stack.enter_context(RawConnection(process.port)), build_request("/events/busy")
        )
        assert reads.next_event().event_type == "begin"
        before = process.memory_bytes
        for _ in range(20):
            produce("busy", *[b"x" * 20_000] * 50)  # 20 MB in all, 400 MB to write
            assert [reads.next_record().event_type for _ in range(50)] == ["message"] * 50
        assert process.memory_bytes < before + 128 * MIB
        for stream in stuck:
            assert stream.next_record().event_type in ("message", "gap")


# Records


@pytest.fixture(scope="module")
def odd(gateway: GatewayThread) -> Iterator[dict[str, SseStream]]:
    """Streams of one topic in every format, open over all records."""
    with ExitStack() as stack:
        made: dict[str, SseStream] = {}
        for path in ("/events/odd", "/records/odd", "/cloud/odd"):
            wire = stack.enter_context(RawConnection(gateway.port))
            made[path] = SseStream(wire, build_request(path))
            assert made[path].next_event().event_type == "begin"
        yield made


NOT_TEXT = {
    "byte 255": b"\xff",
    "cut UTF-8": "é".encode()[:1],
    "surrogate": b"\xed\xa0\x80",
    "overlong": b"\xc0\xaf",
    "text with one bad byte": b"x" * 10_000 + b"\x80",
    "UTF-16": "text".encode("utf-16"),
    "past Unicode": b"\xf4\x90\x80\x80",
}


@pytest.mark.parametrize("case", NOT_TEXT)
def test_a_value_that_is_no_text_is_an_error_where_text_is_promised(odd, produce, case):
    produce("odd", NOT_TEXT[case])
    error = odd["/events/odd"].next_record()
    assert (error.event_type, error.parse_json()["code"]) == ("error", "value-not-text")
    exact = odd["/records/odd"].next_record()
    assert exact.event_type == "message" and "base64" in exact.parse_json()["value"]
    assert "data_base64" in odd["/cloud/odd"].next_record().parse_json()
    produce("odd", b"next")
    assert {stream.next_record().event_type for stream in odd.values()} == {"message"}


TEXTS = {
    "an event within": b'a\n\nevent: end\ndata: {"reason":"evil"}\n\nid: evil\n\n',
    "an event within, by CR": b"a\r\revent: end\rdata: {}\r\rid: evil\rretry: 1\r\r",
    "an event within, by CRLF": b"a\r\n\r\nevent: end\r\ndata: {}\r\n\r\n",
    "line ends only": b"\n\r\n\r",
    "empty": b"",
    "NUL": b"a\0b",
    "control bytes": bytes(range(1, 32)),
    "byte order mark": "\ufeffa".encode(),
    "other line ends": "a\u2028b\u2029c\u0085d\x0be".encode(),
    "field names": b"event: x\nid: x\nretry: 1\ndata: x\n: x\ndata",
    "spaces": b"  a  \n  b  ",
    "NaN": b"NaN",
    "deep JSON": b"[" * 100_000 + b"]" * 100_000,
    "2 MB in one line": b"y" * 2 * MIB,
    "500,000 lines": b"\n" * 500_000,
}


@pytest.mark.parametrize("case", TEXTS)
def test_text_of_any_kind_is_one_event(odd, produce, case):
    value = TEXTS[case]
    produce("odd", value)
    plain = odd["/events/odd"].next_record()
    folded = value.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert (plain.event_type, plain.raw_data) == ("message", folded)
    assert plain.last_event_id.startswith("1")
    exact = odd["/records/odd"].next_record()
    assert exact.parse_json()["value"].encode() == value
    assert odd["/cloud/odd"].next_record().event_type == "message"


KEYS = {
    "byte 255": b"\xff\xfe",
    "NUL": b"\0",
    "line ends": b"a\r\nevent: end\r\n\r\n",
    "empty": b"",
    "1 MB": b"k" * MIB,
    "none": None,
}


@pytest.mark.parametrize("value", [b"v", None], ids=["value", "tombstone"])
@pytest.mark.parametrize("case", KEYS)
def test_keys_of_any_kind_are_one_event(odd, produce, case, value):
    produce("odd", value, key=KEYS[case])
    type_ = "delete" if value is None else "message"
    assert [stream.next_record().event_type for stream in odd.values()] == [type_] * 3


def test_headers_of_any_kind_are_told(odd, produce):
    pairs = [("", b""), ("a\r\n\r\nb", b"\xff"), ("a", None), ("a", b"twice"), ("ce_id", b"\0")]
    pairs += [("ce_specversion", b"1.0"), ("ce_time", b"never"), ("content-type", b"a/b; =\xff")]
    produce("odd", b"v", headers=pairs)
    assert [stream.next_record().event_type for stream in odd.values()] == ["message"] * 3


def test_a_record_larger_than_any_fetch_goes_through(odd, produce):
    value = json.dumps({"a": "b" * 4 * MIB}).encode()
    produce("odd", value)
    assert odd["/events/odd"].next_record().raw_data == value
    assert odd["/records/odd"].next_record().parse_json()["value"].encode() == value
    assert odd["/cloud/odd"].next_record().parse_json()["type"]
    produce("odd", b"next")
    assert odd["/events/odd"].next_record().raw_data == b"next"
    assert [odd[path].next_record().event_type for path in ("/records/odd", "/cloud/odd")] == [
        "message"
    ] * 2
