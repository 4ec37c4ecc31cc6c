from __future__ import annotations

import base64
from typing import Any

import pytest
from support.asking import asked, bearing, connection

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


def guard(**options: Any) -> InlineGuard:
    settings = Inline.model_validate({"type": "inline", "users": USERS, **options})
    return InlineGuard("dev", settings, "orders")


def basic(name: str, password: str) -> Any:
    encoded = base64.b64encode(f"{name}:{password}".encode()).decode()
    return connection(("Authorization", f"Basic {encoded}"))


@pytest.mark.parametrize(
    ("came", "identity"),
    [
        (basic("ada", "love:lace"), "ada"),
        (bearing("t0p-secret"), "bot"),
        (connection(subprotocols=["bearer.t1"]), "\u00e9va"),
        (basic("\u00e9va", "p\u00e4ss"), "\u00e9va"),
        (connection(("authorization", "bAsIc YWRhOmxvdmU6bGFjZQ==")), "ada"),
    ],
)
async def test_a_user_comes_in_by_password_or_token(came: Any, identity: str):
    assert (await guard().grant(asked(came))).identity == identity


async def test_a_user_is_granted_what_the_file_says():
    assert await guard().grant(asked(basic("ada", "love:lace"))) == ADA


@pytest.mark.parametrize(
    "came",
    [
        basic("ada", "lovelace"), basic("ada", ""), basic("eve", "love:lace"), basic("", ""),
        basic("bot", ""), basic("bot", "t0p-secret"), basic("ADA", "love:lace"),
        bearing("love:lace"), bearing("t0p-secreT"), bearing("t"),
        connection(("Authorization", "Basic !!!")), connection(("Authorization", "Basic /w==")),
        connection(("Authorization", "Basic ")),
    ],
)  # fmt: skip
async def test_nobody_else_comes_in(came: Any):
    with pytest.raises(NotGranted) as refused:
        await guard().grant(asked(came))
    assert refused.value.status == 401 and 'error="invalid_token"' in str(refused.value.challenge)


async def test_a_browser_is_asked_for_name_and_password():
    with pytest.raises(NotGranted) as refused:
        await guard().grant(asked())
    expected = 'Basic realm="orders", charset="UTF-8", Bearer realm="orders"'
    assert refused.value.challenge == expected


async def test_tokens_may_come_from_elsewhere():
    made = guard(credentials={"query": {"t": "{credentials}"}})
    assert (await made.grant(asked(connection(query="t=t0p-secret")))).identity == "bot"
    with pytest.raises(NotGranted):
        await made.grant(asked(bearing("t0p-secret")))
    with pytest.raises(NotGranted) as refused:
        await made.grant(asked(connection(query="t=a&t=b")))
    assert refused.value.status == 400


async def test_a_told_token_beats_a_password():
    grant = await guard().grant(asked(basic("ada", "love:lace"), "t0p-secret"))
    assert grant.identity == "bot"
