from __future__ import annotations

from typing import Any

import pytest

from gateway.web.access.claims import format_claim, get_claim, parse_roles

CLAIMS = {
    "sub": "ada",
    "https://example.com/tenant": "acme",
    "realm_access": {"roles": ["a"], "deep": {"er": 1}},
    "realm.access": "with a dot",
    "nothing": None,
}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("sub", "ada"),
        ("https://example.com/tenant", "acme"),
        ("realm_access.roles", ["a"]),
        ("realm_access.deep.er", 1),
        ("realm.access", "with a dot"),
        ("nothing", None),
        ("nobody", None),
        ("sub.ada", None),
        ("realm_access.nobody.er", None),
    ],
)
def test_a_claim_is_found_by_its_name_or_below_its_dots(name: str, found: Any):
    assert get_claim(CLAIMS, name) == found


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("eu", "eu"), ("", None), (7, "7"), (7.5, "7.5"), (True, "true"), (False, "false"),
        (None, None), ([], None), (["a"], None), ({"a": 1}, None), ("\ud800", None),
        ("a\u00e9\U0001f600", "a\u00e9\U0001f600"), (10**30, str(10**30)),
    ],
)  # fmt: skip
def test_what_has_one_text_is_text(value: Any, text: str | None):
    assert format_claim(value) == text


@pytest.mark.parametrize(
    ("value", "roles"),
    [
        ("read write", {"read", "write"}), ("  read  ", {"read"}), ("", set()),
        (["read", "write all"], {"read", "write all"}), (["read", 7, None, ""], {"read"}),
        (None, set()), (7, set()), ({"read": True}, set()),
    ],
)  # fmt: skip
def test_roles_are_a_list_or_a_text_with_spaces(value: Any, roles: set[str]):
    assert parse_roles(value) == roles
