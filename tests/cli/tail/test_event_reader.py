"""Server-sent events cut anywhere, held against the strict reader of the tests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.sse import SseParser

from gateway.cli.tail.source import EventReader, StreamEvent

LINES = st.sampled_from(
    [
        b"", b"data", b"data:", b"data: a", b"data:  b", b"data:\xff", b"id: 1", b"id:", b"id: a\0",
        b"event: gap", b"event:", b":", b": beat", b"retry: 1500", b"retry: -1", b"other: x",
    ]
)  # fmt: skip
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(LINES, ENDS)), st.booleans(), st.data())
def test_however_the_bytes_are_cut_the_events_are_those_of_the_standard(lines, bom, data):
    stream = (b"\xef\xbb\xbf" if bom else b"") + b"".join(line + end for line, end in lines)
    reader, strict = EventReader(), SseParser()
    told, expected = [], strict.feed(stream)
    at = 0
    while at < len(stream):
        step = data.draw(st.integers(1, 12))
        told += reader.feed(stream[at : at + step])
        at += step
    assert [(item.name, item.data) for item in told] == [
        (e.event_type, e.raw_data) for e in expected
    ]
    retry = strict.retry_ms
    assert reader.retry == (None if retry is None else retry / 1000)
    position = ""
    for item, event in zip(told, expected, strict=True):
        position = position if item.position is None else item.position
        assert position == event.last_event_id


def test_a_block_without_data_still_moves_the_position_of_the_next():
    assert EventReader().feed(b"id: 7\n\ndata: a\n\n") == [StreamEvent("message", b"a", "7")]
