from __future__ import annotations

import math

import pytest

from gateway.config.source.nodes import SourceMark
from gateway.config.source.yaml_document import decode_utf8, parse_document, parse_plain
from gateway.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("~", None), ("null", None), ("true", True), ("False", False),
        ("on", "on"), ("no", "no"), ("y", "y"), ("12", 12), ("-3", -3), ("012", 12),
        ("0x1f", 31), ("0o17", 15), ("1_000", "1_000"), ("1.5", 1.5), ("1e3", 1000.0),
        ("12:30:45", "12:30:45"), ("2024-01-01", "2024-01-01"), ("5s", "5s"),
        (".inf", math.inf), ("-.INF", -math.inf), ("9" * 5000, math.inf),
        ("1" * 31, int("1" * 31)), ("1" * 31 + ".5", float("1" * 31)),
    ],
)  # fmt: skip
def test_scalars_are_read_by_the_core_schema_of_yaml_1_2(text: str, value: object):
    assert parse_plain(text) == value
    assert type(parse_plain(text)) is type(value)


def test_the_directive_of_yaml_1_1_changes_nothing():
    assert parse_document("%YAML 1.1\n---\na: on\n", name="x", environ={}).values == {"a": "on"}


def test_every_key_and_value_has_its_marks():
    marks = parse_document("a:\n  - b: 1\n", name="x", environ={}).marks
    assert marks["a",].key == SourceMark(1, 1)
    assert marks["a", 0].value == SourceMark(2, 5)
    assert marks["a", 0, "b"] == (SourceMark(2, 5), SourceMark(2, 8))


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (b"a: \xff\n", "x.yaml:1:4: byte 0xff"),
        ("é: 1\nä: ".encode() + b"\xe9", "x.yaml:2:4: byte 0xe9"),
        ("a: 1".encode("utf-16"), "x.yaml:1:1: the file is UTF-16"),
    ],
)
def test_bytes_that_are_no_utf_8_are_told_where(raw: bytes, place: str):
    with pytest.raises(ConfigError) as raised:
        decode_utf8(raw, name="x.yaml")
    assert raised.value.problems[0].startswith(place)


def test_the_byte_order_mark_of_utf_8_is_skipped():
    assert decode_utf8("\ufeffa: 1".encode(), name="x") == "a: 1"
