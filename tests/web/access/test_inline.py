from __future__ import annotations

import base64
from typing import Any

import pytest
from support.access_requests import build_access_request, build_bearer_connection, build_connection

from gateway.config import Inline
from gateway.errors import NotGranted
from gateway.web.access.grant import Grant
from gateway.web.access.inline import InlineGuard

USERS = {
    "ada": {"password": "love:lace", "roles": ["read", "write"], "attributes": {"region": "eu"}},
    "bot": {"token": "t0p-secret", "roles": ["read"]},
    "\u00e9va": {"password": "p\u00e4ss", "token": "t1"},
}
ADA = Grant("dev", "ada", frozenset({"read", "write"}), {"region": "eu"})


def build_guard(**options: Any) -> InlineGuard:
    settings = Inline.model_validate({"type": "inline", "users": USERS, **options})
    return InlineGuard("dev", settings, "orders")


def build_basic_connection(name: str, password: str) -> Any:
    encoded = base64.b64encode(f"{name}:{password}".encode()).decode()
    return build_connection(("Authorization", f"Basic {encoded}"))


@pytest.mark.parametrize(
    ("came", "identity"),
    [
        (build_basic_connection("ada", "love:lace"), "ada"),
        (build_bearer_connection("t0p-secret"), "bot"),
        (build_connection(subprotocols=["bearer.t1"]), "\u00e9va"),
        (build_basic_connection("\u00e9va", "p\u00e4ss"), "\u00e9va"),
        (build_connection(("authorization", "bAsIc YWRhOmxvdmU6bGFjZQ==")), "ada"),
    ],
)
async def test_a_user_comes_in_by_password_or_token(came: Any, identity: str):
    assert (await build_guard().grant(build_access_request(came))).identity == identity


async def test_a_user_is_granted_what_the_file_says():
    assert (
        await build_guard().grant(build_access_request(build_basic_connection("ada", "love:lace")))
        == ADA
    )


@pytest.mark.parametrize(
    "came",
    [
        build_basic_connection("ada", "lovelace"),
        build_basic_connection("ada", ""),
        build_basic_connection("eve", "love:lace"),
        build_basic_connection("", ""),
        build_basic_connection("bot", ""),
        build_basic_connection("bot", "t0p-secret"),
        build_basic_connection("ADA", "love:lace"),
        build_bearer_connection("love:lace"),
        build_bearer_connection("t0p-secreT"),
        build_bearer_connection("t"),
        build_connection(("Authorization", "Basic !!!")),
        build_connection(("Authorization", "Basic /w==")),
        build_connection(("Authorization", "Basic ")),
    ],
)
async def test_nobody_else_comes_in(came: Any):
    with pytest.raises(NotGranted) as refused:
        await build_guard().grant(build_access_request(came))
    assert refused.value.status == 401 and 'error="invalid_token"' in str(refused.value.challenge)


async def test_a_browser_is_asked_for_name_and_password():
    with pytest.raises(NotGranted) as refused:
        await build_guard().grant(build_access_request())
    expected = 'Basic realm="orders", charset="UTF-8", Bearer realm="orders"'
    assert refused.value.challenge == expected


async def test_tokens_may_come_from_elsewhere():
    made = build_guard(credentials={"query": {"t": "{credentials}"}})
    assert (
        await made.grant(build_access_request(build_connection(query_string="t=t0p-secret")))
    ).identity == "bot"
    with pytest.raises(NotGranted):
        await made.grant(build_access_request(build_bearer_connection("t0p-secret")))
    with pytest.raises(NotGranted) as refused:
        await made.grant(build_access_request(build_connection(query_string="t=a&t=b")))
    assert refused.value.status == 400


async def test_a_told_token_beats_a_password():
    grant = await build_guard().grant(
        build_access_request(build_basic_connection("ada", "love:lace"), "t0p-secret")
    )
    assert grant.identity == "bot"
