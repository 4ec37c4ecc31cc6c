from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.delivery.verdict import Answered, Away, Item, Suspect, verdict
from gateway.core.log.record import Record, TopicPartition

TP = TopicPartition("orders", 1)
SENT = [Record(TP, offset, 0, 0, b"k", b"v") for offset in (5, 6, 9)]


def answer(*items: object, status: int = 200) -> object:
    return verdict(status, json.dumps(items).encode(), SENT)


def item(offset: object, processed: bool = True, **more: object) -> dict[str, object]:
    return {"record": {"topic": "orders", "partition": 1, "offset": offset}, **more} | {
        "processed": processed
    }


def test_items_say_what_became_of_each_record():
    said = answer(item(5), item(6, False, stacktrace="boom"), item(9))
    assert said == Answered([Item(True), Item(False, "boom"), Item(True)])


def test_items_that_name_their_records_may_come_in_any_order():
    said = answer(item(9), item(5, False, stacktrace="boom"), item(6))
    assert said == Answered([Item(False, "boom"), Item(True), Item(True)])


@pytest.mark.parametrize("kind", [str, float])
def test_offsets_may_be_text_as_protobuf_writes_them(kind: type):
    """Items were taken by their place instead, and the wrong record was given up."""
    said = answer(item(kind(9)), item(kind(5), False, stacktrace="boom"), item(kind(6)))
    assert said == Answered([Item(False, "boom"), Item(True), Item(True)])


def test_items_without_a_record_are_taken_in_order():
    said = answer({"processed": True}, {"processed": False}, {"processed": True})
    assert isinstance(said, Answered)
    assert [each.processed for each in said.items] == [True, False, True]
    assert "no stacktrace" in said.items[1].reason


@pytest.mark.parametrize(
    "items",
    [
        [],
        [item(5), item(6)],
        [item(5), item(6), item(9), item(10)],
        [item(5), item(5), item(6)],
        [item(5), item(6), item(7)],
        [{}, {}, {}],
        [item(5), item(6), {"processed": "yes"}],
        [item(5), {"processed": True}, {"processed": True}],
        [item(5, False), {"processed": True}, {"processed": True}],
        [item(5), item(6), {"record": {"topic": "orders", "offset": 9}, "processed": True}],
        [item(5), item(6), {"record": 9, "processed": True}],
        [item("5a"), item(6), item(9)],
        [1, 2, 3],
    ],
)
def test_an_answer_that_does_not_fit_is_suspect(items: list[object]):
    assert isinstance(answer(*items), Suspect)


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"processed":true}', b"null", b"[1", b"\xff"])
def test_garbage_is_suspect_and_shown(body: bytes):
    said = verdict(200, body, SENT)
    assert isinstance(said, Suspect)


def test_no_body_is_suspect_unless_it_was_agreed_on():
    for status in (200, 204):
        assert isinstance(verdict(status, b" ", SENT), Suspect)
        assert verdict(status, b"", SENT, accept_empty=True) == Answered([Item(True)] * 3)
    assert isinstance(verdict(200, b"ok", SENT, accept_empty=True), Suspect)


@pytest.mark.parametrize("status", [400, 409, 413, 422, 500])
def test_what_speaks_of_the_batch_is_suspect(status: int):
    assert verdict(status, b"boom", SENT) == Suspect(
        f"the back end says {status}: boom", too_large=status == 413
    )


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405, 408, 429, 501, 502, 503, 504, 520])
def test_every_other_status_is_a_back_end_that_is_away(status: int):
    said = verdict(status, b"", SENT, retry_after=3.0)
    assert said == Away(f"the back end says {status}: (nothing)", 3.0)


@given(st.integers(100, 599), st.binary(max_size=200), st.booleans())
def test_whatever_comes_has_a_meaning(status: int, body: bytes, empty: bool):
    said = verdict(status, body, SENT, accept_empty=empty)
    assert not isinstance(said, Answered) or len(said.items) == len(SENT)
