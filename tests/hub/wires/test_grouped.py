"""`ready` and `error` of many partitions are one event on a grouped wire, and no other."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sse import parse

from gateway.core.channel.channel import Event
from gateway.core.log.record import Entry, Fault, Gap, Ready, Reason, Record, TopicPartition
from gateway.core.token.resume_token import seal
from gateway.formats import format_for
from gateway.hub.wires.chunked import Framed
from gateway.hub.wires.grouped import MAX_PARTITIONS
from gateway.hub.wires.gzip import Gzip
from gateway.hub.wires.lines import Ndjson
from gateway.hub.wires.sse import Sse
from gateway.hub.wires.websocket import WebSocket
from gateway.hub.wires.wire import Wire
from gateway.wire.websocket import messages

VIEW = b"view0"
VALUE = format_for("value")

Told = list[tuple[str, Any, str | None]]
"""Name, data and id of each event."""


def of_sse(data: bytes) -> Told:
    ids = set[str]()
    found: Told = []
    for event in parse(data):  # which has an event keep the id of the one before
        fresh = event.last_event_id not in ids
        ids.add(event.last_event_id)
        body = event.data if event.type == "message" else json.loads(event.data)
        found.append((event.type, body, event.last_event_id if fresh else None))
    return found


def of_lines(data: bytes) -> Told:
    found: Told = []
    for line in data.splitlines():
        members = json.loads(line)
        position = members.pop("@position", None)
        ((name, body),) = members.items()
        found.append(("message" if name == "@record" else name[1:], body, position))
    return found


def of_messages(data: bytes) -> Told:
    found: Told = []
    for text in messages(data):
        members = json.loads(text)
        name, position = members.pop("type"), members.pop("position", None)
        if name == "records":
            found.append(("message", *members["records"], position))
        else:
            found.append((name, members, position))
    return found


WIRES = {
    "sse": (Sse(grouped=True), of_sse),
    "ndjson": (Ndjson(positions=True, grouped=True), of_lines),
    "websocket": (WebSocket(grouped=True), of_messages),
}
EVERY = pytest.mark.parametrize("wire", WIRES)


def partition(number: int, topic: str = "orders") -> TopicPartition:
    return TopicPartition(topic, number)


def ready(number: int, topic: str = "orders", approximate: bool = False) -> Ready:
    return Ready(partition(number, topic), 10 + number, 10 + number, 0, approximate)


def fault(number: int, cause: str = "access-denied") -> Fault:
    return Fault(partition(number), 5, 5, 0, cause)


def rendered(wire: Wire, entries: Iterable[Entry]) -> bytes:
    """Each with an id of its own, the number of its place."""
    encoder = wire.encoder(VALUE)
    events = [
        Event(None, head, b"%d" % n)
        for n, entry in enumerate(entries)
        if (head := encoder.head(entry)) is not None
    ]
    return encoder.render(events, VIEW)


def told(wire: str, *entries: Entry) -> Told:
    made, read = WIRES[wire]
    return read(rendered(made, entries))


def id_of(place: int) -> str:
    return seal(b"%d" % place, VIEW).decode()


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
    assert told(wire, *entries) == [("partitions-ready", data, id_of(3))]


@EVERY
def test_many_that_cannot_be_read_are_one_event_by_topic_and_cause(wire: str):
    entries = [fault(0), fault(1, "unknown-topic"), fault(2)]
    data = {
        "topics": [
            {"topic": "orders", "code": "access-denied", "partitions": [0, 2]},
            {"topic": "orders", "code": "unknown-topic", "partitions": [1]},
        ]
    }
    assert told(wire, *entries) == [("partitions-error", data, id_of(2))]


@EVERY
def test_one_alone_is_as_on_any_wire(wire: str):
    (first, second) = told(wire, ready(3), fault(4))
    assert first == (
        "ready",
        {"topic": "orders", "partition": 3, "offset": 13, "resolved": "exact"},
        id_of(0),
    )
    assert (second[0], second[1]["partition"], second[2]) == ("error", 4, id_of(1))


@EVERY
def test_what_stands_between_keeps_its_place(wire: str):
    record = Record(partition(0), 4, 0, 0, b"ada", b"1")
    gap = Gap(partition(1), 5, 9, 0, Reason.RETENTION)
    entries = [ready(0), ready(1), record, ready(2), ready(3), fault(2), fault(3), gap, ready(4)]
    found = told(wire, *entries)
    names = ["partitions-ready", "message", "partitions-ready", "partitions-error", "gap", "ready"]
    assert [name for name, _, _ in found] == names
    assert [position for _, _, position in found] == [id_of(n) for n in (1, 2, 4, 6, 7, 8)]


@EVERY
def test_one_event_is_of_so_many_partitions_at_most(wire: str):
    every = told(wire, *map(ready, range(2 * MAX_PARTITIONS + 1)))
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
    assert told(wire, *entries) == [("partitions-error", data, id_of(3))]


@EVERY
def test_one_partition_that_is_told_twice_is_alone(wire: str):
    ((name, data, position),) = told(wire, fault(4), fault(4, "unknown-topic"))
    assert (name, data["code"], position) == ("error", "unknown-topic", id_of(1))


State = dict[tuple[str, int], tuple[Any, ...]]


def state_of(found: Told) -> State:
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
def test_grouped_or_not_each_partition_ends_at_the_same_state(wire: str, entries: list[Entry]):
    plain = {"sse": Sse(), "ndjson": Ndjson(positions=True), "websocket": WebSocket()}[wire]
    alone = WIRES[wire][1](rendered(plain, entries))
    grouped = told(wire, *entries)
    assert state_of(grouped) == state_of(alone)
    assert [each[2] for each in grouped[-1:]] == [each[2] for each in alone[-1:]]


def test_ids_that_are_not_sent_with_each_event_are_the_last_there_is():
    encoder = Sse(grouped=True).encoder(VALUE)
    heads = [encoder.head(ready(n)) or b"" for n in range(3)]
    texts = [None, b"1", None]
    events = [Event(None, head, text) for head, text in zip(heads, texts, strict=True)]
    ((_, _, position),) = of_sse(encoder.render(events, VIEW))
    assert position == id_of(1)


def test_lines_without_positions_tell_errors_alone():
    entries = [ready(0), ready(1), fault(0), fault(1)]
    (line,) = rendered(Ndjson(grouped=True), entries).splitlines()
    assert list(json.loads(line)) == ["@partitions-error"]


def test_that_partitions_are_ready_is_nothing_that_a_page_waits_for():
    wire = Ndjson(positions=True, grouped=True)
    assert not wire.tells(rendered(wire, [ready(0), ready(1)]))
    assert wire.tells(rendered(wire, [fault(0), fault(1)]))


@pytest.mark.parametrize("wire", [Sse(), Ndjson(positions=True), WebSocket()])
def test_who_did_not_ask_for_it_gets_one_event_each(wire: Wire):
    data = rendered(wire, map(ready, range(100)))
    assert data.count(b'"partition":') == 100 and b"partitions-ready" not in data


@pytest.mark.parametrize("around", [Framed, Gzip])
def test_wires_around_others_group_as_well(around: Any):
    wire = around(Sse(grouped=True))
    assert wire != around(Sse())
    assert len(rendered(wire, map(ready, range(100)))) < 2_000
