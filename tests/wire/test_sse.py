from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sse import SseEvent, SseParser, parse_stream

from gateway.wire import sse

TOKEN = b"1.abc-_123"

names = st.none() | st.text(min_size=1).filter(lambda s: not set(s) & set("\r\n")).map(
    lambda s: s.encode(errors="ignore").decode()
)
payloads = st.binary() | st.text(alphabet="a:\r\n \0é").map(str.encode)


def folded(payload: bytes) -> bytes:
    return payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def test_a_record_is_one_data_line_an_id_and_a_blank_line():
    assert sse.encode_event(None, b"hello", TOKEN) == b"data: hello\nid: 1.abc-_123\n\n"


def test_the_id_comes_after_the_data_so_that_a_cut_event_is_not_skipped():
    whole = sse.encode_event("gap", b"one\ntwo", TOKEN)
    assert whole.index(b"\nid: ") > whole.rindex(b"data: ")


def test_the_shared_block_and_an_id_of_ones_own_make_the_same_event():
    block = sse.encode_data(b"{}", "position")
    assert block + sse.encode_id(TOKEN) == sse.encode_event("position", b"{}", TOKEN)


@given(payload=payloads, name=names)
def test_any_payload_arrives_with_only_its_line_breaks_folded(payload: bytes, name: str | None):
    [event] = parse_stream(sse.encode_event(name, payload, TOKEN))
    assert event == SseEvent(name or "message", folded(payload), TOKEN.decode())


@given(
    sent=st.lists(st.tuples(names, payloads, st.sampled_from([None, b"1.a", b"1.b"])), max_size=4),
    data=st.data(),
)
def test_events_are_the_same_wherever_the_bytes_are_cut(sent: list, data: st.DataObject):
    stream = b"".join(sse.encode_event(*each) for each in sent)
    cut = data.draw(st.integers(0, len(stream)))
    parser = SseParser()
    assert parser.feed(stream[:cut]) + parser.feed(stream[cut:]) == parse_stream(stream)
    assert [e.raw_data for e in parse_stream(stream)] == [folded(payload) for _, payload, _ in sent]


@given(payload=payloads, data=st.data())
def test_a_cut_event_is_not_dispatched_and_does_not_move_the_id(payload, data):
    stream = sse.encode_event("begin", b"{}", b"1.before")
    last = sse.encode_event(None, payload, b"1.after")
    cut = data.draw(st.integers(0, len(last) - 1))
    parser = SseParser()
    assert [e.event_type for e in parser.feed(stream + last[:cut])] == ["begin"]
    assert parser.last_event_id == "1.before"


def test_an_empty_payload_is_still_an_event():
    assert parse_stream(sse.encode_event(None, b"", TOKEN)) == [
        SseEvent("message", b"", TOKEN.decode())
    ]


def test_an_event_without_a_token_leaves_the_id_as_it_was():
    events = parse_stream(sse.encode_event(None, b"a", TOKEN) + sse.encode_event("ready", b"{}"))
    assert [e.last_event_id for e in events] == [TOKEN.decode()] * 2


def test_retry_holds_from_the_moment_its_line_is_read():
    parser = SseParser()
    parser.feed(sse.encode_retry(1500))
    assert parser.retry_ms == 1500
    assert sse.encode_event("begin", b"{}", TOKEN, retry_ms=20).startswith(b"retry: 20\n")


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "x\n\ndata: forged"])
def test_an_event_name_cannot_smuggle_in_another_line(name: str):
    with pytest.raises(ValueError, match="one line"):
        sse.encode_data(b"", name)


# The reader the tests rely on, by the examples of WHATWG HTML 9.2.6.
@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [("message", b"YHOO\n+2\n10", "")]),
        (
            b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third",
            [("message", b"first event", "1"), ("message", b"second event", "")],
        ),
        (b"data\n\ndata\ndata\n\ndata:", [("message", b"", ""), ("message", b"\n", "")]),
        (b"data:test\n\ndata: test\n\n", [("message", b"test", "")] * 2),
        (
            b"\xef\xbb\xbfdata: bom\r\rdata: crlf\r\n\r\n",
            [("message", b"bom", ""), ("message", b"crlf", "")],
        ),
        (b"id: 1\n\nid: a\0b\ndata: x\n\n", [("message", b"x", "1")]),
        (b"event: gone\n\ndata: x\n\n", [("message", b"x", "")]),
    ],
)
def test_the_reader_follows_the_standard(stream: bytes, expected: list):
    assert parse_stream(stream) == [SseEvent(*each) for each in expected]
    parser = SseParser()
    singly = [event for i in range(len(stream)) for event in parser.feed(stream[i : i + 1])]
    assert singly == parse_stream(stream)


@pytest.mark.parametrize(
    ("line", "ms"),
    [(b"retry: 5\n", 5), (b"retry: 5s\n", None), (b"retry:\n", None), (b"retry: -1\n", None)],
)
def test_the_reader_takes_only_digits_for_a_retry(line: bytes, ms: int | None):
    parser = SseParser()
    parser.feed(line)
    assert parser.retry_ms == ms
