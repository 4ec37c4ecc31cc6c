from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import filters
from gateway.core.filters import Filter, Filters, LazyValue
from gateway.core.record import Record, TopicPartition

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


def passes(*each: Filter, record: Record = RECORD) -> bool:
    return Filters(each).matches(record)


def test_without_filters_everything_passes():
    assert passes()
    assert passes(Filter())


def test_a_key_passes_only_when_it_is_equal():
    assert passes(Filter(key=b"ada"))
    assert not passes(Filter(key=b"adam"))
    assert not passes(Filter(key=b""), record=RECORD._replace(key=None))


@pytest.mark.parametrize("region", [b"eu", b"us"])
def test_any_of_the_headers_of_one_name_may_be_equal(region: bytes):
    assert passes(Filter(headers=(("region", region),)))


@pytest.mark.parametrize("header", [("region", b"asia"), ("Region", b"eu"), ("none", b"")])
def test_a_header_that_is_not_there_or_not_equal_does_not_pass(header: tuple[str, bytes]):
    assert not passes(Filter(headers=(header,)))


def test_all_of_one_filter_must_hold_and_any_of_several():
    both = Filter(key=b"ada", headers=(("region", b"eu"), ("region", b"us")))
    neither = Filter(key=b"ada", headers=(("region", b"eu"), ("region", b"asia")))
    assert passes(both)
    assert not passes(neither)
    assert passes(neither, both)
    assert not passes(neither, Filter(key=b"bob"))


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
    assert passes(Filter(fields=((pointer, text),)))
    assert not passes(Filter(fields=((pointer, text + "0"),)))


@pytest.mark.parametrize(
    "pointer", ["/nothing", "/items", "/items/2/sku", "/items/-", "/items/01", "/customer/0", ""]
)
def test_what_is_not_there_or_not_a_scalar_equals_nothing(pointer: str):
    for text in ("", "null", "[]", "{}", "a"):
        assert not passes(Filter(fields=((pointer, text),)))


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
    assert passes(Filter(fields=((pointer, text),)), record=RECORD._replace(value=RFC6901_5))


def test_the_empty_pointer_is_the_whole_value():
    assert passes(Filter(fields=(("", "up"),)), record=RECORD._replace(value=b'"up"'))


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
        b'{"a": "x", "b": "\\ud800"}',
        '{"a": "x"}'.encode("utf-16"),
        b'\xef\xbb\xbf{"a": "x"}',
        b'{"a": "x"} trailing',
        b'{"a": "x", "b": "\xff"}',
        b"[" * 5000,
    ],
)
def test_a_value_that_is_not_strict_json_has_no_fields(value: bytes | None):
    record = RECORD._replace(value=value)
    assert not passes(Filter(fields=(("/a", "x"),)), record=record)
    assert not passes(Filter(fields=(("/a", "NaN"),)), record=record)


def test_the_value_is_parsed_once_and_only_when_asked_for(monkeypatch: pytest.MonkeyPatch):
    parsed = []
    monkeypatch.setattr(filters, "_strict_json", lambda data: parsed.append(data) or VALUE)
    value = LazyValue(RECORD.value)
    Filters((Filter(key=b"bob", fields=(("/paid", "true"),)),)).matches(RECORD, value)
    assert parsed == []
    for text in ("a", "b", "ada"):
        Filters((Filter(fields=(("/customer", text), ("/paid", "true"))),)).matches(RECORD, value)
    assert parsed == [RECORD.value]


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


def leaves(document, pointer=""):
    if isinstance(document, dict):
        for name, child in document.items():
            yield from leaves(child, f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(document, list):
        for index, child in enumerate(document):
            yield from leaves(child, f"{pointer}/{index}")
    else:
        yield pointer, document if isinstance(document, str) else orjson.dumps(document).decode()


@given(documents)
def test_every_leaf_of_any_document_is_found_by_its_pointer(document):
    record = RECORD._replace(value=orjson.dumps(document))
    for pointer, text in leaves(document):
        assert passes(Filter(fields=((pointer, text),)), record=record)
        assert not passes(Filter(fields=((pointer, text + "x"),)), record=record)
