from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import bad_frames
from support.raw_websocket import BINARY, CLOSE, CONT, PING, PONG, TEXT, close, frame, squeezed

from gateway.wire.reader import NO_CODE, Broken, Heard, Reader, close_of

WINDOW = 12
MESSAGES = [
    frame(TEXT, b'{"type": "ping"}'),
    frame(TEXT, "é€😀".encode(), fin=False),
    frame(CONT, b"\xff"),
    frame(CONT, b"a" * 300),
    frame(BINARY, b"\xff" * 200),
    frame(PING, b"x"),
    frame(TEXT, squeezed(b"a" * 500), rsv=4),
    frame(3),
    close(1000),
]


def heard(reader: Reader, pieces: list[bytes], now: float = 0.0) -> list[Heard | int]:
    """What was said up to its end: the code of that, if there was one, is the last."""
    found: list[Heard | int] = []
    for piece in pieces:
        reader.feed(piece)
        try:
            while (said := reader.read(now)) is not None:
                found.append(said)
                if said[0] == CLOSE:
                    assert isinstance(said[1], bytes)
                    return [*found, close_of(said[1])[0]]
        except Broken as broken:
            return [*found, broken.code]
    return found


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@given(st.lists(st.sampled_from(MESSAGES) | st.binary(max_size=20), max_size=8), st.data())
def test_any_bytes_mean_the_same_however_they_are_cut(pieces: list[bytes], data: st.DataObject):
    sent = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    parts = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert heard(Reader(WINDOW), parts) == heard(Reader(WINDOW), [sent])


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "a", "é€😀", "b" * 126, "c" * 70_000]), st.booleans()),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 9),
)
def test_messages_come_out_as_they_were_sent_in_fragments_with_pings_between(
    texts: list[tuple[str, bool]], fragments: int
):
    sent, due = b"", []
    for text, compressed in texts:
        payload = squeezed(text.encode()) if compressed else text.encode()
        size = len(payload) // fragments + 1
        parts = cut(payload, size) or [b""]
        for n, part in enumerate(parts):
            rsv = 4 if compressed and not n else 0
            sent += frame(CONT if n else TEXT, part, fin=n == len(parts) - 1, rsv=rsv)
            sent += frame(PING, b"%d" % n)
            due += [(PING, b"%d" % n)] if n < len(parts) - 1 else []
        due += [(TEXT, text), (PING, b"%d" % (len(parts) - 1))]
    assert heard(Reader(WINDOW), cut(sent, 4096)) == due


@pytest.mark.parametrize("size", [0, 7])
@pytest.mark.parametrize("case", bad_frames.CLOSED)
def test_what_is_broken_ends_with_its_code(case: str, size: int):
    code, sent = bad_frames.CLOSED[case]
    pieces = cut(sent, size if len(sent) < 100_000 else 4093) if size else [sent]
    found = heard(Reader(), pieces)
    assert found[-1] == (NO_CODE if code is None else code)


@pytest.mark.parametrize("case", bad_frames.COMPRESSED)
def test_what_is_broken_and_compressed_ends_with_its_code(case: str):
    code, sent = bad_frames.COMPRESSED[case]
    assert heard(Reader(WINDOW), [sent])[-1] == code


@pytest.mark.parametrize("case", bad_frames.CUT)
def test_what_is_not_whole_yet_is_not_heard(case: str):
    reader = Reader()
    assert not heard(reader, [bad_frames.CUT[case]])


def test_a_frame_is_refused_as_soon_as_it_is_known_to_be_wrong():
    """Not when all that it announces has come."""
    for sent, code in (
        (frame(TEXT, length=2**40)[:10], 1009),
        (frame(TEXT, masked=False), 1002),
        (frame(3)[:2], 1002),
        (frame(PING, length=126)[:4], 1002),
    ):
        assert heard(Reader(), [sent]) == [code]


def test_the_largest_message_is_taken():
    most = b"a" * Reader.MAX_SIZE
    half = [frame(TEXT, most[: len(most) // 2], fin=False), frame(CONT, most[len(most) // 2 :])]
    assert heard(Reader(), [frame(TEXT, most), *half]) == [(TEXT, most.decode())] * 2
    assert heard(Reader(WINDOW), [frame(TEXT, squeezed(most), rsv=4)]) == [(TEXT, most.decode())]


def test_an_idle_reader_holds_nothing_of_what_was_said():
    reader = Reader(WINDOW)
    sent = [frame(TEXT, b"a" * 5000, fin=False), frame(CONT), frame(TEXT, squeezed(b"b"), rsv=4)]
    heard(reader, [byte for message in sent for byte in cut(message, 1000)])
    assert reader.held == 0 and reader._data == b"" and reader._message is None


def test_the_allowance_of_idle_frames_is_earned_back_by_time():
    reader = Reader()
    assert len(heard(reader, [frame(PONG) * Reader.IDLE_FRAMES], 200.0)) == Reader.IDLE_FRAMES
    earned = heard(reader, [frame(PING) * Reader.IDLE_FRAMES_PER_SECOND], 201.0)
    assert earned == [(PING, b"")] * Reader.IDLE_FRAMES_PER_SECOND
    assert heard(reader, [frame(PING)], 201.0) == [1008]


def test_messages_and_large_fragments_cost_no_allowance():
    large = frame(CONT, b"a" * Reader.SMALL, fin=False)
    found = heard(Reader(), [frame(TEXT, b"{}") * 5000 + frame(TEXT, fin=False) + large * 5000])
    assert found == [(TEXT, "{}")] * 5000


def test_a_close_is_heard_when_the_allowance_is_spent():
    found = heard(Reader(), [frame(PING) * Reader.IDLE_FRAMES + close(1000)])
    assert found[-1] == 1000


def test_a_large_frame_that_comes_byte_by_byte_is_not_copied_with_each():
    """Quadratic, it would take minutes."""
    reader = Reader()
    sent = frame(TEXT, b"a" * 300_000)
    assert heard(reader, cut(sent, 1)) == [(TEXT, "a" * 300_000)]
