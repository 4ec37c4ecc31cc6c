from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.types.substitution import (
    Expression,
    escape,
    find_closest,
    format_parts,
    merge_literals,
    parse_expressions,
    suggest,
)


def test_a_text_is_split_into_literals_and_expressions():
    assert parse_expressions("a-${params.x}-${env.Y:z}") == (
        "a-",
        Expression("params.x"),
        "-",
        Expression("env.Y:z"),
    )
    assert parse_expressions("") == ()


def test_a_dollar_before_a_brace_can_be_written():
    assert parse_expressions("${$}{params.x}") == ("${params.x}",)
    assert parse_expressions("$5 and $$ and {}") == ("$5 and $$ and {}",)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("${params.x", "not closed"), ("a${", "not closed"), ("${}", "unknown"),
        ("${HOME}", "env.HOME"), ("${enw.X}", "'env'"), ("${ env.X}", "unknown"),
        ("${env.A:${env.B}}", "not closed"),
    ],
)  # fmt: skip
def test_what_is_no_expression_says_what_to_write(text: str, hint: str):
    with pytest.raises(ValueError, match=hint):
        parse_expressions(text)


@given(st.text())
def test_an_escaped_text_is_one_literal(text: str):
    assert "".join(map(str, parse_expressions(escape(text)))) == text
    assert not any(isinstance(part, Expression) for part in parse_expressions(escape(text)))


PARTS = st.lists(
    st.text("a$`{}'\\ é")
    | st.sampled_from(["params.x", "env.A:b", "guarded['g'].identity"]).map(Expression)
)


@given(PARTS)
def test_shown_parts_are_split_into_the_same(parts: list[str | Expression]):
    assert parse_expressions(format_parts(parts)) == merge_literals(parts)


def test_the_nearest_name_else_all_of_them_else_what_to_do():
    assert suggest("ordrs", ["stock", "orders"]) == "did you mean 'orders'?"
    assert suggest("ORDERS", ["stock", "orders"]) == "did you mean 'orders'?"
    assert suggest("x", ["stock", "orders"]) == "use one of orders, stock"
    assert suggest("x", ["stock"]) == "use stock"
    assert suggest("x", [], "add it") == "add it"
    assert suggest("x", [f"t{i:03}" for i in range(40)]).endswith("t011, ...")


def test_the_nearest_word_is_found_among_thousands():
    known = [f"topic-{n}" for n in range(5000)]
    assert find_closest("topik-17", known) in ("topic-17", "topic-1", "topic-7")
    assert find_closest("x" * 1_000_000, known) is None
    assert find_closest("topic", ["t" * 1_000_000, "topics"]) == "topics"
    assert find_closest("zzz", known) is None and find_closest("a", []) is None
