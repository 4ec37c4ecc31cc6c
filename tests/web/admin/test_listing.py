"""A list of many streams, in pieces that hold nobody up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import RequestError
from gateway.web.admin.listing import ListCursor


@given(st.integers(1, 256), st.integers(0, 10**12))
def test_a_place_is_read_as_it_is_written(worker: int, number: int):
    assert ListCursor.parse(str(ListCursor(worker, number))) == (worker, number)


@given(st.text(max_size=8))
def test_what_is_no_place_is_refused(text: str):
    try:
        place = ListCursor.parse(text)
    except RequestError as exc:
        assert exc.status == 400
    else:
        assert place.worker >= 0 and place.number >= 0


@pytest.mark.parametrize("text", ["", "1", "-", "1-", "-1", "1-x", "1--1", "1-²", "1-1" + "0" * 20])
def test_numbers_that_are_none_are_no_place(text: str):
    with pytest.raises(RequestError, match="take it from `next`"):
        ListCursor.parse(text)
