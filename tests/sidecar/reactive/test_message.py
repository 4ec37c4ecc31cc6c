from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.log.record import Record, TopicPartition
from gateway.sidecar.reactive import message as letters
from gateway.sidecar.reactive.message import MAX_STACKTRACE_CHARS, DeadLetterMessage, parse_message

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
content = st.none() | st.binary(max_size=20)
ours = st.sampled_from(
    [letters.ORIGIN_TOPIC_HEADER, letters.STACKTRACE_HEADER, letters.CORRELATION_HEADER]
)
letter = st.builds(
    DeadLetterMessage,
    st.builds(TopicPartition, st.sampled_from(["orders", "pay.ments"]), st.integers(0, 99)),
    st.integers(0, 1 << 60),
    st.integers(-1, 1 << 42),
    content,
    content,
    st.lists(st.tuples(ours | text, content), max_size=6).map(tuple),
    text,
    text,
    text,
    text,
    st.integers(0, 9),
)


@given(letter)
def test_a_parsed_dead_letter_has_the_record_unchanged_with_any_headers(sent):
    assert parse_message(read_back(sent)) == sent


def test_headers_that_repeat_stay_and_what_became_of_it_stands_behind_them():
    sent = DeadLetterMessage(
        TopicPartition("orders", 3), 41, 1700000000000, b"k", b"v",
        (("a", b"1"), ("a", b"2")), "billing", "Boom at line 1", "corr", "trace",
    )  # fmt: skip
    assert sent.to_headers() == [
        ("a", b"1"),
        ("a", b"2"),
        ("X-Origin-Topic", b"orders"),
        ("X-Origin-Partition", b"3"),
        ("X-Origin-Offset", b"41"),
        ("X-Origin-Timestamp", b"1700000000000"),
        ("X-Consumer-Group", b"billing"),
        ("X-Dead-Letter-Retries", b"0"),
        ("X-Correlation-Id", b"corr"),
        ("X-Traceability-Id", b"trace"),
        ("StackTrace", b"Boom at line 1"),
    ]


def test_a_record_of_somebody_else_is_no_letter():
    tp = TopicPartition("orders.dlq", 0)
    assert parse_message(Record(tp, 0, 0, 0, b"k", b"v", [("StackTrace", b"x")])) is None
    assert parse_message(Record(tp, 0, 0, 0, b"k", b"v", [("X-Origin-Topic", b"orders")])) is None


def test_a_long_stack_trace_keeps_its_head_and_its_end():
    short = letters.shorten_stacktrace("first" + "x" * 100_000 + "last")
    assert len(short) <= MAX_STACKTRACE_CHARS
    assert short.startswith("first") and short.endswith("last")


def read_back(sent: DeadLetterMessage) -> Record:
    tp = TopicPartition("orders.dlq", 0)
    return Record(tp, 7, 0, 5, sent.key, sent.value, sent.to_headers())
