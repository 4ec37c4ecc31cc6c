from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.source.nodes import (
    MalformedYamlError,
    MappingNode,
    ScalarNode,
    SequenceNode,
    SourceMark,
    compose,
)

MARKS = "abc:-?{}[],#&*!|>'\"%@`\\ \t\n<~0.${}"


def test_nodes_know_where_they_stand():
    root = compose("a: 1\nb:\n  - 'x'\n")
    assert isinstance(root, MappingNode)
    (_, one), (key, items) = root.items
    assert one == ScalarNode(SourceMark(1, 4), "1", is_plain=True)
    assert key.mark == SourceMark(2, 1)
    assert items == SequenceNode(
        SourceMark(3, 3), [ScalarNode(SourceMark(3, 5), "x", is_plain=False)]
    )


def test_an_alias_is_the_node_itself():
    root = compose("a: &x [1]\nb: *x\n")
    assert isinstance(root, MappingNode)
    assert root.items[0][1] is root.items[1][1]


def test_a_byte_order_mark_is_no_text():
    assert compose("\ufeffa: 1") == compose("a: 1")


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ('a: "\\UFFFFFFFF"', 1, 1), ("a: \ud800", 1, 4), ("a: b\n\x00", 2, 1),
        ("%YAML 9.9.9\n--- a", 1, 10),
    ],
)  # fmt: skip
def test_what_the_parser_trips_over_is_malformed(text: str, line: int, column: int):
    with pytest.raises(MalformedYamlError) as raised:
        compose(text)
    assert raised.value.mark == SourceMark(line, column)


PIECES = ["a: ", "- ", "\n  ", "\n", "{", "}", "[", "]", "&a ", "*a", "? ", "'", '"', "|\n",
          "!!x ", "---\n", "...\n", "<<: "]  # fmt: skip


@given(st.text() | st.text(MARKS) | st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_is_a_node_or_malformed(text: str):
    try:
        compose(text)
    except MalformedYamlError as error:
        assert error.mark.line >= 1 and error.mark.column >= 1
        assert ";" in error.message
