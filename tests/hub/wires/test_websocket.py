from __future__ import annotations

import json
from typing import Any

import orjson
from support.outlet import FakeOutlet
from support.single_client import create_client, write_records
from support.waiting import wait_until
from websockets.client import ClientProtocol
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Frame
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from gateway.core.channel.chunk_ring import ChannelEvent
from gateway.core.client.terms import EndReason
from gateway.core.log.record import Gap, GapReason, Ready, Record, Skip, TopicPartition
from gateway.core.token.resume_token import seal_token
from gateway.formats import create_format
from gateway.hub.fanout.client import Client
from gateway.hub.wires.websocket import MAX_BATCH_BYTES, WebSocketWire, encode_label
from gateway.hub.wires.wire import END_RETRY_RANGE_S, Beginning
from gateway.wire.websocket import encode_deflated_text, insert_member

TP = TopicPartition("orders", 7)
VIEW = b"view0"
OWN, LABELLED = WebSocketWire(), WebSocketWire(labelled=True)


def record(offset: int, value: bytes | None = b'{"n": 1}') -> Record:
    return Record(TP, offset, 0, 0, b"ada", value)


def decode_frames(data: bytes, deflate: bool = False) -> list[Any]:
    """The messages of frames, as a client's library reads them."""
    client = ClientProtocol(parse_uri("ws://localhost/"), state=OPEN)
    if deflate:
        client.extensions = [PerMessageDeflate(True, True, 12, 12)]
    client.receive_data(data)
    frames = client.events_received()
    assert client.parser_exc is None
    assert all(isinstance(each, Frame) and each.fin for each in frames)
    return [orjson.loads(each.data) for each in frames if isinstance(each, Frame)]


def encode_messages(
    wire: WebSocketWire, *entries: tuple[Any, bytes | None], format: str = "value"
) -> list[Any]:
    encoder = wire.create_encoder(create_format(format))
    events = [
        ChannelEvent(None, encoder.encode_entry(entry) or b"", text) for entry, text in entries
    ]
    return decode_frames(insert_label(wire, encoder.encode_events(events, VIEW)), wire.deflate)


def insert_label(wire: WebSocketWire, data: bytes) -> bytes:
    """The frames as the socket of subscription 'a' is given them."""
    return insert_member(data, encode_label("a")) if wire.labelled else data


def build_position(text: bytes) -> str:
    return seal_token(text, VIEW).decode()


def test_a_run_of_records_is_one_message_with_the_position_after_the_last():
    assert encode_messages(LABELLED, (record(1), b"one"), (record(2, b"paid"), b"two")) == [
        {
            "type": "records",
            "id": "a",
            "records": [{"n": 1}, "paid"],
            "position": build_position(b"two"),
        }
    ]


def test_the_socket_of_a_routes_own_path_needs_no_id():
    assert encode_messages(OWN, (record(1), b"one")) == [
        {"type": "records", "records": [{"n": 1}], "position": build_position(b"one")}
    ]


def test_what_is_no_record_is_a_message_in_its_place_among_them():
    gap = Gap(TP, 2, 5, 0, GapReason.RETENTION)
    said = encode_messages(OWN, (record(1), b"one"), (gap, b"gap"), (record(5), b"five"))
    assert [each["type"] for each in said] == ["records", "gap", "records"]
    where = {"topic": "orders", "partition": 7, "from": 2, "to": 5, "reason": "retention"}
    assert said[1] == {"type": "gap", **where, "position": build_position(b"gap")}


def test_a_tombstone_is_a_delete_with_what_sse_tells_of_it():
    assert encode_messages(LABELLED, (record(1, None), b"one")) == [
        {"type": "delete", "id": "a", "record": {"key": "ada"}, "position": build_position(b"one")}
    ]


def test_numbers_stay_as_they_were_written():
    encoder = OWN.create_encoder(create_format("value"))
    data = encoder.encode_events(
        [ChannelEvent(None, encoder.encode_entry(record(1, b'{"n": 1.10}\n')) or b"", None)], VIEW
    )
    assert b'"records":[{"n": 1.10} ]' in data


def test_a_value_that_is_no_text_is_an_error_in_its_place():
    (error,) = encode_messages(LABELLED, (record(1, b"\xff"), b"one"))
    assert (error["type"], error["id"], error["code"]) == ("error", "a", "value-not-text")


def test_an_envelope_is_the_object_that_sse_has():
    (message,) = encode_messages(OWN, (record(1), None), format="envelope")
    _, payload = create_format("envelope")(record(1))
    assert message == {"type": "records", "records": [json.loads(payload)]}


def test_where_not_every_record_has_a_position_it_is_still_that_after_the_last_of_a_message():
    said = encode_messages(OWN, (record(1), None), (record(2), b"two"), (record(3), None))
    assert [(len(each["records"]), each.get("position")) for each in said] == [
        (2, build_position(b"two")), (1, None)
    ]  # fmt: skip


def test_a_long_run_is_cut_into_several_messages():
    size = MAX_BATCH_BYTES // 4
    long = [(record(n, b'"%b"' % (b"x" * size)), b"%d" % n) for n in range(10)]
    said = encode_messages(OWN, *long)
    assert sum(len(each["records"]) for each in said) == 10
    assert max(len(each["records"]) for each in said) <= 6
    assert [each["position"] for each in said][-1] == build_position(b"9")


def test_ready_has_no_position_and_holes_are_not_told():
    (ready,) = encode_messages(LABELLED, (Ready(TP, 3, 3, 0), None))
    assert ready["type"] == "ready" and "position" not in ready
    assert OWN.create_encoder(create_format("value")).encode_entry(Skip(TP, 1, 2, 0)) is None


def test_frames_are_compressed_where_the_client_takes_that():
    wire = WebSocketWire(deflate=True)
    records = [(record(n, b'{"name": "the same again and again"}'), b"%d" % n) for n in range(50)]
    assert len(encode_messages(wire, *records)[0]["records"]) == 50


async def test_a_message_is_compressed_once_for_all_and_a_small_one_not_at_all(monkeypatch):
    made: list[bytes] = []

    def record_payload(payload: bytes) -> bytes:
        made.append(payload)
        return encode_deflated_text(payload)

    outlets = [FakeOutlet() for _ in range(3)]
    clients: list[Client] = []
    for outlet in outlets:
        clients.append(
            create_client(WebSocketWire(deflate=True), sibling=clients[0] if clients else None)
        )
        clients[-1].attach(outlet)
    await wait_until(lambda: all(client.state is None for client in clients), "all ride")
    monkeypatch.setattr("gateway.hub.wires.websocket.encode_deflated_text", record_payload)
    for n, (value, first) in enumerate(((b'"%b"' % (b"x" * 1000), 0xC1), (b"1", 0x81)), start=2):
        write_records(clients[0], value)
        await wait_until(
            lambda n=n: all(len(outlet.chunks) == n for outlet in outlets), "the message"
        )
        assert len({id(outlet.chunks[-1]) for outlet in outlets}) == 1
        assert outlets[0].chunks[-1][0] == first
        assert len(made) == n - 1


def test_begin_says_where_it_begins_and_end_why():
    (begin,) = decode_frames(
        insert_label(LABELLED, LABELLED.encode_begin(Beginning({"topics": []}, b"t")))
    )
    assert begin == {"type": "begin", "id": "a", "topics": [], "position": "t"}
    assert decode_frames(insert_label(LABELLED, LABELLED.encode_end(EndReason.UNTIL, b"t"))) == [
        {"type": "end", "id": "a", "reason": "until", "position": "t"}
    ]


def test_the_end_by_a_drain_says_when_to_come_back():
    """SSE had `retry:`; every program on a WebSocket came back at once."""
    for _ in range(10):
        (end,) = decode_frames(insert_label(LABELLED, LABELLED.encode_end(EndReason.DRAIN, b"t")))
        low_s, high_s = END_RETRY_RANGE_S
        assert 1000 * low_s <= end.pop("retry") <= 1000 * high_s
        assert end == {"type": "end", "id": "a", "reason": "drain", "position": "t"}
