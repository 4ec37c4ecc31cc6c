from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any

import pytest
from starlette.requests import HTTPConnection
from support.asking import asked, bearing, connection, route
from support.until import until

from gateway.config import Http
from gateway.errors import GuardUnavailable, NotGranted
from gateway.web.access.elsewhere import Away, Reply
from gateway.web.access.grant import Grant
from gateway.web.access.http import HttpGuard

ADA = {"identity": "ada", "roles": ["orders:read"], "attributes": {"tenant": "acme", "secret": 1}}


class Application:
    """Stands for what is elsewhere."""

    def __init__(self) -> None:
        self.reply: Any = ADA
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.open = asyncio.Event()
        self.open.set()

    async def get(self, url: str, headers: Any, *, within: float) -> Reply:
        named = [(name.decode(), value.decode("latin-1")) for name, value in headers]
        assert len(dict(named)) == len(named)
        self.asked.append((url, dict(named)))
        reply = self.reply
        await self.open.wait()
        if isinstance(reply, Away):
            raise reply
        return reply if isinstance(reply, Reply) else Reply(200, json.dumps(reply).encode())


@pytest.fixture
def application() -> Application:
    return Application()


def guard(application: Application, **options: Any) -> HttpGuard:
    given = {"type": "http", "url": "http://app/who", "attributes": ["tenant"], **options}
    settings = Http.model_validate(given)
    return HttpGuard("session", settings, "orders", application)  # type: ignore[arg-type]


def cookie(text: str = "session=abc") -> HTTPConnection:
    return connection(("Cookie", text), ("User-Agent", "x"), ("Host", "gateway"))


async def test_the_application_sees_what_is_forwarded_and_the_stream_and_nothing_else(
    application: Application,
):
    made = guard(application, forward={"query": ["ticket"]}, url="http://app/who?of=gateway")
    came = connection(
        ("Cookie", "session=abc"), ("Authorization", "Basic x"), ("Host", "gateway"),
        ("X-Forwarded-Uri", "/events/other"), query="ticket=a%26b%3D&filter=secret&ticket=2",
    )  # fmt: skip
    to = route("/events/{customer}/{what}")
    await made.grant(asked(came, to=to, params={"customer": "a/b c", "what": "x"}))
    ((url, headers),) = application.asked
    assert url == "http://app/who?of=gateway&ticket=a%26b%3D&ticket=2"
    assert headers == {
        "cookie": "session=abc",
        "authorization": "Basic x",
        "x-forwarded-method": "GET",
        "x-forwarded-uri": "/events/a%2Fb%20c/x",
    }


@pytest.mark.parametrize(
    ("said", "grant"),
    [
        (ADA, Grant("session", "ada", frozenset({"orders:read"}), {"tenant": "acme"})),
        ({"identity": 7}, Grant("session", "7")),
        ({"identity": "a", "roles": "r s"}, Grant("session", "a", frozenset({"r", "s"}))),
        (
            {"identity": "a", "attributes": {"tenant": 7}},
            Grant("session", "a", attributes={"tenant": "7"}),
        ),
        ({"identity": "a", "attributes": {"tenant": None}}, Grant("session", "a")),
        ({"identity": "a", "attributes": 7, "roles": 7}, Grant("session", "a")),
        ({"identity": "a", "expires": 4e9}, Grant("session", "a", expires=4e9)),
        ({"identity": "a", "expires": None}, Grant("session", "a")),
        (
            {"identity": "a", "expires": "2096-10-02T07:06:40Z"},
            Grant("session", "a", expires=4_000_000_000),
        ),
        (
            {"identity": "a", "expires": "2096-10-02T07:06:40"},
            Grant("session", "a", expires=4_000_000_000),
        ),
        (Reply(201, b'{"identity": "a"}'), Grant("session", "a")),
    ],
)  # fmt: skip
async def test_its_answer_makes_the_grant(application: Application, said: Any, grant: Grant):
    application.reply = said
    assert await guard(application).grant(asked(cookie())) == grant


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (Reply(401, b""), 401),
        (Reply(403, b'{"identity": "ada"}'), 403),
        ({"identity": "ada", "expires": 1}, 401),
    ],
)
async def test_it_may_deny(application: Application, reply: Any, status: int):
    application.reply = reply
    with pytest.raises(NotGranted) as refused:
        await guard(application).grant(asked(cookie()))
    assert refused.value.status == status and "abc" not in str(refused.value)


@pytest.mark.parametrize(
    "reply",
    [
        Away("there is no answer within 2 s"), Reply(500, b""), Reply(302, b""), Reply(404, b""),
        Reply(500, b'{"identity": "ada"}'), Reply(302, b'{"identity": "ada"}'), Reply(204, b""),
        Reply(200, b""), Reply(200, b"<html>"), Reply(200, b"[" * 9999),
        Reply(200, b"[]"), Reply(200, b"\xff"), {}, {"identity": ""}, {"identity": None},
        {"identity": ["ada"]}, {"identity": "\ud800"}, {"identity": "a", "expires": "soon"},
        {"identity": "a", "expires": []}, {"identity": "a", "expires": True},
        Reply(200, b'{"identity": "a", "expires": NaN}'),
        Reply(200, b'{"identity": "a", "expires": 1e999}'),
    ],
)  # fmt: skip
async def test_nobody_is_let_in_by_an_answer_that_is_none(
    application: Application, reply: Any, caplog: pytest.LogCaptureFixture
):
    """503 with a time to come back; the log says once what is wrong."""
    application.reply = reply
    made = guard(application)
    for _ in range(3):
        with pytest.raises(GuardUnavailable) as away:
            await made.grant(asked(cookie()))
        assert away.value.status == 503 and 3 <= (away.value.retry_after or 0) <= 10
    assert len(application.asked) == 3, "what is no answer is not remembered"
    (said,) = [each.getMessage() for each in caplog.records]
    assert "abc" not in said
    application.reply = ADA
    assert (await made.grant(asked(cookie()))).identity == "ada"


async def test_who_shows_nothing_is_not_asked_for(application: Application):
    with pytest.raises(NotGranted) as refused:
        await guard(application).grant(asked(connection(("Host", "gateway"), query="ticket=1")))
    assert refused.value.status == 401 and application.asked == []


async def test_its_word_holds_for_a_while(
    application: Application, monkeypatch: pytest.MonkeyPatch
):
    made = guard(application, cache="10s")
    now = time.time()
    monkeypatch.setattr("gateway.web.access.http.time.time", lambda: now)
    for _ in range(5):
        await made.grant(asked(cookie()))
    assert len(application.asked) == 1
    await made.grant(asked(cookie("session=other")))
    await made.grant(asked(cookie(), params={"customer": "8"}))
    assert len(application.asked) == 3, "another session, or another stream, is another question"
    now += 11
    application.reply = Reply(403, b"")
    for _ in range(5):
        with pytest.raises(NotGranted):
            await made.grant(asked(cookie()))
    assert len(application.asked) == 4, "and so does a denial"
    assert "abc" not in repr(made._known)


async def test_its_word_does_not_hold_longer_than_it_says(
    application: Application, monkeypatch: pytest.MonkeyPatch
):
    made = guard(application, cache="1h")
    now = time.time()
    monkeypatch.setattr("gateway.web.access.http.time.time", lambda: now)
    application.reply = {"identity": "ada", "expires": now + 5}
    await made.grant(asked(cookie()))
    now += 6
    application.reply = {"identity": "eve"}
    assert (await made.grant(asked(cookie()))).identity == "eve"


async def test_it_is_asked_once_for_all_who_come_with_the_same(application: Application):
    made = guard(application, cache="0s")
    application.open.clear()
    waiting = [asyncio.create_task(made.grant(asked(cookie()))) for _ in range(50)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    application.open.set()
    said = await asyncio.gather(*waiting, return_exceptions=True)
    assert len(application.asked) == 1
    assert [each for each in said[1:] if isinstance(each, Grant)] == said[1:]


async def test_nobody_complains_when_all_who_waited_are_gone(
    application: Application, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.ERROR)
    application.reply = Away("it cannot be reached")
    application.open.clear()
    made = guard(application)
    waiting = asyncio.create_task(made.grant(asked(cookie())))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    application.open.set()
    await until(lambda: not made._asking)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("came", "told", "shown"),
    [
        (bearing("a"), None, "Bearer a"),
        (connection(subprotocols=["gateway.v1", "bearer.b"]), None, "Bearer b"),
        (connection(("Authorization", "Basic x"), subprotocols=["bearer.b"]), None, "Basic x"),
        (bearing("a"), "c", "Bearer c"),
        (connection(), "c", "Bearer c"),
    ],
)
async def test_a_token_stands_in_authorization_however_it_came(
    application: Application, came: HTTPConnection, told: str | None, shown: str
):
    await guard(application).grant(asked(came, told))
    assert application.asked[0][1]["authorization"] == shown


@pytest.mark.parametrize("told", ["a\r\nX-Admin: 1", "a b", "\u00e9", "\ud800", "a\0"])
async def test_a_told_token_cannot_be_more_than_a_token(application: Application, told: str):
    with pytest.raises(NotGranted):
        await guard(application).grant(asked(cookie(), told))
    assert application.asked == []


async def test_only_what_sees_tokens_is_renewed_by_one(application: Application):
    assert guard(application).renewable
    assert not guard(application, forward={"headers": ["cookie"]}).renewable


async def test_it_remembers_so_many_answers_and_no_more(
    application: Application, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gateway.web.access.http.REMEMBERED", 3)
    made = guard(application)
    for n in range(9):
        await made.grant(asked(cookie(f"session={n}")))
    assert len(made._known) == 3
