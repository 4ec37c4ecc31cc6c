"""What each line says, and that a line is what every reader takes for one."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.lines import LineParser

from gateway.core.channel.channel import Channel, Event
from gateway.core.log.partition_log import Log
from gateway.core.log.record import Entry, Fault, Gap, Ready, Reason, Record, Skip, TopicPartition
from gateway.core.log.tail import Tail
from gateway.core.token.resume_token import seal
from gateway.formats import format_for
from gateway.hub.wires.lines import Ndjson

TP = TopicPartition("orders", 7)
WHERE = {"topic": "orders", "partition": 7}
VIEW = b"view0"
ID = seal(b"text", VIEW).decode()
PLAIN, MARKED = Ndjson(), Ndjson(positions=True)


def record(value: bytes | None, offset: int = 4) -> Record:
    return Record(TP, offset, 0, 0, b"ada", value)


def rendered(wire: Ndjson, *entries: Entry, format: str = "value", **options: Any) -> bytes:
    encoder = wire.encoder(format_for(format, **options))
    heads = [encoder.head(entry) for entry in entries]
    return encoder.render([Event(TP, head, b"text") for head in heads if head is not None], VIEW)


def told(entry: Entry, wire: Ndjson = MARKED, **options: Any) -> Any:
    (line,) = rendered(wire, entry, **options).splitlines()
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
        (rb'"\ud800"', rb'"\"\\ud800\""'),
        ("\ufeff{}".encode(), '"\ufeff{}"'.encode()),
        ('{"a":"\u2028\u2029\x85"}'.encode(), rb'{"a":"\u2028\u2029\u0085"}'),
        ("a\u2028b".encode(), rb'"a\u2028b"'),
    ],
)
def test_a_value_is_json_as_it_is_or_else_a_string_on_one_line(value: bytes, line: bytes | None):
    line = value if line is None else line
    assert rendered(PLAIN, record(value)) == line + b"\n"
    marked = b'{"@record":%b,"@position":"%b"}\n' % (line, ID.encode())
    assert rendered(MARKED, record(value)) == marked


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda s: s.encode(errors="replace")))
def test_every_value_of_every_format_is_one_line_of_strict_json_for_any_reader(value: bytes):
    for format in ("value", "envelope", "cloudevents"):
        for wire in (PLAIN, MARKED):
            line = rendered(wire, record(value), format=format).decode()
            assert line.splitlines() == [line[:-1]]
            orjson.loads(line)


def test_a_value_that_is_not_text_is_an_error_line_or_base64_as_the_route_says():
    error = told(record(b"\xff"))
    assert error["@error"]["code"] == "value-not-text"
    assert (error["@error"]["offset"], error["@position"]) == (4, ID)
    assert told(record(b"\xff"), binary="base64") == {"@record": "/w==", "@position": ID}
    assert rendered(PLAIN, record(b"\xd7m\xf8"), binary="base64") == b'"1234"\n'


def test_a_tombstone_is_a_delete_of_its_key():
    assert told(record(None)) == {"@delete": {"key": "ada"}, "@position": ID}
    assert told(record(None), PLAIN) == {"@delete": {"key": "ada"}}
    assert told(record(None), format="envelope")["@delete"]["offset"] == 4


def test_a_gap_says_its_bounds_and_with_positions_where_it_ends():
    gap = {**WHERE, "from": 5, "to": 9, "reason": "retention"}
    entry = Gap(TP, 5, 9, 0, Reason.RETENTION)
    assert told(entry, PLAIN) == {"@gap": gap}
    assert told(entry) == {"@gap": gap, "@position": ID}


def test_what_only_tells_where_the_stream_stands_is_for_those_who_ask_for_positions():
    ready = Ready(TP, 5, 5, 0)
    assert told(ready) == {
        "@ready": {**WHERE, "offset": 5, "resolved": "exact"}, "@position": ID
    }  # fmt: skip
    assert rendered(PLAIN, ready, Skip(TP, 5, 9, 0)) == b""
    assert PLAIN.begin({"topics": ["orders"]}, b"TOKEN", refused=False) == b""
    begin = {"topics": ["orders"], "position": "TOKEN"}
    assert json.loads(MARKED.begin({"topics": ["orders"]}, b"TOKEN", refused=False)) == {
        "@begin": begin
    }


def test_a_fault_is_an_error_line():
    assert told(Fault(TP, 5, 5, 0, "access-denied"), PLAIN)["@error"]["code"] == "access-denied"


def test_a_position_that_was_refused_is_told_first():
    (gap,) = PLAIN.begin({}, b"TOKEN", refused=True).splitlines()
    assert json.loads(gap)["@gap"]["reason"] == "position-refused"
    begin, gap = MARKED.begin({}, b"TOKEN", refused=True).splitlines()
    assert json.loads(begin) == {"@begin": {"position": "TOKEN"}} and b"position-refused" in gap


@pytest.mark.parametrize("wire", [PLAIN, MARKED])
def test_the_last_line_says_why_and_where_to_go_on(wire: Ndjson):
    end = {"@end": {"reason": "drain", "position": "TOKEN"}}
    assert json.loads(wire.end("drain", b"TOKEN")) == end
    assert wire.heartbeat() == b"\n"


def test_where_ids_come_in_batches_only_some_lines_have_a_position():
    encoder = MARKED.encoder(format_for("value"))
    heads = [encoder.head(record(b"%d" % n)) or b"" for n in range(2)]
    events = [Event(TP, heads[0], None), Event(TP, heads[1], b"text")]
    first, second = encoder.render(events, VIEW).splitlines()
    assert json.loads(first) == {"@record": 0}
    assert json.loads(second) == {"@record": 1, "@position": ID}


@pytest.mark.parametrize(
    ("wire", "lines"), [(PLAIN, None), (MARKED, [("position", "{}")])], ids=["plain", "positions"]
)
def test_idle_moves_of_the_position_are_told_with_positions_only(wire: Ndjson, lines: Any):
    """A chunk of nothing would wake idle clients again and again, before their heartbeat."""
    log = Log(TP, 1 << 20, 60.0)
    log.open(0, 0)
    tail = Tail("cluster", [log], {"orders": "id"})
    channel = Channel(tail, VIEW, wire.encoder(format_for("value")), lambda record: False)
    log.append(record(b"x", 0), 0.0)
    assert channel.publish(tail.turn([record(b"x", 0)], 0)) is None
    chunk = channel.announce()
    heard = chunk and [(each.type, each.data) for each in LineParser().feed(chunk.data)]
    assert heard == lines


@pytest.mark.parametrize(
    ("wire", "entries", "tells"),
    [
        (PLAIN, [], False),
        (PLAIN, [record(b'{"@ready": 1}')], True),
        (PLAIN, [Gap(TP, 5, 9, 0, Reason.RETENTION)], True),
        (MARKED, [], False),
        (MARKED, [Ready(TP, 5, 5, 0)], False),
        (MARKED, [Ready(TP, 5, 5, 0), record(b'{"@ready": 1}')], True),
        (MARKED, [record(None)], True),
    ],
)
def test_what_makes_a_page_worth_sending(wire: Ndjson, entries: list[Entry], tells: bool):
    aside = (
        b"" if wire is PLAIN else wire.begin({}, b"TOKEN", refused=False) + b'{"@position":""}\n'
    )
    assert wire.tells(aside + rendered(wire, *entries)) is tells
    assert not wire.tells(wire.heartbeat())
