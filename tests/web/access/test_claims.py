from __future__ import annotations

from typing import Any

import pytest

from gateway.web.access.grant import format_claim, parse_roles


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
        (None, set()), (7, set()),
        ({"read": {"org": 1}, "write": {}, "no": False, "nor": None}, {"read", "write"}),
    ],
)  # fmt: skip
def test_roles_are_a_list_a_text_with_spaces_or_the_names_of_an_object(value: Any, roles: set[str]):
    assert parse_roles(value) == roles
