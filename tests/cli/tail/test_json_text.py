"""The members' own text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.tail.json_text import split_elements, split_members

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4), st.sampled_from([None, 1]))
def test_an_object_is_the_sum_of_its_members(told, indent):
    found = split_members(json.dumps(told, indent=indent))
    assert {name: json.loads(text) for name, text in found.items()} == told


@given(st.lists(JSON, max_size=4), st.sampled_from([None, 1]))
def test_an_array_is_the_sum_of_its_elements(told, indent):
    assert [json.loads(text) for text in split_elements(json.dumps(told, indent=indent))] == told


def test_numbers_stay_as_they_are_written():
    text = '{"type":"records","records":[ 1.0 ,{"n":100000000000000000000000.10},"a"]}'
    assert split_elements(split_members(text)["records"]) == [
        "1.0",
        '{"n":100000000000000000000000.10}',
        '"a"',
    ]


@pytest.mark.parametrize("text", ["", "[]", "1", '{"a":1', '{"a":1} x', '{"a" 1}', '{"a":1,}'])
def test_what_is_no_object_is_refused(text):
    with pytest.raises(ValueError):
        split_members(text)


@pytest.mark.parametrize("text", ["{}", "[1", "[1,]", "[1 2]"])
def test_what_is_no_array_is_refused(text):
    with pytest.raises(ValueError):
        split_elements(text)
