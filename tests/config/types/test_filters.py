"""What a client may write for a filter, and what it is told when it is none."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import parse_fields, parse_filter, parse_filters
from gateway.config.types.condition import ShortCondition, merge_conditions
from gateway.config.types.filters import MAX_CONDITIONS, MAX_FILTER_CHARS, MAX_LISTED_VALUES
from gateway.core.channel.filters import Condition, Filter, Filters
from gateway.core.log.record import Record, TopicPartition

RECORD = Record(
    TopicPartition("orders", 0), 1, 0, 0, b"alice",
    b'{"amount": 12, "status": "paid", "a~b": 1, "email": null}',
    (("region", b"eu"),),
)  # fmt: skip


def one(filter: Filter) -> Filters:
    return Filters((filter,))


def above(**bounds: int | Decimal) -> Condition:
    return Condition(bounds=tuple(bounds.items()))


@pytest.mark.parametrize(
    ("text", "filter"),
    [
        ("key=alice", Filter(key=b"alice")),
        ("key=", Filter(key=b"")),
        ("key= a = b ", Filter(key=b" a = b ")),
        ("key^=al", Filter(key=Condition(prefix="al"))),
        ("key", Filter(key=Condition(exists=True))),
        ("!key", Filter(key=Condition(exists=False))),
        ("key=in(a,b)", Filter(key=Condition(one_of=("a", "b")))),
        ("header.region=eu", Filter(headers=(("region", b"eu"),))),
        ("header.x-y.z>=1", Filter(headers=(("x-y.z", above(gte=1)),))),
        ("!header.region", Filter(headers=(("region", Condition(exists=False)),))),
        ("/amount>=10", Filter(fields=(("/amount", above(gte=10)),))),
        ("/amount<20.50", Filter(fields=(("/amount", above(lt=Decimal("20.5"))),))),
        ("/amount>-1e3", Filter(fields=(("/amount", above(gt=-1000)),))),
        ("/amount<=18446744073709551617",
         Filter(fields=(("/amount", above(lte=18446744073709551617)),))),
        ("/status=in(a,b)", Filter(fields=(("/status", Condition(one_of=("a", "b"))),))),
        ("/status=in(a)", Filter(fields=(("/status", "a"),))),
        ("/email", Filter(fields=(("/email", Condition(exists=True)),))),
        ("!/email", Filter(fields=(("/email", Condition(exists=False)),))),
        ("/a~1b/0=x=y", Filter(fields=(("/a~1b/0", "x=y"),))),
    ],
)  # fmt: skip
def test_the_short_form_is_one_condition(text: str, filter: Filter):
    assert parse_filter(text) == one(filter)


@pytest.mark.parametrize(
    ("given", "filter"),
    [
        ({"key": "alice"}, Filter(key=b"alice")),
        ({"key": {"in": ["b", "a", "b"]}}, Filter(key=Condition(one_of=("a", "b")))),
        ({"key": {"in": ["a"]}}, Filter(key=b"a")),
        ({"headers": {"n": 7, "b": True}}, Filter(headers=(("b", b"true"), ("n", b"7")))),
        ({"value": {"/n": 1.50}}, Filter(fields=(("/n", "1.5"),))),
        ({"value": {"/n": 18446744073709551617}}, Filter(fields=(("/n", "18446744073709551617"),))),
        ({"value": {"/n": {"gte": 1, "lt": "2.0"}}}, Filter(fields=(("/n", above(gte=1, lt=2)),))),
        ({"value": {"/n": {"prefix": "a", "exists": True}}},
         Filter(fields=(("/n", Condition(prefix="a")),))),
    ],
)  # fmt: skip
def test_json_is_read_as_text_and_as_values(given: dict[str, Any], filter: Filter):
    assert parse_filter(given) == one(filter)
    assert parse_filter(json.dumps(given)) == one(filter)
    assert parse_filter([given]) == one(filter)


def test_numbers_of_a_text_keep_all_of_their_digits():
    text = '{"value": {"/n": {"gt": 0.1000000000000000055511151231257827}}}'
    exact = above(gt=Decimal("0.1000000000000000055511151231257827"))
    assert parse_filter(text) == one(Filter(fields=(("/n", exact),)))


def test_a_list_is_an_or_in_whatever_order():
    ada, bob = {"key": "ada"}, {"key": "bob"}
    assert parse_filter([ada, bob]) == parse_filter([bob, ada, ada])
    assert parse_filter([{"key": "alice"}, bob]).matches(RECORD)
    assert not parse_filter([ada, bob]).matches(RECORD)


def test_what_is_repeated_is_an_and():
    assert parse_filters(["key^=al", "/amount>=10", '{"value": {"/status": "paid"}}']).matches(
        RECORD
    )
    assert not parse_filters(["key^=al", "/amount>=13"]).matches(RECORD)
    assert not parse_filters([{"key": "alice"}, {"key": "bob"}]).matches(RECORD)
    assert not parse_filters(["key=alice", "key=bob"]).matches(RECORD)
    assert parse_filters(["/amount>10", "/amount>11"]).matches(RECORD)
    assert not parse_filters(["/amount>10", "/amount>12"]).matches(RECORD)


def test_short_forms_make_one_range_however_they_are_ordered():
    """Then equal choices share a channel."""
    both = parse_filter({"key": "a", "value": {"/n": {"gte": 10, "lt": 20}}})
    assert parse_filters(["/n>=10", "/n<20", "key=a"]) == both
    assert parse_filters(["key=a", "/n<20", "/n>=10"]) == both
    assert parse_filters(["/n>1", "/n>2"]) == parse_filters(["/n>2", "/n>1"])


def test_no_filter_is_none():
    assert parse_filter(None) == parse_filters([]) == parse_filters([None]) == Filters()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "empty key=ada"),
        ("amount>10", "'amount>10' understood /amount>=10"),
        ("key!=a", "understood"),
        ("/status!=paid", "operator ^= JSON"),  # was the field "status!"
        ("header.region!=us", "operator"),
        ("/n!>5", "operator"),
        ("/status==paid", "operator"),
        ("/n=>5", "operator"),
        ("/n<>5", "operator"),
        ("key>", "key.gt number"),
        ("/n>=ten", "value['/n'].gte number 'ten' 10"),
        ("!/n=1", "understood"),
        ("header.=a", "understood"),
        ("/a~2=b", "JSON pointer"),
        ("keys=a", "understood"),
        ('{"key": "a"', "JSON check"),
        ('{"key": NaN}', "JSON NaN"),
        ('{"key": "\\ud800"}', "surrogate leave"),
        ("[" * 9000, "JSON check"),
        ('{"value": {"/n": ' + "9" * 5000 + "}}", "JSON check"),
        ([], "empty list leave"),
        ({}, "every record add"),
        ([{"key": "a"}, {}], "[1] every record"),
        ({"headers": {}}, "every record"),
        ({"kee": "a"}, "unknown 'kee' 'key'?"),
        ({"key": {"prefx": "a"}}, "key: unknown 'prefx' 'prefix'?"),
        ({"key": {}}, "key: without add"),
        ({"key": None}, "key: text null exists"),
        ({"key": ["a"]}, "key: text ['a']"),
        ({"key": {"in": "a"}}, "key.in: list 'a'"),
        ({"key": {"in": []}}, "key.in: list []"),
        ({"key": {"in": [{}]}}, "key.in: text {}"),
        ({"key": {"prefix": 1}}, "key.prefix: text 1 quotes"),
        ({"key": {"exists": "yes"}}, "key.exists: true false 'yes'"),
        ({"key": {"exists": False, "prefix": "a"}}, "key: exists: false ask"),
        ({"headers": ["a"]}, "headers: object ['a']"),
        ({"headers": {"h": None}}, "headers['h']: text null"),
        ({"value": {"amount": 1}}, "value: 'amount' JSON pointer /region"),
        ({"value": {"/n": {"gt": True}}}, "gt: number true"),
        ({"value": {"/n": {"gt": None}}}, "gt: number null"),
        ({"value": {"/n": {"gt": "0x1"}}}, "gt: number '0x1'"),
        ({"value": {"/n": float("nan")}}, "nan number"),
        ({"value": {7: "a"}}, "value: text 7"),
        ("{}x", "JSON"),
        (7, "object 7 {'key': 'ada'}"),
        (["key=a"], "[0] object 'key=a'"),
    ],
)  # fmt: skip
def test_what_is_no_filter_is_told_what_to_write(given: object, words: str):
    with pytest.raises(ValueError) as raised:
        parse_filter(given)
    assert all(word in str(raised.value) for word in words.split()), raised.value
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    "given",
    [
        ["key=a" + "a" * MAX_FILTER_CHARS],
        [{"key": "a" * (MAX_FILTER_CHARS + 1)}],
        [{"key": {"in": ["a" * 500 + str(n) for n in range(MAX_LISTED_VALUES)]}}],
        [{"key": {"in": [str(n) for n in range(MAX_LISTED_VALUES + 1)]}}],
        ["key=in(" + ",".join(map(str, range(MAX_LISTED_VALUES + 1))) + ")"],
        [[{"key": str(n)} for n in range(MAX_CONDITIONS + 1)]],
        [{"value": {f"/{n}": 1 for n in range(MAX_CONDITIONS + 1)}}],
        [f"/f{n}" for n in range(MAX_CONDITIONS + 1)],
        [{"value": {"/a" * 31 + f"/{n}": {"exists": True}}} for n in range(MAX_CONDITIONS // 4)],
        [{"key": "a"}] * (MAX_CONDITIONS + 1),
        [{"value": {"/a" * 600: 1}}],
    ],
    ids=range(11),
)
def test_a_client_cannot_make_a_filter_dear(given: list[object]):
    with pytest.raises(ValueError, match=r"more than|at most"):
        parse_filters(given)


def test_what_is_within_the_bounds_is_read():
    parse_filter({"key": {"in": [str(n) for n in range(MAX_LISTED_VALUES)]}})
    parse_filter([{"key": str(n)} for n in range(MAX_CONDITIONS)])
    parse_filters([f"/f{n}" for n in range(MAX_CONDITIONS)])


@given(st.text() | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["key", "headers", "value", "/a", "in", "gt", "prefix", "exists"])
        | st.text(max_size=3), inner, max_size=3),
))  # fmt: skip
def test_anything_at_all_is_a_filter_or_told_to_be_none(anything: object):
    try:
        made = parse_filter(anything)
    except ValueError:
        return
    made.matches(RECORD)
    assert parse_filter(anything) == made


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ("/id,/customer/name", ("/customer/name", "/id")),
        (["/id", "/a,b", "/id"], ("/a,b", "/id")),
        ('["/a,b"]', ("/a,b",)),
        ("", ()),
        (None, ()),
    ],
)
def test_fields_are_pointers_in_an_order_of_their_own(given: object, fields: tuple[str, ...]):
    assert parse_fields(given) == fields


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("id", "'id' /region"),
        ("/a,,/b", "'' JSON pointer"),
        ("/a~2", "JSON pointer"),
        ([], "pointers /id"),
        ([7], "text 7"),
        ({"/a": 1}, "pointers"),
        ("[1", "JSON"),
        (["/f"] * (MAX_LISTED_VALUES + 1), "more than"),
        ("/a\ud800", "surrogate"),
    ],
)
def test_what_are_no_fields_is_told(given: object, words: str):
    with pytest.raises(ValueError) as raised:
        parse_fields(given)
    assert all(word in str(raised.value) for word in words.split()), raised.value


@given(
    st.lists(
        st.tuples(st.sampled_from(["/a", "/b", "key", "header.h"]),
                  st.sampled_from(["=", ">=", "<", "^="]), st.sampled_from("123")),
        max_size=30,
    )
)  # fmt: skip
def test_short_forms_are_as_few_filters_as_can_be(given: list[tuple[str, str, str]]):
    """They are put where there is room for their kind, without looking for it."""
    shorts = [ShortCondition.parse("".join(each)) for each in given]
    found = merge_conditions(shorts)
    kinds = Counter((site, sign) for site, sign, _ in given)
    assert len(found) == max(kinds.values(), default=0)
    said = [
        (name, kind, value)
        for one in found
        for part, conditions in one.items()
        for name, condition in ([("key", conditions)] if part == "key" else conditions.items())
        for kind, value in condition.items()
    ]
    assert len(said) == len(given)


def test_more_filters_than_there_may_be_conditions_are_refused_unread():
    with pytest.raises(ValueError, match="65 filters are given; give at most 64"):
        parse_filters(["{"] * 65)
    with pytest.raises(ValueError, match="more than 16384 characters"):
        parse_filters(["{" + " " * 9000] * 2)
    with pytest.raises(ValueError, match="33 steps"):
        parse_filters([json.dumps({"value": {"/a" * 33: "x"}})])
