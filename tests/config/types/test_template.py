from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Template
from gateway.config.types.template import Placeholder, find_field
from gateway.errors import RequestError

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,8}", fullmatch=True)


def test_a_template_is_filled_from_path_query_and_guard():
    template = Template.parse(
        "${params.a}|${query.b}|${guarded['g'].identity}|${guarded['g'].attributes.c.d}"
    )
    assert (
        template.render(
            params={"a": "1"}, query={"b": "2"}, identity={"g": "3"}, attributes={"g": {"c.d": "4"}}
        )
        == "1|2|3|4"
    )
    assert template.placeholders[3] == Placeholder(
        "guarded", "g", "c.d", "guarded['g'].attributes.c.d"
    )
    assert template.literal is None


def test_a_text_without_holes_is_a_literal():
    assert Template.parse("orders").literal == "orders"
    assert Template.parse("${$}{x}").literal == "${x}"
    assert Template.parse("orders").render() == "orders"


TEXTS = st.text() | st.text("a${}.") | st.sampled_from(["${params.x}", "${"])


@given(TEXTS, TEXTS)
def test_what_a_client_sends_is_text_and_never_a_template(before: str, sent: str):
    """Also where it looks like one, or could close or open one with its neighbours."""
    template = Template(parts=(before, Placeholder("params", "x", "", "params.x"), "}"))
    for value in (sent, "${params.secret}", "${", "$", "{params.y}"):
        params = {"x": value, "secret": "hunter2", "y": "no"}
        assert template.render(params=params) == f"{before}{value}}}"


@given(st.lists(st.text("ab$ {}'") | NAMES.map(lambda n: f"${{params.{n}}}")))
def test_a_template_is_written_as_it_is_read(pieces: list[str]):
    try:
        template = Template.parse("".join(pieces))
    except ValueError:
        return
    assert Template.parse(str(template)) == template


@given(st.text())
def test_any_text_is_a_template_or_a_value_error(text: str):
    for given_text in (text, "${" + text, "${params." + text + "}", "${guarded['" + text + "'].x}"):
        try:
            Template.parse(given_text)
        except ValueError as error:
            assert ";" in str(error)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("${params}", "params.name"), ("${params.a.b}", "params.name"),
        ("${params.1}", "params.name"), ("${guarded.jwt0.identity}", "guarded"),
        ("${guarded['g']}", "identity"), ("${guarded['g'].attributes}", "attributes.name"),
        ("${message.headers}", "message.key"), ("${query.}", "query.name"),
        ("${env.X}", "unknown here"), ("${nothing}", "unknown"),
    ],
)  # fmt: skip
def test_what_is_no_template_says_what_to_write(text: str, hint: str):
    with pytest.raises(ValueError, match=hint):
        Template.parse(text)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("${params.a}", 400), ("${query.a}", 400),
        ("${guarded['g'].identity}", 403), ("${guarded['g'].attributes.a}", 403),
    ],
)  # fmt: skip
def test_what_a_request_lacks_is_its_error(text: str, status: int):
    with pytest.raises(RequestError) as raised:
        Template.parse(text).render(params={"b": "1"}, attributes={"g": {"b": "1"}})
    assert raised.value.status == status


NESTED = {
    "sub": "ada",
    "realm_access": {"roles": ["a"], "deep": {"er": 1}},
    "realm.access": "with a dot",
    "resource_access": {"shop.example.com": {"roles": ["b"]}, "shop": {"roles": ["c"]}},
    "https://login.example.eu/claims/app": {"groups": ["d"]},
    "nothing": None,
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("sub", "ada"), ("realm_access.roles", ["a"]), ("realm_access.deep.er", 1),
        ("realm.access", "with a dot"), ("nothing", None), ("nobody", None), ("sub.ada", None),
        ("realm_access.nobody.er", None), ("resource_access.shop.roles", ["c"]),
        ("resource_access.shop.example.com.roles", ["b"]),
        ("https://login.example.eu/claims/app.groups", ["d"]), ("", NESTED),
    ],
)  # fmt: skip
def test_at_each_level_the_longest_name_that_exists_is_taken(path: str, found: object):
    """Names with dots, as of clients of an issuer, were not found below another name."""
    assert find_field(NESTED, path) == found


def test_fields_are_taken_out_of_a_record():
    def extract(text: str, key: object = None, value: object = None) -> str | None:
        return Template.parse(text).extract(key, value)

    value = {"a": {"b": "x"}, "n": 7, "t": True, "l": [1], "z": None, "o.p": {"q": 1}}
    assert extract("<${message.value.a.b}>", value=value) == "<x>"
    assert extract("${message.value.n}/${message.value.t}", value=value) == "7/true"
    assert extract("${message.value.o.p.q}", value=value) == "1"
    assert extract("${message.key}", key=b"k") == "k"
    for lacking in ("a", "a.c", "a.b.c", "l", "z", "nothing"):
        assert extract(f"-${{message.value.{lacking}}}", value=value) is None
    assert extract("${message.value}", value=None) is None


def test_which_names_a_template_may_become():
    template = Template.parse("orders-${params.a}.v1")
    assert template.can_render("orders-eu.v1")
    assert not template.can_render("orders-.v1")
    assert not template.can_render("orders-eu_v1")
