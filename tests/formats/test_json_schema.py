"""JSON that a schema allows."""

from __future__ import annotations

import json
import time
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import FormatError
from gateway.formats.json_schema import JsonSchemaCodec

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "item": {"$ref": "item.json"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["id"],
    "additionalProperties": {"type": ["number", "boolean", "null"]},
}
USED = {"item.json": json.dumps({"type": "object", "required": ["sku"]})}
VALUES = st.fixed_dictionaries(
    {"id": st.integers(-(2**63), 2**63 - 1)},
    optional={
        "item": st.fixed_dictionaries({"sku": TEXT}),
        "tags": st.lists(TEXT, max_size=3),
        "x": st.floats(allow_nan=False, allow_infinity=False) | st.none() | st.booleans(),
    },
)


@pytest.fixture(scope="module")
def schema() -> JsonSchemaCodec:
    return JsonSchemaCodec(json.dumps(ORDER), USED)


@given(value=VALUES)
def test_what_is_allowed_is_written_as_it_is(schema: JsonSchemaCodec, value: Any):
    written = schema.encode(value)
    assert json.loads(written) == value == schema.decode(written)
    assert schema.decode_text(written) == written


def test_the_text_that_was_written_is_shown_digit_for_digit(schema: JsonSchemaCodec):
    text = b'{ "id": 1, "x": 1.50000000000000000001 }'
    assert schema.decode_text(text) == text
    half = rb'{"id": 1, "item": {"sku": "\ud83d"}}'
    assert schema.decode_text(b"\xef\xbb\xbf" + half) == half


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        ({}, ""), (5, ""), ({"id": "x"}, "/id"), ({"id": 1, "item": {}}, "/item"),
        ({"id": 1, "tags": ["a", 2]}, "/tags/1"), ({"id": 1, "a/b": "x"}, "/a~1b"),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_refused_both_ways(schema, value, pointer):
    with pytest.raises(FormatError, match="does not fit its JSON Schema") as told:
        schema.encode(value)
    assert told.value.pointer == pointer
    with pytest.raises(FormatError, match="does not fit its JSON Schema"):
        schema.decode(json.dumps(value).encode())


def test_bytes_that_are_not_json_are_refused(schema: JsonSchemaCodec):
    with pytest.raises(FormatError, match="not JSON"):
        schema.decode(b"{")


@pytest.mark.parametrize(
    "base", [{}, {"$id": "http://shop.example/order.json"}, {"$id": "order.json"}]
)
@pytest.mark.parametrize("draft", ["07", "2020-12", None])
def test_references_are_found_by_their_names(base: dict[str, str], draft: str | None):
    drafts = {
        "07": "http://json-schema.org/draft-07/schema#",
        "2020-12": "https://json-schema.org/draft/2020-12/schema",
    }
    named = {"$schema": drafts[draft]} if draft else {}
    made = JsonSchemaCodec(json.dumps({**base, **named, **ORDER}), USED)
    assert made.encode({"id": 1, "item": {"sku": "a"}})
    with pytest.raises(FormatError):
        made.encode({"id": 1, "item": {}})


DRAFTS = (
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
)


def fits(schema: JsonSchemaCodec, value: Any) -> bool:
    try:
        schema.encode(value)
    except FormatError as refused:
        assert "does not fit" in str(refused)
        return False
    return True


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("own", [{}, {"$id": "http://x.example/deep/item.json"}])
@pytest.mark.parametrize("name", ["item.json", "http://x.example/deep/item.json"])
def test_references_of_a_schema_with_an_identifier_of_its_own_are_found(draft, own, name):
    """Where a referenced schema had an `$id`, what it referred to itself was not found."""
    used = {
        name: {**own, "properties": {"sku": {"$ref": "sku.json#/definitions/Sku"}}},
        "sku.json": {
            "definitions": {"Sku": {"$ref": "#/definitions/Text"}, "Text": {"type": "string"}}
        },
    }
    main = {"$schema": draft, "properties": {"item": {"$ref": name}}}
    made = JsonSchemaCodec(
        json.dumps(main), {path: json.dumps(each) for path, each in used.items()}
    )
    assert fits(made, {"item": {"sku": "a"}})
    assert not fits(made, {"item": {"sku": 1}})


@pytest.mark.parametrize("main", [{}, *({"$schema": draft} for draft in DRAFTS[1:])])
def test_a_reference_keeps_the_draft_that_it_names(main: dict[str, str]):
    """The same tuple is said otherwise in draft 7 and in 2020-12."""
    pair = [{"type": "string"}, {"type": "integer"}]
    tuples = (
        {"$schema": DRAFTS[1], "items": pair, "additionalItems": False},
        {"$schema": DRAFTS[3], "prefixItems": pair, "items": False},
    )
    for each in tuples:
        text = json.dumps({**main, "properties": {"pair": {"$ref": "pair.json"}}})
        made = JsonSchemaCodec(text, {"pair.json": json.dumps(each)})
        values = (["a", 1], ["a", "b"], ["a", 1, 2])
        assert [fits(made, {"pair": value}) for value in values] == [True, False, False]


def test_patterns_that_are_large_when_compiled_are_left_out_in_reading():
    """60 such patterns in 2 KB took 300 MB and 1.2 s, and counted as 2 KB."""
    names = {f"n{n}": {"type": "string", "pattern": r"^\p{L}{1,99}$"} for n in range(60)}
    schema = JsonSchemaCodec(json.dumps({"properties": names}), {})
    assert schema.decode(b'{"n1":"a"}')
    with pytest.raises(FormatError, match="fewer repetitions"):
        schema.encode({"n1": "a"})
    few = JsonSchemaCodec(json.dumps({"properties": {"n1": names["n1"]}}), {})
    assert fits(few, {"n1": "é"}) and not fits(few, {"n1": "1"})
    usual = JsonSchemaCodec(json.dumps({"pattern": "^.{1,255}$"}), {})
    assert usual.pattern_bytes < 1 << 20 < 5 << 20 < few.pattern_bytes


def test_a_pattern_of_another_language_is_left_out_in_reading():
    """Every record of such a topic was invalid, as the whole schema was refused."""
    email = {"type": "string", "pattern": r"^[\w-\.]+@[\w-]+$"}
    schema = JsonSchemaCodec(
        json.dumps(
            {
                "properties": {"to": email, "n": {"enum": [1]}},
                "patternProperties": {"^x-[a-z]++$": {"type": "string"}},
                "additionalProperties": False,
            }
        ),
        {},
    )
    for wrong in (b'{"n":2}', b'{"to":5}'):
        with pytest.raises(FormatError, match="does not fit"):
            schema.decode(wrong)
    read = b'{"to":"a@b","n":1,"x-a":"b"}'
    assert schema.decode_text(read) == read
    with pytest.raises(FormatError, match=r"pattern \^.* cannot be checked here"):
        schema.encode({"n": 1})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot be used"), ('{"type": 5}', "cannot be used"),
        ('{"$ref": "http://127.0.0.1:9/x.json"}', "none of its references"),
        ('{"$ref": "file:///etc/passwd"}', "none of its references"),
        ('{"allOf": [{"$ref": "no.json"}]}', "used: [$]ref 'no.json' is none of its references;"),
        ('{"allOf": [{"$ref": "#/definitions/X"}]}', "'/definitions/X' does not exist; correct it"),
    ],
)  # fmt: skip
def test_a_schema_that_is_none_or_leads_elsewhere_is_refused(text: str, why: str):
    """A reference by a relative name was "not present in a registry", which was not the user's."""
    with pytest.raises(FormatError, match=why):
        JsonSchemaCodec(text, {})


def double(levels: int, path: str = "#/definitions/d{}") -> dict[str, Any]:
    """Return a schema with two ways from each level to the one below."""
    definitions: dict[str, Any] = {"d0": {"type": "integer"}}
    for level in range(1, levels + 1):
        below = {"$ref": path.format(level - 1)}
        definitions[f"d{level}"] = {"anyOf": [below, below]}
    return {"definitions": definitions, "$ref": f"#/definitions/d{levels}"}


@pytest.mark.parametrize(
    "path", ["#/definitions/d{}", "JSON-SCHEMA:///./schema.json#/definitions/d{}"]
)
def test_a_schema_with_too_many_branches_is_refused(path: str):
    """Each level doubles the time and the memory: 16 levels took 3 s, and 24 all of the memory."""
    with pytest.raises(FormatError, match=r"more than 10000 branches .*; simplify it"):
        JsonSchemaCodec(json.dumps(double(40, path)), {})


def test_the_branches_of_a_reference_are_counted():
    bomb = json.dumps(double(40))
    for text in ('{"$ref": "b.json"}', '{"items": {"$ref": "b.json#/definitions/d39"}}'):
        with pytest.raises(FormatError, match="more than 10000 branches"):
            JsonSchemaCodec(text, {"b.json": bomb})


def test_branches_that_are_named_by_anchors_are_counted():
    schema: dict[str, Any] = {"$schema": DRAFTS[3], "$ref": "#d40", "$defs": {}}
    for level in range(41):
        below = {"$ref": f"#d{level - 1}"} if level else {"type": "integer"}
        schema["$defs"][f"{level}"] = {"$anchor": f"d{level}", "anyOf": [below, below]}
    with pytest.raises(FormatError, match="more than 10000 branches"):
        JsonSchemaCodec(json.dumps(schema), {})


def test_properties_are_not_branches_of_each_other():
    """A schema of a hundred types, each with some that it shares, looks at a property once."""
    schema = {
        "definitions": {
            f"t{n}": {"properties": {f"p{k}": {"$ref": f"#/definitions/t{n + 1}"} for k in "abcd"}}
            for n in range(100)
        }
        | {"t100": {"type": "integer"}},
        "$ref": "#/definitions/t0",
    }
    codec = JsonSchemaCodec(json.dumps(schema), {})
    assert codec.encode({"pa": {"pb": {"pa": {}}}})
    assert fits(codec, {"pa": {"pb": {"pa": {}}}})


def test_references_behind_each_other_are_bounded():
    """Compiling takes the square of them: 50,000 took 10 s."""
    definitions: dict[str, Any] = {
        f"d{n}": {"$ref": f"#/definitions/d{n + 1}"} for n in range(6000)
    }
    definitions["d6000"] = {"type": "integer"}
    text = json.dumps({"definitions": definitions, "$ref": "#/definitions/d0"})
    with pytest.raises(FormatError, match="more than 5000 deep; flatten it"):
        JsonSchemaCodec(text, {})


def test_classes_that_take_the_square_of_their_number_to_compile_are_refused():
    """8,000 of them took 46 s, and the whole process for two minutes."""
    for schema in ({"pattern": r"\d" * 1000}, {"patternProperties": {r"\d" * 1000: {}}}):
        with pytest.raises(FormatError, match="too many classes"):
            JsonSchemaCodec('{"$ref": "other.json"}', {"other.json": json.dumps(schema)})
    assert JsonSchemaCodec(json.dumps({"pattern": r"^\d{4}-\d\d-\d\d$"}), {}).encode("2026-01-02")


TREE = {
    "properties": {"b": {"type": "integer"}, "a": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}},
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (double(11), "x"),
        (TREE, reduce(lambda inner, _: {"a": inner}, range(60), {"b": "x"})),
        ({"anyOf": [{"items": {"type": "integer"}}, {"type": "null"}]}, ["x"] * 100_000),
        ({"anyOf": [{"type": "integer"}] * 300}, "x" * 1_000_000),
        (
            {"properties": {"a": {"allOf": [{"$ref": "#"}] * 2}, "z": {"type": "integer"}}},
            {"a": reduce(lambda inner, _: {"a": inner}, range(40), {}), "z": "x"},
        ),
    ],
    ids=["branches", "tree", "items", "text", "allOf"],
)
def test_an_error_that_takes_too_long_to_make_has_no_place(schema: Any, value: Any):
    codec = JsonSchemaCodec(json.dumps(schema), {})
    start = time.process_time()
    with pytest.raises(FormatError, match="too many branches to find the place; correct it"):
        codec.encode(value)
    assert time.process_time() - start < 2
    with pytest.raises(FormatError, match="/b does not fit"):
        JsonSchemaCodec(json.dumps(TREE), {}).encode({"b": "x"})


def test_a_value_with_too_many_parts_for_its_branches_is_refused():
    choice = {"anyOf": [{"const": number} for number in range(3000)]}
    codec = JsonSchemaCodec(json.dumps({"items": choice}), {})
    assert codec.encode([7] * 100)
    assert codec.encode("," * 1_000_000)  # one part
    expected = r"30001 parts, .* 3002 branches: .*; divide the value"
    with pytest.raises(FormatError, match=expected):
        codec.encode([2999] * 30_000)
    with pytest.raises(FormatError, match=expected):
        codec.decode(json.dumps([2999] * 30_000).encode())


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"enum": [{"a": [1] * 10, "b": n} for n in range(2000)]}}, {"a": [1] * 10}),
        ({"items": {"enum": [n + 0.5 for n in range(2000)]}}, 1999.5),
        ({"items": {"enum": list(range(2000))}}, 1999.0),
        ({"items": {"oneOf": [{"const": {"a": [n] * 10}} for n in range(500)]}}, {"a": [1] * 10}),
        ({"items": {"patternProperties": {f"a{n}": {} for n in range(2000)}}}, {"b" * 99: 1}),
        ({"items": {"allOf": [{"pattern": f"[ab]*c|{n}"} for n in range(2000)]}}, "a" * 300),
        (
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "items": {"dependentRequired": {f"p{n}": ["z"] for n in range(37_000)}},
            },
            {},
        ),
    ],
    ids=["objects", "floats", "integers", "const", "names", "patterns", "dependentRequired"],
)
def test_what_is_compared_or_matched_with_all_of_a_value_is_bounded(schema: Any, value: Any):
    """A schema and a value of 1 MB in all took minutes: an `enum` counted as a tenth of itself."""
    codec = JsonSchemaCodec(json.dumps(schema), {})
    start = time.process_time()
    with pytest.raises(FormatError, match="too much to be checked; divide the value"):
        codec.encode([value] * 5_000)
    assert time.process_time() - start < 1


def test_a_long_enum_of_codes_bounds_no_value():
    codec = JsonSchemaCodec(json.dumps({"items": {"enum": [*range(500), "x", None]}}), {})
    assert codec.encode([499, "x", None] * 30_000)


def test_a_string_is_tried_in_a_bounded_number_of_ways():
    """Each of 5,000 strings took 13 ms, in which the process stood."""
    codec = JsonSchemaCodec(json.dumps({"pattern": r"^(?!b)(?:(a|a)*c\1|a+$)"}), {})
    codec.encode("aaaaa")
    with pytest.raises(FormatError):
        codec.encode("a" * 20)
