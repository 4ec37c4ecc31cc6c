from __future__ import annotations

import json
import operator
from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.filter_strategies import filter_lists, records

from gateway.core.channel.filters import (
    MISSING,
    Condition,
    Filter,
    Filters,
    LazyValue,
    get_lookup_keys,
)
from gateway.core.log.record import Record, TopicPartition

VALUE = {"customer": "ada", "items": [{"sku": "x"}, {"sku": "y"}], "total": 12.5, "paid": True}
RECORD = Record(
    TopicPartition("orders", 0),
    1,
    0,
    0,
    b"ada",
    orjson.dumps(VALUE),
    [("region", b"eu"), ("region", b"us"), ("none", None)],
)


def matches_filters(*each: Filter, record: Record = RECORD) -> bool:
    return Filters(each).matches(record)


def test_without_filters_everything_passes():
    assert matches_filters()
    assert matches_filters(Filter())


def test_a_key_passes_only_when_it_is_equal():
    assert matches_filters(Filter(key=b"ada"))
    assert not matches_filters(Filter(key=b"adam"))
    assert not matches_filters(Filter(key=b""), record=RECORD._replace(key=None))
    assert matches_filters(Filter(key=b"ada"), record=RECORD._replace(value=None)), "a tombstone"


@pytest.mark.parametrize("region", [b"eu", b"us"])
def test_any_of_the_headers_of_one_name_may_be_equal(region: bytes):
    assert matches_filters(Filter(headers=(("region", region),)))


@pytest.mark.parametrize("header", [("region", b"asia"), ("Region", b"eu"), ("none", b"")])
def test_a_header_that_is_not_there_or_not_equal_does_not_pass(header: tuple[str, bytes]):
    assert not matches_filters(Filter(headers=(header,)))


def test_all_of_one_filter_must_hold_and_any_of_several():
    both = Filter(key=b"ada", headers=(("region", b"eu"), ("region", b"us")))
    neither = Filter(key=b"ada", headers=(("region", b"eu"), ("region", b"asia")))
    assert matches_filters(both)
    assert not matches_filters(neither)
    assert matches_filters(neither, both)
    assert not matches_filters(neither, Filter(key=b"bob"))


@pytest.mark.parametrize(
    ("pointer", "text"),
    [
        ("/customer", "ada"),
        ("/items/1/sku", "y"),
        ("/total", "12.5"),
        ("/paid", "true"),
    ],
)
def test_a_field_is_compared_as_text(pointer: str, text: str):
    assert matches_filters(Filter(fields=((pointer, text),)))
    assert not matches_filters(Filter(fields=((pointer, text + "0"),)))


@pytest.mark.parametrize(
    "pointer", ["/nothing", "/items", "/items/2/sku", "/items/-", "/items/01", "/customer/0", ""]
)
def test_what_is_not_there_or_not_a_scalar_equals_nothing(pointer: str):
    for text in ("", "null", "[]", "{}", "a"):
        assert not matches_filters(Filter(fields=((pointer, text),)))


RFC6901_5 = b"""{"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4,
                 "i\\\\j": 5, "k\\"l": 6, " ": 7, "m~n": 8, "~1": 9}"""


@pytest.mark.parametrize(
    ("pointer", "text"),
    [
        ("/foo/0", "bar"),
        ("/", "0"),
        ("/a~1b", "1"),
        ("/c%d", "2"),
        ("/e^f", "3"),
        ("/g|h", "4"),
        ("/i\\j", "5"),
        ('/k"l', "6"),
        ("/ ", "7"),
        ("/m~0n", "8"),
        ("/~01", "9"),
    ],
)
def test_pointers_are_those_of_rfc_6901(pointer: str, text: str):
    assert matches_filters(
        Filter(fields=((pointer, text),)), record=RECORD._replace(value=RFC6901_5)
    )


def test_the_empty_pointer_is_the_whole_value():
    assert matches_filters(Filter(fields=(("", "up"),)), record=RECORD._replace(value=b'"up"'))


@pytest.mark.parametrize("pointer", ["customer", "/a~", "/a~2b", "$.customer"])
def test_a_malformed_pointer_is_refused_with_what_to_write(pointer: str):
    with pytest.raises(ValueError, match="RFC 6901"):
        Filter(fields=((pointer, "x"),))


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"plain",
        b'{"a": NaN}',
        '{"a": "x"}'.encode("utf-16"),
        b'{"a": "x"} trailing',
        b'{"a": "x", "b": "\xff"}',
        b"[" * 5000,
    ],
)
def test_a_value_that_is_no_json_has_no_fields(value: bytes | None):
    record = RECORD._replace(value=value)
    assert not matches_filters(Filter(fields=(("/a", "x"),)), record=record)
    assert not matches_filters(Filter(fields=(("/a", "NaN"),)), record=record)


@pytest.mark.parametrize(
    "value", [rb'{"a": "x", "b": "\ud800"}', b'\xef\xbb\xbf{"a": "x", "b": 1e400}']
)
def test_a_character_in_another_field_hides_nothing(value: bytes):
    record = RECORD._replace(value=value)
    assert matches_filters(Filter(fields=(("/a", "x"),)), record=record)
    infinite = b"1e400" in value
    assert matches_filters(Filter(fields=(("/b", "1e400"),)), record=record) == infinite


def test_the_value_is_parsed_once_and_only_when_asked_for(monkeypatch: pytest.MonkeyPatch):
    parsed = []
    monkeypatch.setattr(orjson, "loads", lambda data: parsed.append(data) or VALUE)
    value = LazyValue(RECORD.value)
    Filters((Filter(key=b"bob", fields=(("/paid", "true"),)),)).matches(RECORD, value)
    assert parsed == []
    for text in ("a", "b", "ada"):
        Filters((Filter(fields=(("/customer", text), ("/paid", "true"))),)).matches(RECORD, value)
    assert parsed == [RECORD.value]


def test_the_text_of_a_field_is_encoded_once_for_all_conditions_on_it():
    """Each condition encoded it: 16,000 of one client took 2 s of a record with a long text."""
    value = LazyValue(orjson.dumps({"customer": "é" * 100}))
    texts = {id(value.get_field(("customer",))[1]) for _ in range(3)}
    assert len(texts) == 1
    assert value.get_field(("customer",)) == ("é" * 100, ("é" * 100).encode())
    assert value.get_field(("items",)) == (MISSING, None)


@pytest.mark.parametrize("value", [b'{"n": "%s"}', b'{"n": %s}'])
def test_a_number_that_takes_too_long_to_read_is_in_no_range(value: bytes):
    """A text of 100,000 digits took 0.5 ms for each range that looked at it."""
    by_key = Filter(key=Condition(bounds=(("lte", 1),)))
    by_field = Filter(fields=(("/n", Condition(bounds=(("lte", 1),))),))
    for digits, is_inside in ((1000, True), (100_000, False)):
        number = b"1." + b"0" * digits
        record = RECORD._replace(key=number, value=value % number)
        assert matches_filters(by_key, record=record) is is_inside
        assert matches_filters(by_field, record=record) is is_inside


def test_equal_filters_are_one_view():
    def view() -> Filters:
        return Filters((Filter(b"k", (("h", b"v"),), (("/a", "b"),)), Filter(b"other")))

    assert view() == view()
    assert hash(view()) == hash(view())
    assert view() != Filters(view().filters[::-1][:1])


scalars = st.text() | st.integers(-(2**53), 2**53) | st.booleans() | st.none()
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def iter_leaves(document, pointer=""):
    if isinstance(document, dict):
        for name, child in document.items():
            yield from iter_leaves(child, f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(document, list):
        for index, child in enumerate(document):
            yield from iter_leaves(child, f"{pointer}/{index}")
    else:
        yield pointer, document if isinstance(document, str) else orjson.dumps(document).decode()


@given(documents)
def test_every_leaf_of_any_document_is_found_by_its_pointer(document):
    record = RECORD._replace(value=orjson.dumps(document))
    for pointer, text in iter_leaves(document):
        assert matches_filters(Filter(fields=((pointer, text),)), record=record)
        assert not matches_filters(Filter(fields=((pointer, text + "x"),)), record=record)


def test_conditions_stand_where_a_text_may_stand():
    listed = Filter(key=Condition(one_of=("ada", "bob")))
    assert matches_filters(listed) and not matches_filters(
        listed, record=RECORD._replace(key=b"eve")
    )
    assert not matches_filters(listed, record=RECORD._replace(key=None))
    assert matches_filters(Filter(headers=(("region", Condition(prefix="u")),)))
    assert not matches_filters(Filter(headers=(("region", Condition(prefix="as")),)))
    assert matches_filters(Filter(fields=(("/total", Condition(bounds=(("gt", 12), ("lt", 13)))),)))
    assert not matches_filters(Filter(fields=(("/total", Condition(bounds=(("gt", 13),))),)))
    assert not matches_filters(
        Filter(key=b"ada", fields=(("/paid", Condition(one_of=("false",))),))
    )


@pytest.mark.parametrize(
    ("pointer", "there"),
    [("/customer", True), ("/items", True), ("/items/1", True), ("/null", True),
     ("/nothing", False), ("/items/2", False), ("/customer/0", False)],
)  # fmt: skip
def test_a_field_is_there_or_not_whatever_it_holds(pointer: str, there: bool):
    record = RECORD._replace(value=orjson.dumps({**VALUE, "null": None}))
    assert (
        matches_filters(Filter(fields=((pointer, Condition(exists=True)),)), record=record) is there
    )
    assert (
        matches_filters(Filter(fields=((pointer, Condition(exists=False)),)), record=record)
        is not there
    )


def test_nothing_is_there_in_a_value_that_is_no_json_and_in_a_tombstone():
    for value in (None, b"plain"):
        record = RECORD._replace(value=value)
        assert matches_filters(Filter(fields=(("/a", Condition(exists=False)),)), record=record)
        assert not matches_filters(Filter(fields=(("/a", Condition(exists=True)),)), record=record)


def test_a_header_without_a_value_is_there_and_has_no_text():
    assert matches_filters(Filter(headers=(("none", Condition(exists=True)),)))
    assert not matches_filters(Filter(headers=(("none", Condition(prefix="")),)))
    assert matches_filters(Filter(headers=(("nobody", Condition(exists=False)),)))
    assert not matches_filters(Filter(key=Condition(exists=False)))


@pytest.mark.parametrize(
    ("written", "bounds", "inside"),
    [
        (b"18446744073709551617", (("gt", 2**64),), True),
        (b"18446744073709551615", (("gt", 2**64),), False),
        (b"9007199254740993.5", (("gt", 9007199254740993),), True),
        (b"9007199254740992.5", (("gt", 9007199254740993),), False),
        (b"0.1", (("lte", Decimal("0.1")), ("gte", Decimal("0.1"))), True),
        (b"0.1000000000000000055511151231257827", (("lte", Decimal("0.1")),), False),
        (b"1.50", (("gte", Decimal("1.5")),), True),
        (b'"1.50"', (("gte", Decimal("1.5")),), True),
        (b"true", (("gte", 0),), False),
        (b"null", (("gte", 0),), False),
        (b"[1]", (("gte", 0),), False),
        (b"-0", (("gte", 0), ("lte", 0)), True),
    ],
)
def test_numbers_of_the_value_are_compared_by_all_of_their_digits(written, bounds, inside):
    """As doubles, several of these would be equal to the bound."""
    record = RECORD._replace(value=b'{"n": %s}' % written)
    assert (
        matches_filters(Filter(fields=(("/n", Condition(bounds=bounds)),)), record=record) is inside
    )


def test_a_long_whole_number_equals_its_own_digits_only():
    record = RECORD._replace(value=b'{"id": 18446744073709551617}')
    assert matches_filters(Filter(fields=(("/id", "18446744073709551617"),)), record=record)
    assert not matches_filters(Filter(fields=(("/id", "18446744073709551616"),)), record=record)
    assert matches_filters(Filter(fields=(("/id", Condition(prefix="184")),)), record=record)


def test_a_number_too_deep_for_its_digits_is_in_no_range():
    """Not that it were compared as a double, or the stream would end."""
    deep = b'{"n": 1.5000000000000000001, "deep": ' + b"[" * 1000 + b"]" * 1000 + b"}"
    bounds = (("lte", Decimal("1.5")),)  # as a double, it is 1.5
    assert not matches_filters(
        Filter(fields=(("/n", Condition(bounds=bounds)),)), record=RECORD._replace(value=deep)
    )


# Against an oracle that does it the slow way.

OPERATORS = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}


def matches_by_definition(filters: Filters, record: Record) -> bool:
    if filters.within is not None and not matches_by_definition(filters.within, record):
        return False
    value = {} if record.value is None else json.loads(record.value)
    return not filters.filters or any(
        (each.key is None or holds_condition(each.key, [] if record.key is None else [record.key]))
        and all(
            holds_condition(to, [v for n, v in record.headers if n == name])
            for name, to in each.headers
        )
        and all(holds_condition(to, lookup_pointer(value, pointer)) for pointer, to in each.fields)
        for each in filters.filters
    )


def lookup_pointer(value, pointer: str) -> list[bytes | None]:
    for step in pointer.split("/")[1:]:
        if not isinstance(value, dict) or step not in value:
            return []
        value = value[step]
    if isinstance(value, dict):
        return [None]
    return [(value if isinstance(value, str) else json.dumps(value)).encode()]


def holds_condition(condition: str | bytes | Condition, found: list[bytes | None]) -> bool:
    if not isinstance(condition, Condition):
        return (condition.encode() if isinstance(condition, str) else condition) in found
    if condition.exists is not None:
        return condition.exists is bool(found)
    return any(
        each is not None
        and (condition.one_of is None or each.decode() in condition.one_of)
        and each.decode().startswith(condition.prefix or "")
        and all(in_range(each.decode(), *bound) for bound in condition.bounds)
        for each in found
    )


def in_range(text: str, name: str, bound: int | Decimal) -> bool:
    try:
        number = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    except ValueError:
        return False
    return isinstance(number, Decimal) and OPERATORS[name](number, bound)


@given(filter_lists, records)
def test_filters_let_through_what_an_oracle_lets_through(filters: Filters, record: Record):
    assert filters.matches(record) == matches_by_definition(filters, record)


@given(filter_lists, filter_lists, filter_lists, records)
def test_narrowing_lets_through_what_both_do_and_nothing_else(route, client, more, record):
    both = route.narrow(client)
    assert both.matches(record) == (route.matches(record) and client.matches(record))
    again = both.narrow(more)
    assert again.matches(record) == (both.matches(record) and more.matches(record))
    other = route.narrow(client.narrow(more))
    assert other.matches(record) == again.matches(record)
    assert not again.matches(record) or route.matches(record)


@given(filter_lists)
def test_a_filter_that_is_written_out_reads_back_as_equal(filters: Filters):
    """Its text is what tells a view from another in every process."""
    again = eval(repr(filters))
    assert again == filters and hash(again) == hash(filters)


def test_the_fields_looked_at_are_known_through_every_narrowing():
    own, client = Filter(fields=(("/a", "1"),)), Filter(key=b"k", fields=(("/b", "1"),))
    assert Filters((own,)).narrow(Filters((client,))).pointers == {"/a", "/b"}


def one_of(*texts: str) -> Condition:
    return Condition(one_of=texts)


@pytest.mark.parametrize(
    ("filters", "keys"),
    [
        (Filters((Filter(key=b"a"),)), {b"a"}),
        (Filters((Filter(key=b"a", headers=(("h", b"1"),)), Filter(key=one_of("b", "")))),
         {b"a", b"b", b""}),
        (Filters((Filter(key=one_of(*"abcd")),)), {b"a", b"b", b"c", b"d"}),
        (Filters((Filter(key=one_of(*"abcde")),)), None),
        (Filters((Filter(key=one_of(*"abc")), Filter(key=one_of(*"de")))), None),
        (Filters(tuple(Filter(key=text.encode()) for text in "abcde")), None),
        (Filters((Filter(key=b"a"), Filter(headers=(("h", b"1"),)))), None),
        (Filters((Filter(key=Condition(prefix="a")),)), None),
        (Filters((Filter(headers=(("h", b"1"),)),), within=Filters((Filter(key=b"a"),))), {b"a"}),
        (Filters((Filter(key=b"a"),), within=Filters((Filter(key=one_of(*"abcde")),))), {b"a"}),
        (Filters(), None),
    ],
)  # fmt: skip
def test_keys_are_looked_up_if_no_others_can_pass_and_they_are_few(filters, keys):
    assert get_lookup_keys(filters) == keys


def test_a_view_that_shows_everything_has_no_keys_to_look_up():
    assert get_lookup_keys(None) is None
