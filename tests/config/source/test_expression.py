from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.source.expression import Expression, closest, escape, join, nearest, show, split


def test_a_text_is_split_into_literals_and_expressions():
    assert split("a-${params.x}-${env.Y:z}") == (
        "a-",
        Expression("params.x"),
        "-",
        Expression("env.Y:z"),
    )
    assert split("") == ()


def test_a_dollar_before_a_brace_can_be_written():
    assert split("${$}{params.x}") == ("${params.x}",)
    assert split("$5 and $$ and {}") == ("$5 and $$ and {}",)


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
        split(text)


@given(st.text())
@settings(deadline=None)
def test_an_escaped_text_is_one_literal(text: str):
    assert "".join(map(str, split(escape(text)))) == text
    assert not any(isinstance(part, Expression) for part in split(escape(text)))


PARTS = st.lists(
    st.text("a$`{}'\\ é")
    | st.sampled_from(["params.x", "env.A:b", "guarded['g'].identity"]).map(Expression)
)


@given(PARTS)
@settings(deadline=None)
def test_shown_parts_are_split_into_the_same(parts: list[str | Expression]):
    assert split(show(parts)) == join(parts)


def test_the_nearest_name_else_all_of_them_else_what_to_do():
    assert nearest("ordrs", ["stock", "orders"]) == "did you mean 'orders'?"
    assert nearest("ORDERS", ["stock", "orders"]) == "did you mean 'orders'?"
    assert nearest("x", ["stock", "orders"]) == "use one of orders, stock"
    assert nearest("x", ["stock"]) == "use stock"
    assert nearest("x", [], "add it") == "add it"
    assert nearest("x", [f"t{i:03}" for i in range(40)]).endswith("t011, ...")


def test_the_nearest_word_is_found_among_thousands():
    known = [f"topic-{n}" for n in range(5000)]
    assert closest("topik-17", known) in ("topic-17", "topic-1", "topic-7")
    assert closest("x" * 1_000_000, known) is None
    assert closest("topic", ["t" * 1_000_000, "topics"]) == "topics"
    assert closest("zzz", known) is None and closest("a", []) is None
