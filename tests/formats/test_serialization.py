"""Formats by name and number."""

from __future__ import annotations

import pytest

from gateway.config.types.formats import SERIALIZATION_FORMATS
from gateway.errors import FormatError
from gateway.formats.serialization import SerializationFormat, build_subject_name


def test_the_numbers_are_those_of_the_contract():
    assert [(each.number, each.name) for each in SERIALIZATION_FORMATS.values()] == [
        (0, "binary"), (1, "avro"), (2, "json"), (3, "jsonschema"), (4, "protobuf"), (5, "string"),
    ]  # fmt: skip


@pytest.mark.parametrize("given", ["avro", "AVRO", " Avro", 1, "1", SerializationFormat.AVRO])
def test_a_format_is_known_by_name_and_by_number(given: object):
    assert SerializationFormat.parse(given) is SerializationFormat.AVRO


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("avrro", "did you mean avro"), ("json-schema", "did you mean jsonschema"),
        (6, "use one of binary, avro"), (True, "use one of"), (None, "use one of"),
    ],
)  # fmt: skip
def test_what_is_no_format_is_told_with_what_is(given: object, hint: str):
    with pytest.raises(FormatError, match=hint):
        SerializationFormat.parse(given)


def test_a_subject_is_named_after_its_topic():
    assert build_subject_name("orders", False) == "orders-value"
    assert build_subject_name("orders", True) == "orders-key"
