"""What each line says, and that a line is what every reader takes for one."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ndjson_parser import NdjsonParser

from gateway.core.channel.channel import Channel
from gateway.core.channel.chunk_ring import ChannelEvent
from gateway.core.channel.tail import Tail
from gateway.core.client.terms import EndReason
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import (
    Entry,
    Fault,
    Gap,
    GapReason,
    Ready,
    Record,
    Skip,
    TopicPartition,
)
from gateway.core.token.resume_token import seal_token
from gateway.formats import create_format
from gateway.hub.wires.ndjson import NdjsonWire
from gateway.hub.wires.wire import Beginning

TP = TopicPartition("orders", 7)
WHERE = {"topic": "orders", "partition": 7}
VIEW = b"view0"
ID = seal_token(b"text", VIEW).decode()
PLAIN, MARKED = NdjsonWire(), NdjsonWire(positions=True)


def record(value: bytes | None, offset: int = 4) -> Record:
    return Record(TP, offset, 0, 0, b"ada", value)


def encode_entries(
    wire: NdjsonWire, *entries: Entry, format: str = "value", **options: Any
) -> bytes:
    encoder = wire.create_encoder(create_format(format, **options))
    heads = [encoder.encode_entry(entry) for entry in entries]
    return encoder.encode_events(
        [ChannelEvent(TP, head, b"text") for head in heads if head is not None], VIEW
    )


def parse_entry(entry: Entry, wire: NdjsonWire = MARKED, **options: Any) -> Any:
    (line,) = encode_entries(wire, entry, **options).splitlines()
    return json.loads(line)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (b'{"n": 1}', b'{"n": 1}'),
        (b'{"total": 1.50, "id": 12345678901234567890123}', None),
        (b'{\r\n  "n": 1\n}', b'{    "n": 1 }'),
        (b"17", b"17"),
        (b"paid", b'"paid"'),
        (b"two\nlines\r", rb'"two\nlines\r"'),
        (b"", b'""'),
        (b"NaN", b'"NaN"'),
        (rb'"\ud800"', None),
        ("\ufeff{}".encode(), b"{}"),
        ('{"a":"\u2028\u2029\x85"}'.encode(), rb'{"a":"\u2028\u2029\u0085"}'),
        ("a\u2028b".encode(), rb'"a\u2028b"'),
    ],
)
def test_a_value_is_json_as_it_is_or_else_a_string_on_one_line(value: bytes, line: bytes | None):
    line = value if line is None else line
    assert encode_entries(PLAIN, record(value)) == line + b"\n"
    marked = b'{"@record":%b,"@position":"%b"}\n' % (line, ID.encode())
    assert encode_entries(MARKED, record(value)) == marked


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda s: s.encode(errors="replace")))
def test_every_value_of_every_format_is_one_line_of_strict_json_for_any_reader(value: bytes):
    for format in ("value", "envelope", "cloudevents"):
        for wire in (PLAIN, MARKED):
            line = encode_entries(wire, record(value), format=format).decode()
            assert line.splitlines() == [line[:-1]]
            orjson.loads(line)


def test_a_value_that_is_not_text_is_an_error_line_or_base64_as_the_route_says():
    error = parse_entry(record(b"\xff"))
    assert error["@error"]["code"] == "value-not-text"
    assert (error["@error"]["offset"], error["@position"]) == (4, ID)
    assert parse_entry(record(b"\xff"), binary="base64") == {"@record": "/w==", "@position": ID}
    assert encode_entries(PLAIN, record(b"\xd7m\xf8"), binary="base64") == b'"1234"\n'


def test_a_tombstone_is_a_delete_of_its_key():
    assert parse_entry(record(None)) == {"@delete": {"key": "ada"}, "@position": ID}
    assert parse_entry(record(None), PLAIN) == {"@delete": {"key": "ada"}}
    assert parse_entry(record(None), format="envelope")["@delete"]["offset"] == 4


def test_a_gap_says_its_bounds_and_with_positions_where_it_ends():
    gap = {**WHERE, "from": 5, "to": 9, "reason": "retention"}
    entry = Gap(TP, 5, 9, 0, GapReason.RETENTION)
    assert parse_entry(entry, PLAIN) == {"@gap": gap}
    assert parse_entry(entry) == {"@gap": gap, "@position": ID}


def test_what_only_tells_where_the_stream_stands_is_for_those_who_ask_for_positions():
    ready = Ready(TP, 5, 5, 0)
    assert parse_entry(ready) == {
        "@ready": {**WHERE, "offset": 5, "resolved": "exact"}, "@position": ID
    }  # fmt: skip
    assert encode_entries(PLAIN, ready, Skip(TP, 5, 9, 0)) == b""
    assert PLAIN.encode_begin(Beginning({"topics": ["orders"]}, b"TOKEN")) == b""
    begin = {"topics": ["orders"], "position": "TOKEN"}
    assert json.loads(MARKED.encode_begin(Beginning({"topics": ["orders"]}, b"TOKEN"))) == {
        "@begin": begin
    }


def test_a_fault_is_an_error_line():
    assert (
        parse_entry(Fault(TP, 5, 5, 0, "access-denied"), PLAIN)["@error"]["code"] == "access-denied"
    )


def test_a_position_that_was_refused_is_told_first():
    (gap,) = PLAIN.encode_begin(Beginning({}, b"TOKEN", position_refused=True)).splitlines()
    assert json.loads(gap)["@gap"]["reason"] == "position-refused"
    begin, gap = MARKED.encode_begin(Beginning({}, b"TOKEN", position_refused=True)).splitlines()
    assert json.loads(begin) == {"@begin": {"position": "TOKEN"}} and b"position-refused" in gap


@pytest.mark.parametrize("wire", [PLAIN, MARKED])
def test_the_last_line_says_why_and_where_to_go_on(wire: NdjsonWire):
    end = {"@end": {"reason": "drain", "position": "TOKEN"}}
    assert json.loads(wire.encode_end(EndReason.DRAIN, b"TOKEN")) == end
    assert wire.encode_heartbeat() == b"\n"


def test_where_ids_come_in_batches_only_some_lines_have_a_position():
    encoder = MARKED.create_encoder(create_format("value"))
    heads = [encoder.encode_entry(record(b"%d" % n)) or b"" for n in range(2)]
    events = [ChannelEvent(TP, heads[0], None), ChannelEvent(TP, heads[1], b"text")]
    first, second = encoder.encode_events(events, VIEW).splitlines()
    assert json.loads(first) == {"@record": 0}
    assert json.loads(second) == {"@record": 1, "@position": ID}


@pytest.mark.parametrize(
    ("wire", "lines"), [(PLAIN, None), (MARKED, [("position", "{}")])], ids=["plain", "positions"]
)
def test_idle_moves_of_the_position_are_told_with_positions_only(wire: NdjsonWire, lines: Any):
    """A chunk of nothing would wake idle clients again and again, before their heartbeat."""
    log = PartitionLog(TP, 1 << 20, 60.0)
    log.open(0, 0)
    tail = Tail("cluster", [log], {"orders": "id"})
    channel = Channel(tail, VIEW, wire.create_encoder(create_format("value")), lambda record: False)
    log.append(record(b"x", 0), 0.0)
    assert channel.publish(tail.apply_entries([record(b"x", 0)], 0)) is None
    chunk = channel.announce_position()
    heard = chunk and [(each.event_type, each.data) for each in NdjsonParser().feed(chunk.data)]
    assert heard == lines


@pytest.mark.parametrize(
    ("wire", "entries", "tells"),
    [
        (PLAIN, [], False),
        (PLAIN, [record(b'{"@ready": 1}')], True),
        (PLAIN, [Gap(TP, 5, 9, 0, GapReason.RETENTION)], True),
        (MARKED, [], False),
        (MARKED, [Ready(TP, 5, 5, 0)], False),
        (MARKED, [Ready(TP, 5, 5, 0), record(b'{"@ready": 1}')], True),
        (MARKED, [record(None)], True),
    ],
)
def test_what_makes_a_page_worth_sending(wire: NdjsonWire, entries: list[Entry], tells: bool):
    aside = (
        b"" if wire is PLAIN else wire.encode_begin(Beginning({}, b"TOKEN")) + b'{"@position":""}\n'
    )
    assert wire.has_content(aside + encode_entries(wire, *entries)) is tells
    assert not wire.has_content(wire.encode_heartbeat())
