"""JSON that a schema allows."""

from __future__ import annotations

import json
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
