from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.delivery.verdict import (
    BackendUnavailable,
    BatchResults,
    RecordResult,
    SuspectBatch,
    judge_response,
)
from gateway.core.log.record import Record, TopicPartition

TP = TopicPartition("orders", 1)
SENT = [Record(TP, offset, 0, 0, b"k", b"v") for offset in (5, 6, 9)]


def parse_answer(*items: object, status: int = 200) -> object:
    return judge_response(status, json.dumps(items).encode(), SENT)


def build_item(offset: object, processed: bool = True, **more: object) -> dict[str, object]:
    return {"record": {"topic": "orders", "partition": 1, "offset": offset}, **more} | {
        "processed": processed
    }


def test_items_say_what_became_of_each_record():
    said = parse_answer(build_item(5), build_item(6, False, stacktrace="boom"), build_item(9))
    assert said == BatchResults(
        [RecordResult(True), RecordResult(False, "boom"), RecordResult(True)]
    )


def test_items_that_name_their_records_may_come_in_any_order():
    said = parse_answer(build_item(9), build_item(5, False, stacktrace="boom"), build_item(6))
    assert said == BatchResults(
        [RecordResult(False, "boom"), RecordResult(True), RecordResult(True)]
    )


@pytest.mark.parametrize("kind", [str, float])
def test_offsets_may_be_text_as_protobuf_writes_them(kind: type):
    """Items were taken by their place instead, and the wrong record was given up."""
    said = parse_answer(
        build_item(kind(9)), build_item(kind(5), False, stacktrace="boom"), build_item(kind(6))
    )
    assert said == BatchResults(
        [RecordResult(False, "boom"), RecordResult(True), RecordResult(True)]
    )


def test_items_without_a_record_are_taken_in_order():
    said = parse_answer({"processed": True}, {"processed": False}, {"processed": True})
    assert isinstance(said, BatchResults)
    assert [each.is_processed for each in said.results] == [True, False, True]
    assert "no stacktrace" in said.results[1].reason


@pytest.mark.parametrize(
    "items",
    [
        [],
        [build_item(5), build_item(6)],
        [build_item(5), build_item(6), build_item(9), build_item(10)],
        [build_item(5), build_item(5), build_item(6)],
        [build_item(5), build_item(6), build_item(7)],
        [{}, {}, {}],
        [build_item(5), build_item(6), {"processed": "yes"}],
        [build_item(5), {"processed": True}, {"processed": True}],
        [build_item(5, False), {"processed": True}, {"processed": True}],
        [
            build_item(5),
            build_item(6),
            {"record": {"topic": "orders", "offset": 9}, "processed": True},
        ],
        [build_item(5), build_item(6), {"record": 9, "processed": True}],
        [build_item("5a"), build_item(6), build_item(9)],
        [1, 2, 3],
    ],
)
def test_an_answer_that_does_not_fit_is_suspect(items: list[object]):
    assert isinstance(parse_answer(*items), SuspectBatch)


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"processed":true}', b"null", b"[1", b"\xff"])
def test_garbage_is_suspect_and_shown(body: bytes):
    said = judge_response(200, body, SENT)
    assert isinstance(said, SuspectBatch)


def test_no_body_is_suspect_unless_it_was_agreed_on():
    for status in (200, 204):
        assert isinstance(judge_response(status, b" ", SENT), SuspectBatch)
        assert judge_response(status, b"", SENT, accept_empty=True) == BatchResults(
            [RecordResult(True)] * 3
        )
    assert isinstance(judge_response(200, b"ok", SENT, accept_empty=True), SuspectBatch)
    # The connection broke behind the head, and all records counted as processed.
    cut = judge_response(200, b"", SENT, accept_empty=True, may_be_cut=True)
    assert isinstance(cut, BackendUnavailable) and "broke off" in cut.reason
    without = judge_response(204, b"", SENT, accept_empty=True, may_be_cut=True)
    assert isinstance(without, BatchResults)


@pytest.mark.parametrize("status", [400, 409, 413, 422, 500])
def test_what_speaks_of_the_batch_is_suspect(status: int):
    assert judge_response(status, b"boom", SENT) == SuspectBatch(
        f"the back end says {status}: boom", is_too_large=status == 413
    )


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405, 408, 429, 501, 502, 503, 504, 520])
def test_every_other_status_is_a_back_end_that_is_away(status: int):
    said = judge_response(status, b"", SENT, retry_after=3.0)
    assert said == BackendUnavailable(f"the back end says {status}: (nothing)", 3.0)


@given(st.integers(100, 599), st.binary(max_size=200), st.booleans())
def test_whatever_comes_has_a_meaning(status: int, body: bytes, empty: bool):
    said = judge_response(status, body, SENT, accept_empty=empty)
    assert not isinstance(said, BatchResults) or len(said.results) == len(SENT)
