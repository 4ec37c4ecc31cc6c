"""`ready` and `error` of many partitions are one event on every wire."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sse import parse_stream

from gateway.core.channel.chunk_ring import ChannelEvent
from gateway.core.log.record import Entry, Fault, Gap, GapReason, Ready, Record, TopicPartition
from gateway.core.token.resume_token import seal_token
from gateway.formats import create_format
from gateway.hub.wires.control_events import MAX_PARTITIONS
from gateway.hub.wires.ndjson import NdjsonWire
from gateway.hub.wires.sse import SseWire
from gateway.hub.wires.websocket import WebSocketWire
from gateway.hub.wires.wire import Wire
from gateway.hub.wires.wrapping import ChunkedWire, GzipWire
from gateway.wire.websocket import iter_texts

VIEW = b"view0"
VALUE = create_format("value")

WireEvents = list[tuple[str, Any, str | None]]
"""Name, data and id of each event."""


def parse_sse(data: bytes) -> WireEvents:
    ids = set[str]()
    found: WireEvents = []
    for event in parse_stream(data):  # which has an event keep the id of the one before
        fresh = event.last_event_id not in ids
        ids.add(event.last_event_id)
        body = event.data if event.event_type == "message" else json.loads(event.data)
        found.append((event.event_type, body, event.last_event_id if fresh else None))
    return found


def parse_lines(data: bytes) -> WireEvents:
    found: WireEvents = []
    for line in data.splitlines():
        members = json.loads(line)
        position = members.pop("@position", None)
        ((name, body),) = members.items()
        found.append(("message" if name == "@record" else name[1:], body, position))
    return found


def parse_messages(data: bytes) -> WireEvents:
    found: WireEvents = []
    for text in iter_texts(data):
        members = json.loads(text)
        name, position = members.pop("type"), members.pop("position", None)
        if name == "records":
            found.append(("message", *members["records"], position))
        else:
            found.append((name, members, position))
    return found


WIRES = {
    "sse": (SseWire(), parse_sse),
    "ndjson": (NdjsonWire(positions=True), parse_lines),
    "websocket": (WebSocketWire(), parse_messages),
}
EVERY = pytest.mark.parametrize("wire", WIRES)


def partition(number: int, topic: str = "orders") -> TopicPartition:
    return TopicPartition(topic, number)


def ready(number: int, topic: str = "orders", approximate: bool = False) -> Ready:
    return Ready(partition(number, topic), 10 + number, 10 + number, 0, approximate)


def fault(number: int, cause: str = "access-denied") -> Fault:
    return Fault(partition(number), 5, 5, 0, cause)


def encode_entries(wire: Wire, entries: Iterable[Entry]) -> bytes:
    """Each with an id of its own, the number of its place."""
    encoder = wire.create_encoder(VALUE)
    events = [
        ChannelEvent(None, head, b"%d" % n)
        for n, entry in enumerate(entries)
        if (head := encoder.encode_entry(entry)) is not None
    ]
    return encoder.encode_events(events, VIEW)


def decode_entries(wire: str, *entries: Entry) -> WireEvents:
    made, read = WIRES[wire]
    return read(encode_entries(made, entries))


def build_id(place: int) -> str:
    return seal_token(b"%d" % place, VIEW).decode()


@EVERY
def test_many_that_are_ready_are_one_event_with_the_id_of_the_last(wire: str):
    entries = [ready(0), ready(1, "other"), ready(7), ready(2, approximate=True)]
    data = {
        "topics": [
            {"topic": "orders", "resolved": "exact", "partitions": [0, 7], "offsets": [10, 17]},
            {"topic": "other", "resolved": "exact", "partitions": [1], "offsets": [11]},
            {"topic": "orders", "resolved": "approximate", "partitions": [2], "offsets": [12]},
        ]
    }
    assert decode_entries(wire, *entries) == [("partitions-ready", data, build_id(3))]


@EVERY
def test_many_that_cannot_be_read_are_one_event_by_topic_and_cause(wire: str):
    entries = [fault(0), fault(1, "unknown-topic"), fault(2)]
    data = {
        "topics": [
            {"topic": "orders", "code": "access-denied", "partitions": [0, 2]},
            {"topic": "orders", "code": "unknown-topic", "partitions": [1]},
        ]
    }
    assert decode_entries(wire, *entries) == [("partitions-error", data, build_id(2))]


@EVERY
def test_one_alone_keeps_its_event(wire: str):
    (first, second) = decode_entries(wire, ready(3), fault(4))
    assert first == (
        "ready",
        {"topic": "orders", "partition": 3, "offset": 13, "resolved": "exact"},
        build_id(0),
    )
    assert (second[0], second[1]["partition"], second[2]) == ("error", 4, build_id(1))


@EVERY
def test_what_stands_between_keeps_its_place(wire: str):
    record = Record(partition(0), 4, 0, 0, b"ada", b"1")
    gap = Gap(partition(1), 5, 9, 0, GapReason.RETENTION)
    entries = [ready(0), ready(1), record, ready(2), ready(3), fault(2), fault(3), gap, ready(4)]
    found = decode_entries(wire, *entries)
    names = ["partitions-ready", "message", "partitions-ready", "partitions-error", "gap", "ready"]
    assert [name for name, _, _ in found] == names
    assert [position for _, _, position in found] == [build_id(n) for n in (1, 2, 4, 6, 7, 8)]


@EVERY
def test_one_event_is_of_so_many_partitions_at_most(wire: str):
    every = decode_entries(wire, *map(ready, range(2 * MAX_PARTITIONS + 1)))
    assert [name for name, _, _ in every] == ["partitions-ready", "partitions-ready", "ready"]
    sizes = [len(data["topics"][0]["partitions"]) for _, data, _ in every[:2]]
    assert sizes == [MAX_PARTITIONS, MAX_PARTITIONS]


@EVERY
def test_the_last_fault_of_each_partition_wins(wire: str):
    """Groups by cause named both partitions twice, and who read them in order ended at the wrong
    cause of partition 1."""
    causes = [(0, "access-denied"), (1, "unknown-topic"), (0, "unknown-topic")]
    entries = [fault(*each) for each in [*causes, (1, "access-denied")]]
    data = {
        "topics": [
            {"topic": "orders", "code": "unknown-topic", "partitions": [0]},
            {"topic": "orders", "code": "access-denied", "partitions": [1]},
        ]
    }
    assert decode_entries(wire, *entries) == [("partitions-error", data, build_id(3))]


@EVERY
def test_one_partition_that_is_told_twice_is_alone(wire: str):
    ((name, data, position),) = decode_entries(wire, fault(4), fault(4, "unknown-topic"))
    assert (name, data["code"], position) == ("error", "unknown-topic", build_id(1))


State = dict[tuple[str, int], tuple[Any, ...]]


def build_state(found: WireEvents) -> State:
    """Return what a client knows of each partition that reads events and their groups in order."""
    state: State = {}
    for name, data, _ in found:
        if name in ("ready", "error"):
            about = data.get("code"), data.get("resolved"), data.get("offset")
            state[data["topic"], data["partition"]] = about
        for group in data.get("topics", ()):
            offsets = group.get("offsets", [None] * len(group["partitions"]))
            for number, offset in zip(group["partitions"], offsets, strict=True):
                about = group.get("code"), group.get("resolved"), offset
                state[group["topic"], number] = about
    return state


partitions = st.builds(partition, st.integers(0, 3), st.sampled_from(["orders", "other"]))
runs = st.lists(
    st.builds(Ready, partitions, st.just(1), st.integers(1, 9), st.just(0), st.booleans())
    | st.builds(Fault, partitions, *[st.just(1)] * 3, st.sampled_from(["denied", "unknown"])),
    max_size=20,
)


@EVERY
@given(entries=runs)
def test_each_partition_ends_at_the_state_that_single_events_tell(wire: str, entries: list[Entry]):
    alone = [event for entry in entries for event in decode_entries(wire, entry)]
    grouped = decode_entries(wire, *entries)
    assert build_state(grouped) == build_state(alone)
    assert [each[2] for each in grouped[-1:]] == [build_id(len(entries) - 1) for _ in alone[-1:]]


def test_ids_that_are_not_sent_with_each_event_are_the_last_there_is():
    encoder = SseWire().create_encoder(VALUE)
    heads = [encoder.encode_entry(ready(n)) or b"" for n in range(3)]
    texts = [None, b"1", None]
    events = [ChannelEvent(None, head, text) for head, text in zip(heads, texts, strict=True)]
    ((_, _, position),) = parse_sse(encoder.encode_events(events, VIEW))
    assert position == build_id(1)


def test_lines_without_positions_tell_errors_alone():
    entries = [ready(0), ready(1), fault(0), fault(1)]
    (line,) = encode_entries(NdjsonWire(), entries).splitlines()
    assert list(json.loads(line)) == ["@partitions-error"]


def test_that_partitions_are_ready_is_nothing_that_a_page_waits_for():
    wire = NdjsonWire(positions=True)
    assert not wire.has_content(encode_entries(wire, [ready(0), ready(1)]))
    assert wire.has_content(encode_entries(wire, [fault(0), fault(1)]))


@pytest.mark.parametrize("around", [ChunkedWire, GzipWire])
def test_wires_around_others_group_as_well(around: Any):
    assert len(encode_entries(around(SseWire()), map(ready, range(100)))) < 2_000
