from __future__ import annotations

from typing import Any

import pytest
from support.asking import connection

from gateway.config import Credentials
from gateway.web.access.credentials import Ambiguous, Places, bearer

BEARER: dict[str, Any] = {"headers": {"authorization": "Bearer {credentials}"}}
ALL: dict[str, Any] = {
    "headers": {"authorization": "Bearer {credentials}", "x-api-key": "{credentials}"},
    "cookies": {"access": "{credentials}", "signed": "s:{credentials}.x"},
    "query": {"access_token": "{credentials}"},
}


@pytest.mark.parametrize(
    ("credentials", "came", "found"),
    [
        (BEARER, connection(), None),
        (BEARER, connection(("Authorization", "Bearer abc")), "abc"),
        (BEARER, connection(("authorization", "bearer abc")), "abc"),
        (BEARER, connection(("Authorization", "Bearer  abc ")), "abc"),
        (BEARER, connection(("Authorization", "Bearer ")), None),
        (BEARER, connection(("Authorization", "Bearer    ")), None),
        (BEARER, connection(("Authorization", "Basic abc")), None),
        (BEARER, connection(("Authorization", "Bearerabc")), None),
        (BEARER, connection(query="access_token=abc"), None),
        (BEARER, connection(("Cookie", "access=abc")), None),
        (BEARER, connection(subprotocols=["gateway.v1", "bearer.a.b-c_"]), "a.b-c_"),
        (BEARER, connection(("Authorization", "Bearer h"), subprotocols=["bearer.p"]), "h"),
        ({"cookies": {"a": "{credentials}"}}, connection(subprotocols=["bearer.abc"]), None),
        ({"query": {"t": "{credentials}"}}, connection(("Authorization", "Bearer abc")), None),
        (ALL, connection(("X-Api-Key", "abc")), "abc"),
        (ALL, connection(("Cookie", "other=1; access=abc")), "abc"),
        (ALL, connection(("Cookie", "signed=s:abc.x")), "abc"),
        (ALL, connection(("Cookie", "signed=s:.x")), None),
        (ALL, connection(("Cookie", "signed=t:abc.x")), None),
        (ALL, connection(query="from=live&access_token=a%2Bb"), "a+b"),
        (ALL, connection(query="access_token="), None),
        (ALL, connection(("Authorization", "Basic x"), ("Cookie", "access=c")), "c"),
        (ALL, connection(("Cookie", "access=c"), query="access_token=q"), "c"),
        (ALL, connection(("X-Api-Key", "k"), ("Cookie", "access=c")), "k"),
    ],
)
def test_credentials_are_taken_from_where_the_guard_says(
    credentials: Any, came: Any, found: str | None
):
    assert Places(Credentials.model_validate(credentials)).find(came) == found


@pytest.mark.parametrize(
    "came",
    [
        connection(("Authorization", "Bearer a"), ("Authorization", "Bearer b")),
        connection(query="access_token=a&access_token=b"),
    ],
)
def test_of_two_in_one_place_none_is_taken(came: Any):
    """Who is in front of the gateway may have looked at the other one (RFC 6750 3.1)."""
    with pytest.raises(Ambiguous, match="2 credentials in one place"):
        Places(Credentials.model_validate(ALL)).find(came)


def test_people_are_told_how_to_send_them():
    assert Places(Credentials.model_validate(BEARER)).said == (
        "send a token as Authorization: Bearer TOKEN or the WebSocket subprotocol bearer.TOKEN"
    )
    said = Places(Credentials.model_validate(ALL)).said
    for way in ("X-Api-Key: TOKEN", "the cookie access=TOKEN", "?access_token=TOKEN"):
        assert way in said


@pytest.mark.parametrize(
    ("came", "token"),
    [
        (connection(), None),
        (connection(("Authorization", "Bearer abc")), "abc"),
        (connection(("Authorization", "Basic abc")), None),
        (connection(subprotocols=["bearer.abc"]), "abc"),
        (connection(subprotocols=["gateway.v1"]), None),
    ],
)
def test_a_bearer_token_is_that_of_the_header_or_of_the_subprotocol(came: Any, token: str | None):
    assert bearer(came) == token
