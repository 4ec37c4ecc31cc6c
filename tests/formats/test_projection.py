from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.channel.filters import MISSING, LazyValue, parse_pointer
from gateway.core.log.record import Record, TopicPartition
from gateway.formats import FORMATS, create_format
from gateway.formats.projection import project_format

VALUE = {"id": 7, "customer": {"name": "ada", "card": "4711"}, "items": [{"a": 1}, {"a": 2}]}


def record(value: bytes | None, **fields: Any) -> Record:
    return Record(TopicPartition("orders", 0), 1, 0, 0, b"key", value, (("h", b"1"),))._replace(
        **fields
    )


def shown(value: Any, *fields: str) -> Any:
    data = value if isinstance(value, bytes) else orjson.dumps(value)
    name, payload = create_format("value", fields=fields)(record(data))
    assert name is None
    return orjson.loads(payload)


def test_only_these_fields_are_shown():
    assert shown(VALUE, "/id") == {"id": 7}
    assert shown(VALUE, "/customer/name", "/id") == {"customer": {"name": "ada"}, "id": 7}
    assert shown(VALUE, "/customer", "/customer/name") == {"customer": VALUE["customer"]}


def test_what_is_not_there_leaves_nothing_behind():
    assert shown(VALUE, "/nothing", "/customer/none", "/id/x", "/items/7") == {}
    assert shown(VALUE, "/nothing", "/id") == {"id": 7}


def test_an_element_of_an_array_stays_where_it_is():
    assert shown(VALUE, "/items/1/a") == {"items": [None, {"a": 2}]}
    assert shown(VALUE, "/items/0") == {"items": [{"a": 1}]}


@pytest.mark.parametrize(
    "value",
    [b"[1]", b"7", b'"secret"', b"null"],
)
@pytest.mark.parametrize("format", FORMATS)
def test_a_value_that_is_no_json_object_becomes_null(format: str, value: bytes):
    plain = create_format(format)(record(b"null"))
    assert create_format(format, fields=["/id"])(record(value)) == plain


@pytest.mark.parametrize("format", FORMATS)
def test_a_tombstone_stays_one_and_key_and_headers_stay(format: str):
    whole, part = create_format(format), create_format(format, fields=["/id"])
    assert part(record(None)) == whole(record(None))
    assert part(record(b'{"id": 7, "secret": 1}')) == whole(record(b'{"id":7}'))


@pytest.mark.parametrize(
    "number", [b"1.50", b"18446744073709551617", b"-0", b"1E5", b"0.1000000000000000055", b"-0.0"]
)
def test_numbers_stay_as_they_are_written(number: bytes):
    value = b'{"a": %s, "deep": {"b": [1, %s]}, "hidden": 1}' % (number, number)
    _, payload = create_format("value", fields=["/a", "/deep"])(record(value))
    assert payload == b'{"a":%s,"deep":{"b":[1,%s]}}' % (number, number)


def test_of_a_name_that_is_there_twice_the_last_is_shown():
    """As a filter sees it: two readings must not differ in what they show."""
    for number in (b"1", b"1.5"):
        _, payload = create_format("value", fields=["/a"])(record(b'{"a": 0, "a": %s}' % number))
        assert payload == b'{"a":%s}' % number


@pytest.mark.parametrize("value", [b"plain", b"", b"\xff", b'{"id": NaN}', b'{"id": 1'])
@pytest.mark.parametrize("format", FORMATS)
def test_a_value_that_is_no_json_is_an_error(format: str, value: bytes):
    """It was null, as if the record had no such field."""
    for binary in ("error", "base64"):
        name, payload = create_format(format, binary=binary, fields=["/id"])(record(value))
        assert (name, orjson.loads(payload)["code"]) == ("error", "value-not-json")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (rb'{"a": [1.50, "\ud83d\\"], "b": 1}', rb'{"a":[1.50,"\ud83d\\"]}'),
        (rb'{"a": {"\ude00": null}}', rb'{"a":{"\ude00":null}}'),
        (rb'{"a": 1, "b": "\ud83d"}', b'{"a":1}'),
        (b'\xef\xbb\xbf{"a": 1e400}', b'{"a":1e400}'),
        ('{"a": "\ufffd\\u0041"}'.encode(), '{"a":"\ufffdA"}'.encode()),
    ],
)
def test_escapes_that_stand_for_no_character_stay(value: bytes, expected: bytes):
    assert create_format("value", fields=["/a"])(record(value)) == (None, expected)


@pytest.mark.parametrize(("depth", "is_shown"), [(300, True), (1000, False)])
def test_what_is_nested_too_deep_to_be_read_exactly_is_null(depth: int, is_shown: bool):
    """Not that it ended the stream."""
    deep = b'{"a":' + b"[" * depth + b"1.5" + b"]" * depth + b"}"
    expected = deep if is_shown else b"null"
    assert create_format("value", fields=["/a"])(record(deep)) == (None, expected)


def test_a_malformed_pointer_is_refused():
    with pytest.raises(ValueError, match="RFC 6901"):
        project_format(create_format("value"), ["/a~2"])


documents = st.recursive(
    st.integers(0, 3) | st.floats(allow_nan=False, allow_infinity=False) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab0"), inner),
    max_leaves=8,
)
pointers = st.lists(
    st.lists(st.sampled_from("ab01"), min_size=1, max_size=3).map(lambda s: "/" + "/".join(s)),
    min_size=1,
    max_size=3,
)


@given(st.dictionaries(st.sampled_from("ab0"), documents), pointers)
def test_a_pointer_finds_what_it_finds_in_the_value_and_nothing_else_is_there(document, fields):
    got = shown(document, *fields)
    before, after = LazyValue(orjson.dumps(document)), LazyValue(orjson.dumps(got))
    for field in fields:
        assert after.get_value(parse_pointer(field)) == before.get_value(parse_pointer(field))
    paths = [parse_pointer(field) for field in fields]
    for path, leaf in leaves(got):
        inside = any(path[: len(each)] == each for each in paths)
        assert inside or leaf is None, "null stands before an element of an array only"
        assert before.get_value(path) is not MISSING


def leaves(document: Any, path: tuple[str, ...] = ()) -> Any:
    if isinstance(document, dict):
        for name, child in document.items():
            yield from leaves(child, (*path, name))
    elif isinstance(document, list):
        for index, child in enumerate(document):
            yield from leaves(child, (*path, str(index)))
    else:
        yield path, document
