from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from support.served import served
from support.tcp_proxy import TcpProxy
from support.until import until

from gateway.web.access.elsewhere import Away, Elsewhere

WITHIN = 30.0


class Site:
    """seen: requests, with their headers. open: cleared while nobody is answered."""

    def __init__(self) -> None:
        self.seen: list[Request] = []
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope)
        self.seen.append(request)
        await self.open.wait()
        await self.answer(request)(scope, receive, send)

    def answer(self, request: Request) -> Response:
        match request.url.path:
            case "/huge":
                return StreamingResponse(bytes(65536) for _ in range(100_000))
            case "/elsewhere":
                return RedirectResponse("/plain")
            case "/cookie":
                return Response(b"yes", headers={"Set-Cookie": "session=of-another; Path=/"})
            case "/denied":
                return Response(b"no", 403)
        return Response(b"yes")


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
async def url(site: Site) -> AsyncIterator[str]:
    async with served(site) as url:
        yield url


@pytest.fixture
async def elsewhere() -> AsyncIterator[Elsewhere]:
    made = Elsewhere()
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [("/plain?a=b", 200, b"yes"), ("/denied", 403, b"no"), ("/elsewhere", 307, b"")],
)
async def test_an_answer_is_what_it_is(
    elsewhere: Elsewhere, url: str, path: str, status: int, body: bytes
):
    assert await elsewhere.get(url + path, within=WITHIN) == (status, body)


async def test_what_is_sent_is_what_was_given_and_no_cookie_of_another_answer(
    elsewhere: Elsewhere, url: str, site: Site
):
    await elsewhere.get(f"{url}/cookie", within=WITHIN)
    await elsewhere.get(f"{url}/plain?t=1", [(b"cookie", b"a=b"), (b"x-a", b"c")], within=WITHIN)
    request = site.seen[-1]
    assert request.url.query == "t=1"
    expected = {"accept", "accept-encoding", "cookie", "host", "x-a"}
    assert set(request.headers) == expected
    assert request.headers["cookie"] == "a=b"


async def test_nothing_of_a_question_is_logged(
    elsewhere: Elsewhere, url: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    secret = [(b"authorization", b"Bearer hunter2")]
    await elsewhere.get(f"{url}/plain?ticket=hunter3", secret, within=WITHIN)
    with pytest.raises(Away) as away:
        await elsewhere.get("http://127.0.0.1:1/?ticket=hunter3", secret, within=WITHIN)
    said = "".join(each.getMessage() for each in caplog.records) + str(away.value)
    assert "hunter" not in said


async def test_an_answer_without_an_end_is_none(elsewhere: Elsewhere, url: str):
    with pytest.raises(Away, match="longer than 1000 bytes"):
        await elsewhere.get(f"{url}/huge", within=WITHIN, most=1000)
    assert (await elsewhere.get(f"{url}/plain", within=WITHIN)).status == 200


async def test_who_does_not_answer_is_waited_for_so_long(
    elsewhere: Elsewhere, url: str, site: Site
):
    site.open.clear()
    with pytest.raises(Away, match=r"no answer within 0\.1 s"):
        await elsewhere.get(f"{url}/plain", within=0.1)
    site.open.set()
    assert (await elsewhere.get(f"{url}/plain", within=WITHIN)).status == 200


@pytest.mark.parametrize("fault", ["refuse", "hang_up", "hide"])
async def test_who_is_away_is_away_and_may_come_back(elsewhere: Elsewhere, url: str, fault: str):
    parts = urlsplit(url)
    async with TcpProxy(parts.hostname, parts.port) as proxy:
        there = f"http://{proxy.address}/plain"
        assert (await elsewhere.get(there, within=WITHIN)).status == 200
        await getattr(proxy, fault)()
        with pytest.raises(Away):
            await elsewhere.get(there, within=0.2 if fault == "hide" else WITHIN)
        await proxy.restore()
        assert (await elsewhere.get(there, within=WITHIN)).status == 200


async def test_a_connection_that_was_kept_and_closed_is_not_missed(elsewhere: Elsewhere, url: str):
    parts = urlsplit(url)
    async with TcpProxy(parts.hostname, parts.port) as proxy:
        for _ in range(5):
            assert (await elsewhere.get(f"http://{proxy.address}/", within=WITHIN)).status == 200
            proxy.cut()


@pytest.mark.parametrize("url", ["http://", "http://127.0.0.1:1/"])
async def test_nobody_there_is_away(elsewhere: Elsewhere, url: str):
    with pytest.raises(Away):
        await elsewhere.get(url, within=WITHIN)


async def test_its_end_ends_who_still_waits(url: str, site: Site):
    elsewhere = Elsewhere()
    site.open.clear()
    waiting = asyncio.create_task(elsewhere.get(f"{url}/plain", within=WITHIN))
    await until(lambda: site.seen)
    await elsewhere.close()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    site.open.set()
