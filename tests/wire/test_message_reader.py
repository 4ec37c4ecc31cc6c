from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import bad_frames
from support.budgets import measure_held_memory
from support.raw_websocket import (
    OPCODE_BINARY,
    OPCODE_CLOSE,
    OPCODE_CONTINUATION,
    OPCODE_PING,
    OPCODE_PONG,
    OPCODE_TEXT,
    build_close,
    build_frame,
    deflate_payload,
)

from gateway.wire.message_reader import (
    NO_STATUS_RCVD,
    MessageReader,
    ProtocolError,
    ReceivedMessage,
    parse_close,
)

WINDOW = 12
MESSAGES = [
    build_frame(OPCODE_TEXT, b'{"type": "ping"}'),
    build_frame(OPCODE_TEXT, "é€😀".encode(), fin=False),
    build_frame(OPCODE_CONTINUATION, b"\xff"),
    build_frame(OPCODE_CONTINUATION, b"a" * 300),
    build_frame(OPCODE_BINARY, b"\xff" * 200),
    build_frame(OPCODE_PING, b"x"),
    build_frame(OPCODE_TEXT, deflate_payload(b"a" * 500), rsv=4),
    build_frame(3),
    build_close(1000),
]


def heard(
    reader: MessageReader, pieces: list[bytes], now: float = 0.0
) -> list[ReceivedMessage | int]:
    """What was said up to its end: the code of that, if there was one, is the last."""
    found: list[ReceivedMessage | int] = []
    for piece in pieces:
        reader.feed(piece)
        try:
            while (said := reader.read(now)) is not None:
                found.append(said)
                if said[0] == OPCODE_CLOSE:
                    assert isinstance(said[1], bytes)
                    return [*found, parse_close(said[1])[0]]
        except ProtocolError as broken:
            return [*found, broken.code]
    return found


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@given(st.lists(st.sampled_from(MESSAGES) | st.binary(max_size=20), max_size=8), st.data())
def test_any_bytes_mean_the_same_however_they_are_cut(pieces: list[bytes], data: st.DataObject):
    sent = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    parts = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert heard(MessageReader(WINDOW), parts) == heard(MessageReader(WINDOW), [sent])


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "a", "é€😀", "b" * 126, "c" * 70_000]), st.booleans()),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 9),
)
def test_messages_come_out_as_they_were_sent_in_fragments_with_pings_between(texts, fragments):
    sent, due = b"", []
    for text, compressed in texts:
        payload = deflate_payload(text.encode()) if compressed else text.encode()
        size = len(payload) // fragments + 1
        parts = cut(payload, size) or [b""]
        for n, part in enumerate(parts):
            rsv = 4 if compressed and not n else 0
            sent += build_frame(
                OPCODE_CONTINUATION if n else OPCODE_TEXT, part, fin=n == len(parts) - 1, rsv=rsv
            )
            sent += build_frame(OPCODE_PING, b"%d" % n)
            due += [(OPCODE_PING, b"%d" % n)] if n < len(parts) - 1 else []
        due += [(OPCODE_TEXT, text), (OPCODE_PING, b"%d" % (len(parts) - 1))]
    assert heard(MessageReader(WINDOW), cut(sent, 4096)) == due


@pytest.mark.parametrize("size", [0, 7])
@pytest.mark.parametrize("case", bad_frames.CLOSING_CASES)
def test_what_is_broken_ends_with_its_code(case: str, size: int):
    code, sent = bad_frames.CLOSING_CASES[case]
    pieces = cut(sent, size if len(sent) < 100_000 else 4093) if size else [sent]
    found = heard(MessageReader(), pieces)
    assert found[-1] == (NO_STATUS_RCVD if code is None else code)


@pytest.mark.parametrize("case", bad_frames.INVALID_COMPRESSED)
def test_what_is_broken_and_compressed_ends_with_its_code(case: str):
    code, sent = bad_frames.INVALID_COMPRESSED[case]
    assert heard(MessageReader(WINDOW), [sent])[-1] == code


@pytest.mark.parametrize("case", bad_frames.TRUNCATED_FRAMES)
def test_what_is_not_whole_yet_is_not_heard(case: str):
    reader = MessageReader()
    assert not heard(reader, [bad_frames.TRUNCATED_FRAMES[case]])


def test_a_frame_is_refused_as_soon_as_it_is_known_to_be_wrong():
    """Not when all that it announces has come."""
    for sent, code in (
        (build_frame(OPCODE_TEXT, announced_length=2**40)[:10], 1009),
        (build_frame(OPCODE_TEXT, is_masked=False), 1002),
        (build_frame(3)[:2], 1002),
        (build_frame(OPCODE_PING, announced_length=126)[:4], 1002),
    ):
        assert heard(MessageReader(), [sent]) == [code]


def test_the_largest_message_is_taken():
    most = b"a" * MessageReader.MAX_MESSAGE_BYTES
    half = [
        build_frame(OPCODE_TEXT, most[: len(most) // 2], fin=False),
        build_frame(OPCODE_CONTINUATION, most[len(most) // 2 :]),
    ]
    assert (
        heard(MessageReader(), [build_frame(OPCODE_TEXT, most), *half])
        == [(OPCODE_TEXT, most.decode())] * 2
    )
    assert heard(
        MessageReader(WINDOW), [build_frame(OPCODE_TEXT, deflate_payload(most), rsv=4)]
    ) == [(OPCODE_TEXT, most.decode())]


def test_an_idle_reader_holds_nothing_of_what_was_said():
    reader = MessageReader(WINDOW)
    sent = [
        build_frame(OPCODE_TEXT, b"a" * 5000, fin=False),
        build_frame(OPCODE_CONTINUATION),
        build_frame(OPCODE_TEXT, deflate_payload(b"b"), rsv=4),
        build_frame(OPCODE_TEXT, b"c" * 5000),
    ]

    def hear_all() -> None:
        assert heard(reader, [piece for message in sent for piece in cut(message, 1000)])

    assert measure_held_memory(hear_all) < 500
    assert reader.buffered_bytes == 0


def test_the_allowance_of_idle_frames_is_earned_back_by_time():
    reader = MessageReader()
    assert (
        len(heard(reader, [build_frame(OPCODE_PONG) * MessageReader.MAX_IDLE_FRAMES], 200.0))
        == MessageReader.MAX_IDLE_FRAMES
    )
    earned = heard(reader, [build_frame(OPCODE_PING) * MessageReader.IDLE_FRAMES_PER_SECOND], 201.0)
    assert earned == [(OPCODE_PING, b"")] * MessageReader.IDLE_FRAMES_PER_SECOND
    assert heard(reader, [build_frame(OPCODE_PING)], 201.0) == [1008]


def test_messages_and_large_fragments_cost_no_allowance():
    large = build_frame(OPCODE_CONTINUATION, b"a" * MessageReader.SMALL_FRAGMENT_BYTES, fin=False)
    found = heard(
        MessageReader(),
        [
            build_frame(OPCODE_TEXT, b"{}") * 5000
            + build_frame(OPCODE_TEXT, fin=False)
            + large * 5000
        ],
    )
    assert found == [(OPCODE_TEXT, "{}")] * 5000


def test_a_close_is_heard_when_the_allowance_is_spent():
    found = heard(
        MessageReader(),
        [build_frame(OPCODE_PING) * MessageReader.MAX_IDLE_FRAMES + build_close(1000)],
    )
    assert found[-1] == 1000


def test_a_large_frame_that_comes_byte_by_byte_is_not_copied_with_each():
    """Quadratic, it would take minutes."""
    reader = MessageReader()
    sent = build_frame(OPCODE_TEXT, b"a" * 300_000)
    assert heard(reader, cut(sent, 1)) == [(OPCODE_TEXT, "a" * 300_000)]


NOTHING = b"\x00\x00\x00\xff\xff"  # an empty block of deflate


@pytest.mark.parametrize(
    ("fragment", "code"),
    [
        pytest.param(26 * NOTHING, 1008, id="small"),
        pytest.param(40_000 * NOTHING, 1009, id="large"),
    ],
)
def test_fragments_that_inflate_to_nothing_come_to_an_end(fragment: bytes, code: int):
    """They counted by their compressed length, and the message by what was inflated of it."""
    reader = MessageReader(WINDOW)
    frames = (
        build_frame(
            OPCODE_CONTINUATION if n else OPCODE_TEXT, fragment, fin=False, rsv=0 if n else 4
        )
        for n in range(MessageReader.MAX_IDLE_FRAMES + 10)
    )
    assert heard(reader, list(frames)) == [code]
