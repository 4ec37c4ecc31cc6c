from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gateway.config.source.nodes import MalformedYamlError, SourceMark, compose, get_mark

MARKS = "abc:-?{}[],#&*!|>'\"%@`\\ \t\n<~0.${}"


def describe(node: Node) -> object:
    mark = get_mark(node)
    if isinstance(node, ScalarNode):
        return mark, node.value, node.style
    if isinstance(node, SequenceNode):
        return mark, [describe(item) for item in node.value]
    return mark, [(describe(key), describe(item)) for key, item in node.value]


def test_nodes_know_where_they_stand():
    root = compose("a: 1\nb:\n  - 'x'\n")
    assert isinstance(root, MappingNode)
    (_, one), (key, items) = root.value
    assert describe(one) == (SourceMark(1, 4), "1", None)
    assert get_mark(key) == SourceMark(2, 1)
    assert describe(items) == (SourceMark(3, 3), [(SourceMark(3, 5), "x", "'")])


def test_an_alias_is_the_node_itself():
    root = compose("a: &x [1]\nb: *x\n")
    assert isinstance(root, MappingNode)
    assert root.value[0][1] is root.value[1][1]


def test_a_byte_order_mark_is_no_text():
    assert describe(compose("\ufeffa: 1")) == describe(compose("a: 1"))


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
