from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.web.workers.relay import MAX_UNREAD_BYTES, Link

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


class RecordingTransport(asyncio.Transport):
    """Takes everything, or leaves it all unread."""

    def __init__(self, *, is_read: bool = True) -> None:
        super().__init__()
        self.written = b""
        self.is_aborted = False
        self.is_read = is_read

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0 if self.is_read else len(self.written)

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


def connect_link(transport: RecordingTransport) -> tuple[Link, list[Any]]:
    heard: list[Any] = []
    link = Link(heard.append, lambda: None)
    link.connection_made(transport)
    return link, heard


@given(st.lists(st.lists(VALUES, max_size=3), max_size=6), st.lists(st.integers(0, 200)))
def test_messages_arrive_whole_and_in_order_in_whatever_pieces(messages, cuts):
    sender, transport = Link(lambda message: None, lambda: None), RecordingTransport()
    sender.connection_made(transport)
    for message in messages:
        sender.send(*message)
    link, heard = connect_link(RecordingTransport())
    edges = sorted({0, len(transport.written), *(min(c, len(transport.written)) for c in cuts)})
    for start, end in pairwise(edges):
        link.data_received(transport.written[start:end])
    assert heard == messages


def test_one_who_leaves_too_much_unread_is_cut_off():
    transport = RecordingTransport(is_read=False)
    link, _ = connect_link(transport)
    while not transport.is_aborted:
        link.send("x" * 2**20)
    assert MAX_UNREAD_BYTES < len(transport.written) < MAX_UNREAD_BYTES + 2**21
    link.send("more")
    assert b"more" not in transport.written and not link.is_open


@pytest.mark.parametrize("said", [b"{\n", b"\xff\n", b"\n"])
def test_what_is_no_json_ends_the_connection(said: bytes):
    transport = RecordingTransport()
    link, heard = connect_link(transport)
    link.data_received(b'["good"]\n' + said + b'["after"]\n')
    assert transport.is_aborted and heard == [["good"]]


def test_a_line_without_an_end_is_not_kept_for_ever():
    transport = RecordingTransport()
    link, _ = connect_link(transport)
    for _ in range(MAX_UNREAD_BYTES // 2**20 + 1):
        link.data_received(b"x" * 2**20)
    assert transport.is_aborted


def test_tuples_with_names_and_sets_are_lists():
    class Named(NamedTuple):
        topic: str

    transport = RecordingTransport()
    connect_link(transport)[0].send("take", Named("orders"), {1})
    assert json.loads(transport.written) == ["take", ["orders"], [1]]


def test_numbers_as_names_are_written_as_json_has_them():
    transport = RecordingTransport()
    connect_link(transport)[0].send({1: "one"})
    assert json.loads(transport.written) == orjson.loads(transport.written) == [{"1": "one"}]
