"""Records into bytes and out again, as the channels of programs have it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.api.events import Begin, End, Fault, Gap, Position, Ready, Record
from gateway.api.object_wire import ObjectEncoder, ObjectWire
from gateway.core.channel.chunk_ring import ChannelEvent
from gateway.core.client.terms import EndReason
from gateway.core.log import record as core
from gateway.core.log.record import GapReason, TopicPartition
from gateway.core.token.resume_token import seal_token
from gateway.hub.wires.wire import Beginning

VIEW = b"view-"
TP = TopicPartition("orders", 3)

maybe = st.none() | st.binary(max_size=300)
records = st.builds(
    core.Record,
    st.builds(TopicPartition, st.sampled_from(["orders", "ö"]), st.integers(0, 2**31 - 1)),
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
    maybe,
    maybe,
    st.lists(st.tuples(st.text(max_size=9), maybe), max_size=4).map(tuple),
)
texts = st.none() | st.text("abcXYZ09-_", min_size=1, max_size=60).map(str.encode)


def event(encoder: ObjectEncoder, entry: core.Entry, text: bytes | None = b"text") -> ChannelEvent:
    head = encoder.encode_entry(entry)
    assert head is not None
    return ChannelEvent(entry.tp, head, text)


@given(st.lists(st.tuples(records, texts), max_size=8))
def test_records_are_exact_to_the_byte_each_with_the_position_at_or_before_it(given):
    encoder = ObjectEncoder()
    data = encoder.encode_events([event(encoder, *each) for each in given], VIEW)
    last = "the begin's"
    read = encoder.decode_events(data, last, VIEW)
    assert len(read) == len(given)
    for (record, text), found in zip(given, read, strict=True):
        assert isinstance(found, Record)
        (topic, partition), offset, _, timestamp, key, value, headers = record
        assert found[:-1] == (topic, partition, offset, timestamp, key, value, headers)
        last = last if text is None else seal_token(text, VIEW).decode()
        assert found.position == last


def test_what_is_no_record_is_told_in_its_place_and_order():
    encoder = ObjectEncoder()
    entries: list[core.Entry] = [
        core.Record(TP, 1, 0, 5, None, b"a"),
        core.Gap(TP, 2, 9, 0, GapReason.RETENTION),
        core.Ready(TP, 9, 9, 0, is_approximate=True),
        core.Fault(TP, 9, 9, 0, "access-denied"),
        core.Record(TP, 9, 0, 5, None, None),
    ]
    events = [event(encoder, each, b"%d" % n) for n, each in enumerate(entries)]
    events.append(ChannelEvent(None, encoder.encode_position(), b"moved"))
    told = encoder.decode_events(encoder.encode_events(events, VIEW), "", VIEW)
    at = [seal_token(b"%d" % n, VIEW).decode() for n in range(5)]
    assert [type(each) for each in told] == [Record, Gap, Ready, Fault, Record, Position]
    assert told[1] == Gap("orders", 3, 2, 9, "retention", at[1])
    assert told[2] == Ready("orders", 3, 9, True, at[2])
    assert told[3][:3] == ("orders", 3, "access-denied")
    assert told[4][4:6] == (None, None)
    assert [each.position for each in told] == [*at, seal_token(b"moved", VIEW).decode()]


def test_skipped_offsets_are_not_told():
    assert ObjectEncoder().encode_entry(core.Skip(TP, 1, 2, 0)) is None


def test_begin_and_end_carry_their_tokens():
    wire, encoder = ObjectWire(), ObjectEncoder()
    data = {
        "topics": ["orders"],
        "partitions": {"orders": 4},
        "pending": [{"topic": "orders", "partition": 3}],
        "resume": "exact",
        "view": "changed",
    }
    (begin,) = encoder.decode_events(wire.encode_begin(Beginning(data, b"TOKEN")), "", VIEW)
    assert begin == Begin(("orders",), {"orders": 4}, (("orders", 3),), "exact", True, "TOKEN")
    (end,) = encoder.decode_events(wire.encode_end(EndReason.UNTIL, b"TOKEN"), "", VIEW)
    assert end == End("until", "TOKEN")
    assert wire.encode_heartbeat() == b""


def test_fields_cut_the_value_and_nothing_else():
    encoder = ObjectWire(("/id",)).create_encoder(lambda record: (None, b""))
    given = core.Record(TP, 1, 0, 5, b"k", b'{"id": 1.50, "more": 2}', (("h", b"\xff"),))
    (found,) = encoder.decode_events(encoder.encode_events([event(encoder, given)], VIEW), "", VIEW)
    assert isinstance(found, Record)
    assert (found.key, found.value, found.headers) == (b"k", b'{"id":1.50}', given.headers)


def test_wires_of_equal_fields_share_their_chunks():
    assert ObjectWire(("/id",)) == ObjectWire(("/id",)) != ObjectWire()
    assert hash(ObjectWire()) == hash(ObjectWire())
