from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import HTTPConnection
from support.access_requests import (
    build_access_request,
    build_bearer_connection,
    build_connection,
    build_route,
)
from support.waiting import wait_until

from gateway.config import Http
from gateway.errors import GuardUnavailable, NotGranted
from gateway.web.access.external_http import ExternalHttpError, ExternalResponse, UnsendableRequest
from gateway.web.access.grant import Grant
from gateway.web.access.http import HttpGuard

ADA = {"identity": "ada", "roles": ["orders:read"], "attributes": {"tenant": "acme", "secret": 1}}


class FakeExternalHttp:
    """Stands for what is elsewhere."""

    def __init__(self) -> None:
        self.reply: Any = ADA
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def get(self, url: str, headers: Any, *, timeout_s: float) -> ExternalResponse:
        named = [(name.decode(), value.decode("latin-1")) for name, value in headers]
        assert len(dict(named)) == len(named)
        self.requests.append((url, dict(named)))
        reply = self.reply
        await self.may_answer.wait()
        if isinstance(reply, ExternalHttpError):
            raise reply
        return (
            reply
            if isinstance(reply, ExternalResponse)
            else ExternalResponse(200, json.dumps(reply).encode())
        )


@pytest.fixture
def application() -> FakeExternalHttp:
    return FakeExternalHttp()


def build_guard(
    application: FakeExternalHttp,
    kind: type[HttpGuard] = HttpGuard,
    clock: Callable[[], float] = time.time,
    **options: Any,
) -> HttpGuard:
    given = {"type": "http", "url": "http://app/who", "attributes": ["tenant"], **options}
    settings = Http.model_validate(given)
    return kind("session", settings, "orders", application, clock=clock)  # type: ignore[arg-type]


def build_cookie_connection(text: str = "session=abc") -> HTTPConnection:
    return build_connection(("Cookie", text), ("User-Agent", "x"), ("Host", "gateway"))


async def test_the_application_sees_what_is_forwarded_and_the_stream_and_nothing_else(application):
    made = build_guard(application, forward={"query": ["ticket"]}, url="http://app/who?of=gateway")
    came = build_connection(
        ("Cookie", "session=abc"), ("Authorization", "Basic x"), ("Host", "gateway"),
        ("X-Forwarded-Uri", "/events/other"), query_string="ticket=a%26b%3D&filter=secret&ticket=2",
    )  # fmt: skip
    to = build_route("/events/{customer}/{what}")
    await made.grant(
        build_access_request(came, route=to, params={"customer": "a/b c", "what": "x"})
    )
    ((url, headers),) = application.requests
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
        (ExternalResponse(201, b'{"identity": "a"}'), Grant("session", "a")),
    ],
)  # fmt: skip
async def test_its_answer_makes_the_grant(application: FakeExternalHttp, said: Any, grant: Grant):
    application.reply = said
    assert (
        await build_guard(application).grant(build_access_request(build_cookie_connection()))
        == grant
    )


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (ExternalResponse(401, b""), 401),
        (ExternalResponse(403, b'{"identity": "ada"}'), 403),
        ({"identity": "ada", "expires": 1}, 401),
    ],
)
async def test_it_may_deny(application: FakeExternalHttp, reply: Any, status: int):
    application.reply = reply
    with pytest.raises(NotGranted) as refused:
        await build_guard(application).grant(build_access_request(build_cookie_connection()))
    assert refused.value.status == status and "abc" not in str(refused.value)


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (ExternalResponse(400, b""), 401),
        (UnsendableRequest("it cannot be reached (LocalProtocolError)"), 401),
        (ExternalResponse(413, b""), 431),
        (ExternalResponse(414, b""), 431),
        (ExternalResponse(431, b""), 431),
    ],
)
async def test_what_the_application_cannot_read_is_the_clients_fault(
    application, reply, status, caplog
):
    """The guard was said to be away: anybody could do that with a cookie of 20 KB."""
    application.reply = reply
    made = build_guard(application)
    with pytest.raises(NotGranted) as refused:
        await made.grant(build_access_request(build_cookie_connection()))
    assert refused.value.status == status and "abc" not in str(refused.value)
    assert made.find_problem() is None and not caplog.records
    application.reply = ExternalResponse(500, b"")
    with pytest.raises(GuardUnavailable):
        await made.grant(build_access_request(build_cookie_connection("session=b")))
    problem = made.find_problem()
    assert problem is not None and "//app" not in problem, "clients can read it"
    application.reply = reply
    with pytest.raises(NotGranted):
        await made.grant(build_access_request(build_cookie_connection("session=c")))
    assert made.find_problem() == problem


async def test_a_parameter_that_no_url_can_hold_is_not_sent(application: FakeExternalHttp):
    made = build_guard(application, forward={"query": ["ticket"]})
    came = build_connection(query_string="ticket=" + 30_000 * "%3D")
    with pytest.raises(NotGranted) as refused:
        await made.grant(build_access_request(came))
    assert refused.value.status == 431 and not application.requests
    assert made.find_problem() is None


async def test_whitespace_around_a_header_is_not_sent(application: FakeExternalHttp):
    await build_guard(application).grant(
        build_access_request(build_cookie_connection("\tsession=abc \t"))
    )
    ((_, headers),) = application.requests
    assert headers["cookie"] == "session=abc"


@pytest.mark.parametrize(
    "reply",
    [
        ExternalHttpError("there is no answer within 2 s"),
        ExternalResponse(500, b""),
        ExternalResponse(302, b""),
        ExternalResponse(404, b""),
        ExternalResponse(500, b'{"identity": "ada"}'),
        ExternalResponse(302, b'{"identity": "ada"}'),
        ExternalResponse(204, b""),
        ExternalResponse(200, b""),
        ExternalResponse(200, b"<html>"),
        ExternalResponse(200, b"[" * 9999),
        ExternalResponse(200, b"[]"),
        ExternalResponse(200, b"\xff"),
        {},
        {"identity": ""},
        {"identity": None},
        {"identity": ["ada"]},
        {"identity": "\ud800"},
        {"identity": "a", "expires": "soon"},
        {"identity": "a", "expires": []},
        {"identity": "a", "expires": True},
        {"identity": "a", "expires": 4_000_000_000_000},  # milliseconds: it never expired
        ExternalResponse(200, b'{"identity": "a", "expires": NaN}'),
        ExternalResponse(200, b'{"identity": "a", "expires": 1e999}'),
    ],
)
async def test_nobody_is_let_in_by_an_answer_that_is_none(application, reply, caplog):
    """503 with a time to come back; the log says once what is wrong."""
    application.reply = reply
    made = build_guard(application)
    for _ in range(3):
        with pytest.raises(GuardUnavailable) as away:
            await made.grant(build_access_request(build_cookie_connection()))
        assert away.value.status == 503 and 3 <= (away.value.retry_after or 0) <= 10
    assert len(application.requests) == 3, "what is no answer is not remembered"
    (said,) = [each.getMessage() for each in caplog.records]
    assert "abc" not in said
    application.reply = ADA
    assert (await made.grant(build_access_request(build_cookie_connection()))).identity == "ada"


async def test_who_shows_nothing_is_not_asked_for(application: FakeExternalHttp):
    with pytest.raises(NotGranted) as refused:
        await build_guard(application).grant(
            build_access_request(build_connection(("Host", "gateway"), query_string="ticket=1"))
        )
    assert refused.value.status == 401 and application.requests == []


async def test_its_word_holds_for_a_while(application: FakeExternalHttp):
    now = time.time()
    made = build_guard(application, clock=lambda: now, cache="10s")
    for _ in range(5):
        await made.grant(build_access_request(build_cookie_connection()))
    assert len(application.requests) == 1
    await made.grant(build_access_request(build_cookie_connection("session=other")))
    await made.grant(build_access_request(build_cookie_connection(), params={"customer": "8"}))
    assert len(application.requests) == 3, "another session, or another stream, is another question"
    now += 11
    application.reply = ExternalResponse(403, b"")
    for _ in range(5):
        with pytest.raises(NotGranted):
            await made.grant(build_access_request(build_cookie_connection()))
    assert len(application.requests) == 4, "and so does a denial"
    assert "abc" not in repr(vars(made))


async def test_its_word_does_not_hold_longer_than_it_says(application: FakeExternalHttp):
    now = time.time()
    made = build_guard(application, clock=lambda: now, cache="1h")
    application.reply = {"identity": "ada", "expires": now + 5}
    await made.grant(build_access_request(build_cookie_connection()))
    now += 6
    application.reply = {"identity": "eve"}
    assert (await made.grant(build_access_request(build_cookie_connection()))).identity == "eve"


async def test_it_is_asked_once_for_all_who_come_with_the_same(application: FakeExternalHttp):
    made = build_guard(application, cache="0s")
    application.may_answer.clear()
    waiting = [
        asyncio.create_task(made.grant(build_access_request(build_cookie_connection())))
        for _ in range(50)
    ]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    application.may_answer.set()
    said = await asyncio.gather(*waiting, return_exceptions=True)
    assert len(application.requests) == 1
    assert [each for each in said[1:] if isinstance(each, Grant)] == said[1:]


async def test_nobody_complains_when_all_who_waited_are_gone(application, caplog):
    caplog.set_level(logging.ERROR)
    application.reply = ExternalHttpError("it cannot be reached")
    application.may_answer.clear()
    made = build_guard(application)
    waiting = asyncio.create_task(made.grant(build_access_request(build_cookie_connection())))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    application.may_answer.set()
    await wait_until(lambda: len(asyncio.all_tasks()) == 1)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("came", "told", "shown"),
    [
        (build_bearer_connection("a"), None, "Bearer a"),
        (build_connection(subprotocols=["gateway.v1", "bearer.b"]), None, "Bearer b"),
        (
            build_connection(("Authorization", "Basic x"), subprotocols=["bearer.b"]),
            None,
            "Basic x",
        ),
        (build_bearer_connection("a"), "c", "Bearer c"),
        (build_connection(), "c", "Bearer c"),
    ],
)
async def test_a_token_stands_in_authorization_however_it_came(application, came, told, shown):
    await build_guard(application).grant(build_access_request(came, told))
    assert application.requests[0][1]["authorization"] == shown


@pytest.mark.parametrize("told", ["a\r\nX-Admin: 1", "a b", "\u00e9", "\ud800", "a\0"])
async def test_a_told_token_cannot_be_more_than_a_token(application: FakeExternalHttp, told: str):
    with pytest.raises(NotGranted):
        await build_guard(application).grant(build_access_request(build_cookie_connection(), told))
    assert application.requests == []


async def test_only_what_sees_tokens_is_renewed_by_one(application: FakeExternalHttp):
    assert build_guard(application).is_renewable
    assert not build_guard(application, forward={"headers": ["cookie"]}).is_renewable


class ForgetfulGuard(HttpGuard):
    MAX_CACHED_DECISIONS = 3


async def test_it_remembers_so_many_answers_and_no_more(application: FakeExternalHttp):
    made = build_guard(application, ForgetfulGuard)
    for n in [*range(9), 8, 7, 6]:
        await made.grant(build_access_request(build_cookie_connection(f"session={n}")))
    assert len(application.requests) == 9
    await made.grant(build_access_request(build_cookie_connection("session=5")))
    assert len(application.requests) == 10
