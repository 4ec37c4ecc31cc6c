from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sidecar.ksqldb.rows import (
    MAX_ROW_BYTES,
    KsqlError,
    KsqlProtocolError,
    ResponseParser,
    RowError,
    parse_schema,
    write_row,
)

HEADER = {"queryId": "q1", "columnNames": ["ID", "NAME"], "columnTypes": ["BIGINT", "STRING"]}
OLD = {"header": {"queryId": "q1", "schema": "`ID` BIGINT, `NAME` STRING"}}


def _encode_body(form: str, rows: list[list[Any]]) -> bytes:
    if form == "lines":
        return b"".join(json.dumps(row).encode() + b"\n" for row in [HEADER, *rows])
    if form == "array":
        return json.dumps([HEADER, *rows]).encode()
    lines = [OLD, *({"row": {"columns": row}} for row in rows), {"finalMessage": "done"}]
    return ("[" + ",\n".join(json.dumps(entry) for entry in lines) + "]\n").encode()


def _read_in_pieces(reading: ResponseParser, body: bytes, cuts: list[int]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    for begin, end in pairwise(places):
        rows += reading.feed(body[begin:end])
    return rows + reading.feed_eof()


values = st.lists(st.tuples(st.integers(-(2**31), 2**31), st.text() | st.none()), max_size=6)


@pytest.mark.parametrize("form", ["lines", "array", "old"])
@given(values=values, cuts=st.lists(st.integers(0, 500)))
def test_however_it_is_cut_the_rows_are_the_same(form, values, cuts):
    reading = ResponseParser()
    rows = _read_in_pieces(reading, _encode_body(form, [list(value) for value in values]), cuts)
    assert rows == [{"ID": id, "NAME": name} for id, name in values]
    assert reading.columns is not None
    assert reading.columns.query_id == "q1"
    assert list(reading.columns.types) == ["BIGINT", "STRING"]


@pytest.mark.parametrize("form", ["lines", "array", "old"])
def test_a_body_that_is_cut_in_a_row_is_not_over(form):
    body = _encode_body(form, [[1, "a"], [2, "bb"]])
    reading = ResponseParser()
    with pytest.raises(KsqlProtocolError, match="cut in the middle"):
        _read_in_pieces(reading, body[: body.rindex(b"bb")], [])


def test_rows_before_an_error_are_given_before_it():
    reading = ResponseParser()
    error = json.dumps({"error_code": 50000, "message": "the query broke"}).encode()
    assert reading.feed(_encode_body("lines", [[1, "a"]]) + error + b"\n") == [
        {"ID": 1, "NAME": "a"}
    ]
    with pytest.raises(KsqlError, match="the query broke") as raised:
        reading.feed_eof()
    assert (raised.value.code, raised.value.status) == (50000, 500)


def test_an_error_behind_rows_is_raised_with_the_piece_that_it_came_in():
    """It was held until the next piece, which a silent server does not send: the query was said
    to run."""
    reading = ResponseParser()
    reading.feed(_encode_body("lines", [[1, "a"]]) + b'{"error_code":50000,"message":"it broke"}\n')
    for _ in range(2):
        with pytest.raises(KsqlError, match="it broke"):
            reading.raise_pending()
    with pytest.raises(KsqlError, match="it broke"):
        reading.feed(b'[2,"b"]\n')


@pytest.mark.parametrize("form", ["lines", "array"])
def test_a_row_without_an_end_is_refused_behind_the_rows_before_it(form):
    reading = ResponseParser()
    begun = _encode_body(form, [[1, "a"]]).removesuffix(b"]") + b',[2,"'[form == "lines" :]
    assert reading.feed(begun) == [{"ID": 1, "NAME": "a"}]
    with pytest.raises(RowError, match="more than 16 MiB") as raised:
        for _ in range(MAX_ROW_BYTES // (1 << 20) + 1):
            reading.feed(b"x" * (1 << 20))
            reading.raise_pending()
    assert raised.value.status == 422


numbers = st.from_regex(
    r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,3})?", fullmatch=True
)


@pytest.mark.parametrize("form", ["lines", "array", "old"])
@given(written=st.lists(numbers, min_size=2, max_size=2), nested=st.booleans())
def test_numbers_keep_their_digits(form, written, nested):
    """12345678901234567890.123456789 was handed on as 1.2345678901234567e+19."""
    values = [f'{{"deep":[{number}]}}' if nested else number for number in written]
    body = _encode_body(form, [[100001, 100002]]).decode()
    for place, value in zip(["100001", "100002"], values, strict=True):
        body = body.replace(place, value)
    (row,) = _read_in_pieces(ResponseParser(), body.encode(), [])
    assert write_row(row) == f'{{"ID":{values[0]},"NAME":{values[1]}}}'.encode()


def _nest_arrays(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize("form", ["lines", "array", "old"])
@pytest.mark.parametrize(
    "value", [_nest_arrays(300), _nest_arrays(2000), b"NaN", b'"\\ud800"', b'"\xff"']
)
def test_a_row_that_cannot_be_handed_on_is_one_row(form, value):
    """It was a TypeError, or the end of the answer: the rows behind it in the piece were lost."""
    body = _encode_body(form, [[1, "a"], [2, "bad"], [3, "c"]]).replace(b'"bad"', value)
    first, bad, third = _read_in_pieces(ResponseParser(), body, [])
    assert [write_row(first), write_row(third)] == [b'{"ID":1,"NAME":"a"}', b'{"ID":3,"NAME":"c"}']
    with pytest.raises(RowError, match="a row cannot be"):
        write_row(bad)


def test_what_may_be_cut_is_no_row_that_cannot_be_handed_on():
    reading = ResponseParser()
    reading.feed(_encode_body("lines", []) + b'[1,"half]')
    with pytest.raises(KsqlProtocolError, match="no JSON"):
        reading.feed_eof()


@pytest.mark.parametrize(
    "header",
    [
        {"columnNames": None},
        {"columnNames": [["A"]]},
        {"columnNames": [1]},
        {"header": {"schema": "A BIGINT"}},
        {**OLD, "row": {"columns": 1}},
    ],
)
def test_columns_that_are_none_are_no_answer_of_ksqldb(header):
    """Some were a TypeError, which ended all queries of the sidecar, and began them anew."""
    reading = ResponseParser()
    with pytest.raises(KsqlProtocolError):
        reading.feed(json.dumps(header).encode() + b'\n{"row":{"columns":1}}\n')


def test_the_last_word_of_query_is_kept():
    reading = ResponseParser()
    _read_in_pieces(reading, _encode_body("old", []), [])
    assert reading.final_message == "done"


def test_an_error_of_query_may_be_a_text():
    with pytest.raises(KsqlError, match="no more"):
        ResponseParser().feed(b'[{"errorMessage":"no more"}')


def test_what_a_newer_server_may_add_is_passed_over():
    reading = ResponseParser()
    token = b'{"continuationToken":"abc"}\n'
    assert reading.feed(_encode_body("lines", []) + token + b'\n[1,"a"]\n') == [
        {"ID": 1, "NAME": "a"}
    ]


@pytest.mark.parametrize("body", [b"[[1]]\n", b"<html>\n", b'{"columnNames":["A"]}\n[1,2]\n'])
def test_a_response_that_is_not_of_ksqldb_is_an_error(body):
    with pytest.raises(KsqlProtocolError):
        reading = ResponseParser()
        reading.feed(body)
        reading.feed_eof()


def test_a_deleted_row_says_so():
    reading = ResponseParser()
    reading.feed(b"[" + json.dumps(OLD).encode())
    (row,) = reading.feed(b',{"row":{"columns":[1,null],"tombstone":true}}')
    assert row == {"ID": 1, "NAME": None, "$tombstone": True}


def test_types_with_commas_are_one_column():
    text = "`A` STRUCT<`X` INT, `Y` DECIMAL(4, 2)>, `B, ``C` ARRAY<STRING>"
    assert list(parse_schema(text)) == [
        ("A", "STRUCT<`X` INT, `Y` DECIMAL(4, 2)>"),
        ("B, `C", "ARRAY<STRING>"),
    ]
