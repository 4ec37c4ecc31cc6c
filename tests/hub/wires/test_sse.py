from __future__ import annotations

import json

import pytest
from support.sse import parse_stream

from gateway.core.channel.chunk_ring import ChannelEvent
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
from gateway.hub.wires.sse import SseEncoder, SseWire

TP = TopicPartition("orders", 7)
WHERE = {"topic": "orders", "partition": 7}
SSE = SseEncoder(create_format("value"))
VIEW = b"view0"
ID = seal_token(b"text", VIEW).decode()


def encode_events(*events: tuple[bytes, bytes | None]) -> bytes:
    """Heads, and the text of their ids."""
    return SSE.encode_events([ChannelEvent(None, head, text) for head, text in events], VIEW)


def parse_entry(entry: Entry) -> tuple[str, str]:
    """Name and data of the event that an entry becomes."""
    head = SSE.encode_entry(entry)
    assert head is not None
    (event,) = parse_stream(encode_events((head, b"text")))
    assert event.last_event_id == ID
    return event.event_type, event.data


def test_a_record_goes_out_under_the_name_that_onmessage_hears():
    assert parse_entry(Record(TP, 4, 0, 0, b"ada", b"paid")) == ("message", "paid")


def test_a_tombstone_is_a_delete_of_its_key():
    name, data = parse_entry(Record(TP, 4, 0, 0, b"ada", None))
    assert (name, json.loads(data)) == ("delete", {"key": "ada"})


def test_a_page_sees_heartbeats():
    (heartbeat,) = parse_stream(SseWire().encode_heartbeat())
    assert (heartbeat.event_type, heartbeat.last_event_id) == ("position", "")


@pytest.mark.parametrize("reason", GapReason)
def test_a_gap_says_from_which_offset_to_which_and_why(reason: GapReason):
    name, data = parse_entry(Gap(TP, 5, 9, 0, reason))
    assert (name, json.loads(data)) == ("gap", {**WHERE, "from": 5, "to": 9, "reason": reason})


@pytest.mark.parametrize(("approximate", "resolved"), [(False, "exact"), (True, "approximate")])
def test_ready_says_where_the_partition_goes_on_and_how_that_was_found(approximate, resolved):
    name, data = parse_entry(Ready(TP, 5, 5, 0, approximate))
    assert (name, json.loads(data)) == ("ready", {**WHERE, "offset": 5, "resolved": resolved})


def test_a_fault_names_its_cause_and_that_the_stream_goes_on():
    name, data = parse_entry(Fault(TP, 5, 5, 0, "access-denied"))
    error = json.loads(data)
    assert name == "error"
    assert error.pop("message").endswith("the stream goes on by itself")
    assert error == {**WHERE, "code": "access-denied"}


def test_offsets_that_hold_nothing_are_not_told():
    assert SSE.encode_entry(Skip(TP, 5, 9, 0)) is None


def test_a_position_alone_is_an_event_with_data_or_some_clients_would_ignore_its_id():
    (event,) = parse_stream(encode_events((SSE.encode_position(), b"text")))
    assert (event.event_type, event.data, event.last_event_id) == ("position", "{}", ID)


def test_an_event_without_an_id_leaves_the_clients_last_one_in_place():
    record = SSE.encode_entry(Record(TP, 4, 0, 0, None, b"x")) or b""
    first, second = parse_stream(encode_events((record, b"text"), (record, None)))
    assert (first.last_event_id, second.last_event_id) == (ID, ID)
