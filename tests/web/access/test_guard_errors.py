from __future__ import annotations

import re

import pytest

from gateway.web.access.guard import GuardErrors
from gateway.web.http.problems import build_problem

REFUSALS = GuardErrors("jwt0", "orders", "send a token as Authorization: Bearer TOKEN")


@pytest.mark.parametrize(
    ("refusal", "status", "challenge"),
    [
        (REFUSALS.build_missing_credentials(), 401, 'Bearer realm="orders"'),
        (
            REFUSALS.build_invalid_token("the token is expired"),
            401,
            'Bearer realm="orders", error="invalid_token", '
            'error_description="the token is expired"',
        ),
        (
            REFUSALS.build_ambiguous_credentials("there are 2"),
            400,
            'Bearer realm="orders", error="invalid_request", error_description="there are 2"',
        ),
        (
            REFUSALS.build_missing_roles(["orders:read", "b"]),
            403,
            'Bearer realm="orders", error="insufficient_scope", scope="orders:read b"',
        ),
        (REFUSALS.build_access_denied(), 403, 'Bearer realm="orders", error="insufficient_scope"'),
    ],
)
def test_a_refusal_has_the_challenge_of_rfc_6750(refusal: Exception, status: int, challenge: str):
    answer = build_problem(refusal, "/events/7")
    assert answer.status_code == status
    assert answer.headers["www-authenticate"] == challenge
    assert answer.headers["cache-control"] == "no-store"


def test_who_lacks_roles_is_told_which():
    assert (
        b'"roles": ["orders:read"]'
        in build_problem(REFUSALS.build_missing_roles(["orders:read"]), "/a").body
    )


@pytest.mark.parametrize("role", ['a"b', "a b", "a\\b", "\u00e9t\u00e9", ""])
def test_a_role_that_no_header_can_hold_is_told_in_the_body_only(role: str):
    refusal = REFUSALS.build_missing_roles([role])
    assert refusal.challenge == 'Bearer realm="orders", error="insufficient_scope"'
    assert refusal.roles == (role,)


@pytest.mark.parametrize(
    ("realm", "written"),
    [
        ("orders", "orders"),
        ('a"b\\c', 'a\\"b\\\\c'),
        ("B\u00fccher", "gateway"),
        ("a\nb", "gateway"),
    ],
)
def test_any_name_of_a_gateway_makes_a_header(realm: str, written: str):
    challenge = GuardErrors("g", realm, "log in").build_missing_credentials().challenge
    assert challenge == f'Bearer realm="{written}"'


def test_a_scheme_of_its_own_comes_first():
    challenge = (
        GuardErrors("g", "dev", "log in", scheme="Basic").build_missing_credentials().challenge
    )
    assert challenge == 'Basic realm="dev", charset="UTF-8", Bearer realm="dev"'


def test_who_cannot_be_judged_is_told_to_come_back():
    answer = build_problem(REFUSALS.build_unavailable("the issuer is away"), "/a")
    assert answer.status_code == 503
    assert 3 <= int(answer.headers["retry-after"]) <= 10
    assert "www-authenticate" not in answer.headers


def test_a_challenge_is_ascii():
    for refusal in (
        REFUSALS.build_missing_credentials(),
        REFUSALS.build_invalid_token("a"),
        REFUSALS.build_missing_roles(["\u00e9"]),
    ):
        assert re.fullmatch(r"[\x20-\x7e]*", refusal.challenge or "")
