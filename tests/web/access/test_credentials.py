from __future__ import annotations

from typing import Any

import pytest
from support.access_requests import build_connection

from gateway.config import Credentials
from gateway.web.access.grant import (
    AmbiguousCredentials,
    CredentialsLocations,
    get_bearer_token,
)

BEARER: dict[str, Any] = {"headers": {"authorization": "Bearer {credentials}"}}
ALL: dict[str, Any] = {
    "headers": {"authorization": "Bearer {credentials}", "x-api-key": "{credentials}"},
    "cookies": {"access": "{credentials}", "signed": "s:{credentials}.x"},
    "query": {"access_token": "{credentials}"},
}


@pytest.mark.parametrize(
    ("credentials", "came", "found"),
    [
        (BEARER, build_connection(), None),
        (BEARER, build_connection(("Authorization", "Bearer abc")), "abc"),
        (BEARER, build_connection(("authorization", "bearer abc")), "abc"),
        (BEARER, build_connection(("Authorization", "Bearer  abc ")), "abc"),
        (BEARER, build_connection(("Authorization", "Bearer ")), None),
        (BEARER, build_connection(("Authorization", "Bearer    ")), None),
        (BEARER, build_connection(("Authorization", "Basic abc")), None),
        (BEARER, build_connection(("Authorization", "Bearerabc")), None),
        (BEARER, build_connection(query_string="access_token=abc"), None),
        (BEARER, build_connection(("Cookie", "access=abc")), None),
        (BEARER, build_connection(subprotocols=["gateway.v1", "bearer.a.b-c_"]), "a.b-c_"),
        (BEARER, build_connection(("Authorization", "Bearer h"), subprotocols=["bearer.p"]), "h"),
        ({"cookies": {"a": "{credentials}"}}, build_connection(subprotocols=["bearer.abc"]), None),
        (
            {"query": {"t": "{credentials}"}},
            build_connection(("Authorization", "Bearer abc")),
            None,
        ),
        (ALL, build_connection(("X-Api-Key", "abc")), "abc"),
        (ALL, build_connection(("Cookie", "other=1; access=abc")), "abc"),
        (ALL, build_connection(("Cookie", 'a={"x":[1]}; access="abc"; access=old')), "abc"),
        (ALL, build_connection(("Cookie", "a=[b]; c"), ("Cookie", "access=abc")), "abc"),
        # An application that logs out at one path leaves it empty there: it hid the other one.
        (ALL, build_connection(("Cookie", 'access=; access=""; access=abc')), "abc"),
        (ALL, build_connection(("Cookie", "signed=s:abc.x")), "abc"),
        (ALL, build_connection(("Cookie", "signed=s:.x")), None),
        (ALL, build_connection(("Cookie", "signed=t:abc.x")), None),
        (ALL, build_connection(query_string="from=live&access_token=a%2Bb"), "a+b"),
        (ALL, build_connection(query_string="access_token="), None),
        (ALL, build_connection(("Authorization", "Basic x"), ("Cookie", "access=c")), "c"),
        (ALL, build_connection(("Cookie", "access=c"), query_string="access_token=q"), "c"),
        (ALL, build_connection(("X-Api-Key", "k"), ("Cookie", "access=c")), "k"),
    ],
)
def test_credentials_are_taken_from_where_the_guard_says(credentials, came, found):
    assert CredentialsLocations(Credentials.model_validate(credentials)).find(came) == found


@pytest.mark.parametrize(
    "came",
    [
        build_connection(("Authorization", "Bearer a"), ("Authorization", "Bearer b")),
        build_connection(query_string="access_token=a&access_token=b"),
    ],
)
def test_of_two_in_one_place_none_is_taken(came: Any):
    """Who is in front of the gateway may have looked at the other one (RFC 6750 3.1)."""
    with pytest.raises(AmbiguousCredentials, match="2 credentials in one place"):
        CredentialsLocations(Credentials.model_validate(ALL)).find(came)


def test_people_are_told_how_to_send_them():
    assert CredentialsLocations(Credentials.model_validate(BEARER)).hint == (
        "send a token as Authorization: Bearer TOKEN or the WebSocket subprotocols gateway.v1, "
        "bearer.TOKEN"
    )
    said = CredentialsLocations(Credentials.model_validate(ALL)).hint
    for way in ("X-Api-Key: TOKEN", "the cookie access=TOKEN", "?access_token=TOKEN"):
        assert way in said


@pytest.mark.parametrize(
    ("came", "token"),
    [
        (build_connection(), None),
        (build_connection(("Authorization", "Bearer abc")), "abc"),
        (build_connection(("Authorization", "Basic abc")), None),
        (build_connection(subprotocols=["bearer.abc"]), "abc"),
        (build_connection(subprotocols=["gateway.v1"]), None),
    ],
)
def test_a_bearer_token_is_that_of_the_header_or_of_the_subprotocol(came: Any, token: str | None):
    assert get_bearer_token(came) == token
