"""Views that are equal show the same, so that whoever finds a channel by one is shown what is its
own: filters of values that Python takes for equal, or that look alike, against every record."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.filter_oracle import FilterRecord, matches_filters

from gateway.config.types.filters import parse_filter
from gateway.core.channel.filter_index import FilterIndex
from gateway.core.channel.filters import Filters
from gateway.core.log.record import Record, TopicPartition
from gateway.hub.reads.view import View

TP = TopicPartition("orders", 0)

# As literals of JSON: several of each number, and texts that could be taken for them.
NUMBERS = (
    "0", "-0", "0.0", "-0.0", "0e5", "1", "1.0", "1e0", "10E-1", "1.50", "1.5", "2.5", "2.50", "10",
    "1e1", "100e-1", "-1", "-1.0", "9007199254740992", "9007199254740993", "9223372036854775807",
    "9223372036854775808", "18446744073709551615", "18446744073709551616", "18446744073709551617",
    "18446744073709551616.0", "1.8446744073709552e19", "-9223372036854775809", "1e-400", "5e-324",
    "123456789012345678901234567890", "0.1", "0.10000000000000000001",
)  # fmt: skip
TEXTS = (
    "", "0", "-0", "0.0", "-0.0", "1", "1.0", "1e0", "10", "2.50", "true", "True", "false", "null",
    "None", "\u00e9", "e\u0301", "\u00c9", "a", "A", "a\0", "a ", "b'1'", '"1"', "\u212a", "k", "K",
    "\ud55c", "\u1112\u1161\u11ab", "18446744073709551616", "18446744073709551617",
)  # fmt: skip
LITERALS = (*NUMBERS, *map(json.dumps, TEXTS), "true", "false", "null", "[]", "{}", "[1]")
SCALARS = [*TEXTS, *map(json.loads, NUMBERS), True, False]
FINITE = [each for each in SCALARS if not isinstance(each, str)]


def record(key: str | None, value: str | None, headers: list[tuple[str, str | None]]) -> Record:
    told = [(name, None if text is None else text.encode()) for name, text in headers]
    sent = (None if each is None else each.encode() for each in (key, value))
    return Record(TP, 1, 0, 0, *sent, headers=told)


def show_record(record: Record) -> FilterRecord:
    return FilterRecord(record.key, record.value, record.headers)


RECORDS = [
    *(record(text, None, [("x", text)]) for text in (*TEXTS, *NUMBERS)),
    *(record(None, f'{{"a":{literal}}}', []) for literal in LITERALS),
    record(None, None, [("x", None)]),
    record("b", '{"a":1,"a":true}', [("x", "1"), ("x", "true")]),
    record("b", '{"a":true,"\\u0061":1.0}', [("X", "1")]),
    record("b", '{"\\u0061":"\\u0031","a\\u0000":1}', []),
    record("b", '\ufeff{"a":1}', []),
    record("b", '{"a":NaN}', []),
]
WHERE: Mapping[str, Any] = {
    "key": lambda wanted: {"key": wanted},
    "header": lambda wanted: {"headers": {"x": wanted}},
    "field": lambda wanted: {"value": {"/a": wanted}},
}
HOW: Mapping[str, Any] = {
    "equals": lambda scalar: scalar,
    "in": lambda scalar: {"in": [scalar, "other"]},
    "gte": lambda scalar: {"gte": scalar},
    "lt": lambda scalar: {"lt": scalar},
}


def build_view(raw: Any) -> View:
    return View(("orders",), parse_filter(raw), "value", "error")


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("how", HOW)
def test_filters_of_scalars_that_look_alike_are_equal_only_if_they_let_the_same_through(where, how):
    """1, True and 1.0 are one key of a dictionary, and so are filters made of them unless each is
    made the text that it is compared as."""
    scalars = SCALARS if how in ("equals", "in") else FINITE[:-2]  # no truth value is a bound
    raws = [WHERE[where](HOW[how](scalar)) for scalar in scalars]
    verdicts: dict[View, list[bool]] = {}
    for raw in raws:
        view = build_view(raw)
        found = [view.filters.matches(each) for each in RECORDS]
        assert found == [matches_filters(raw, show_record(each)) for each in RECORDS], raw
        assert verdicts.setdefault(view, found) == found, raw


def test_views_that_are_equal_in_value_and_not_in_type_are_told_apart():
    """By every part that decides what is seen."""
    one, other = build_view({"key": "1"}), build_view({"value": {"/a": "1"}})
    made = [
        one, other, build_view({"headers": {"a": "1"}}), build_view({"key": {"prefix": "1"}}),
        build_view({"key": {"in": ["1", "2"]}}), build_view([{"key": "1"}, {"key": "2"}]),
        View(("orders",), Filters(), "value", "error"),
        View(("orders",), one.filters.narrow(other.filters), "value", "error"),
        View(("orders",), other.filters.narrow(one.filters), "value", "error"),
        View(("orders",), one.filters, "value", "error", ("/a",)),
        View(("orders",), one.filters, "value", "error", ("/a", "/b")),
        View(("orders",), one.filters, "value", "base64"),
        View(("orders",), one.filters, "envelope", "error"),
        View(("orders",), one.filters, "value", "error", interval=1.0),
        View(("orders",), one.filters, "value", "error", cluster="other"),
        View(("orders", "refunds"), one.filters, "value", "error"),
    ]  # fmt: skip
    assert len(set(made)) == len(made)
    for first, second in itertools.combinations(made, 2):
        assert first != second


# Random filters and values of a few members, so that they meet.

members = st.sampled_from(["a", "b", "\\u0061", "c/d", "~"])
literals = st.sampled_from(LITERALS)
nested = (
    literals
    | st.builds(
        lambda pairs: "{" + ",".join(f'"{name}":{each}' for name, each in pairs) + "}",
        st.lists(st.tuples(members, literals), max_size=3),
    )
    | st.builds(lambda some: "[" + ",".join(some) + "]", st.lists(literals, max_size=2))
)
objects = st.builds(
    lambda pairs, space: "{" + ",".join(f'"{name}"{space}:{each}' for name, each in pairs) + "}",
    st.lists(st.tuples(members, nested), max_size=4),
    st.sampled_from(["", " ", "\n\t"]),
)
texts = st.sampled_from((*TEXTS, *NUMBERS))
records = st.builds(
    record,
    st.none() | texts,
    st.none() | objects | objects | nested | st.sampled_from(["", "no json", '{"a":1', "\ufeff{}"]),
    st.lists(st.tuples(st.sampled_from("xyX"), st.none() | texts), max_size=3),
)
scalars = st.sampled_from(SCALARS)
bounds = st.dictionaries(
    st.sampled_from(["gt", "gte", "lt", "lte"]), st.sampled_from(FINITE[:-2]), max_size=2
)
conditions = st.builds(
    lambda listed, prefix, bounds: {**listed, **prefix, **bounds},
    st.just({}) | st.lists(scalars, min_size=1, max_size=3).map(lambda listed: {"in": listed}),
    st.just({}) | texts.map(lambda text: {"prefix": text[:1]}),
    bounds,
).filter(bool) | st.booleans().map(lambda there: {"exists": there})
wanted = scalars | conditions
pointers = st.sampled_from(["/a", "/b", "/a/a", "/a/0", "/c~1d", "/~0", "/a/c~1d"])
each_filter = st.fixed_dictionaries(
    {},
    optional={
        "key": wanted,
        "headers": st.dictionaries(st.sampled_from("xyX"), wanted, min_size=1, max_size=2),
        "value": st.dictionaries(pointers, wanted, min_size=1, max_size=2),
    },
).filter(bool)
raw_filters = each_filter | st.lists(each_filter, min_size=1, max_size=3)


@given(
    st.lists(st.tuples(raw_filters, st.none() | raw_filters), max_size=8),
    st.lists(records, min_size=1, max_size=8),
)
def test_views_found_by_value_and_by_the_index_show_what_an_oracle_lets_through(raws, some):
    """Channels in an index by their views, as clients find them and records do: each client's
    records are those that its own filter, as it wrote it, lets through."""
    index: FilterIndex[int] = FilterIndex()
    channels: dict[View, int] = {}
    whose: list[int] = []
    for own, chosen in raws:
        filters = parse_filter(own)
        if chosen is not None:
            filters = filters.narrow(parse_filter(chosen))
        view = View(("orders",), filters, "value", "error")
        if view not in channels:
            channels[view] = len(channels)
            index.add(channels[view], view.filters)
        whose.append(channels[view])
    for each in some:
        found = set(index.find(each))
        for (own, chosen), channel in zip(raws, whose, strict=True):
            due = matches_filters(own, show_record(each)) and (
                chosen is None or matches_filters(chosen, show_record(each))
            )
            assert (channel in found) == due, (own, chosen, each)


@given(raw_filters)
def test_a_filter_is_the_same_view_however_it_comes(raw: Any):
    """As JSON in a query, whose fractions are decimals, and as a message, whose are floats."""
    assert build_view(json.dumps(raw)) == build_view(raw)
