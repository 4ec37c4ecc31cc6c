from __future__ import annotations

import dataclasses
import pickle
from datetime import UTC, datetime

import pytest

from gateway.web.access import NO_GRANTS, Grant, Granted
from gateway.web.access.grant import MAX_EXPIRES_S

ADA = Grant("jwt0", "ada", frozenset({"orders:read"}), {"region": "eu"}, 100.0)
COOKIE = Grant("session", "ada@shop", expires=50.0)


def test_a_grant_is_a_value():
    same = Grant("jwt0", "ada", frozenset({"orders:read"}), {"region": "eu"}, 100.0)
    assert same == ADA
    assert hash(same) == hash(ADA)
    assert dataclasses.replace(ADA, attributes={"region": "us"}) != ADA
    assert dataclasses.replace(ADA, expires=101.0) != ADA


def test_what_a_grant_says_stays():
    claims = {"region": "eu"}
    grant = Grant("jwt0", "ada", attributes=claims)
    claims["region"] = "us"
    assert grant.attributes["region"] == "eu"
    with pytest.raises(dataclasses.FrozenInstanceError):
        grant.identity = "eve"  # type: ignore[misc]


def test_the_identity_is_what_the_first_guard_says():
    assert Granted([ADA, COOKIE]).identity == "ada"
    assert Granted([COOKIE, ADA]).identity == "ada@shop"
    assert NO_GRANTS.identity is None


def test_grants_are_found_by_their_guard_in_the_order_of_the_route():
    granted = Granted([COOKIE, ADA])
    assert list(granted) == ["session", "jwt0"]
    assert granted["jwt0"] is ADA
    assert "jwt1" not in granted
    with pytest.raises(KeyError):
        granted["jwt1"]


def test_it_is_over_when_the_first_grant_is():
    granted = Granted([ADA, COOKIE, Grant("x509", "CN=ada")])
    assert granted.expires == 50.0
    assert granted.expiring is COOKIE
    assert Granted([Grant("x509", "CN=ada")]).expires is None
    assert NO_GRANTS.expiring is None


def test_it_goes_from_process_to_process():
    granted = Granted([ADA, COOKIE])
    assert pickle.loads(pickle.dumps(granted)) == granted


def test_a_renewed_grant_has_the_same_subject():
    renewed = dataclasses.replace(ADA, roles=frozenset(), attributes={}, expires=900.0)
    assert Granted([renewed]).subject == Granted([ADA]).subject
    assert Granted([dataclasses.replace(ADA, identity="eve")]).subject != Granted([ADA]).subject
    assert Granted([renewed]) != Granted([ADA])


def test_the_first_of_two_wins_where_both_know_a_guard():
    other = Granted([dataclasses.replace(ADA, identity="eve"), COOKIE])
    assert Granted([ADA]) | other == Granted([ADA, COOKIE])
    assert hash(Granted([ADA]) | NO_GRANTS) == hash(Granted([ADA]))


@pytest.mark.parametrize("expires", [2**63 - 1, 1e300, float("inf"), 10**400])
def test_an_end_beyond_all_calendars_is_the_last_second_of_theirs(expires: float):
    assert Grant("app", "ada", expires=expires).expires == MAX_EXPIRES_S
    assert datetime.fromtimestamp(MAX_EXPIRES_S, UTC).year == 9999
    assert (
        Granted.from_json(Granted([Grant("app", "ada", expires=expires)]).to_json()).expires
        == MAX_EXPIRES_S
    )


@pytest.mark.parametrize("expires", [-1, -1e300, -(2**63), float("-inf")])
def test_one_before_1970_is_over(expires: float):
    assert Grant("app", "ada", expires=expires).expires == 0.0


def test_one_that_is_no_number_is_none_of_ours():
    with pytest.raises(ValueError, match="NaN"):
        Grant("app", "ada", expires=float("nan"))
