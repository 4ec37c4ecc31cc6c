from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from support.app_server import running_app
from support.certificates import CertificateAuthority
from support.tcp_proxy import TcpProxy
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.web.access.external_http import (
    ExternalHttp,
    ExternalHttpError,
    UnsendableRequest,
    parse_json,
)


class FakeSite:
    """seen: requests, with their headers. open: cleared while nobody is answered."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope)
        self.requests.append(request)
        await self.may_answer.wait()
        await self.build_response(request)(scope, receive, send)

    def build_response(self, request: Request) -> Response:
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
def site() -> FakeSite:
    return FakeSite()


@pytest.fixture
async def url(site: FakeSite) -> AsyncIterator[str]:
    async with running_app(site) as url:
        yield url


@pytest.fixture
async def elsewhere() -> AsyncIterator[ExternalHttp]:
    made = ExternalHttp()
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [("/plain?a=b", 200, b"yes"), ("/denied", 403, b"no"), ("/elsewhere", 307, b"")],
)
async def test_an_answer_is_what_it_is(elsewhere, url, path, status, body):
    response = await elsewhere.get(url + path, timeout_s=WAIT_TIMEOUT_S)
    assert (response.status, response.body) == (status, body)
    assert ("'/plain'" in response.describe_status()) is (path == "/elsewhere")


async def test_what_is_sent_is_what_was_given_and_no_cookie_of_another_answer(elsewhere, url, site):
    await elsewhere.get(f"{url}/cookie", timeout_s=WAIT_TIMEOUT_S)
    await elsewhere.get(
        f"{url}/plain?t=1", [(b"cookie", b"a=b"), (b"x-a", b"c")], timeout_s=WAIT_TIMEOUT_S
    )
    request = site.requests[-1]
    assert request.url.query == "t=1"
    expected = {"accept", "accept-encoding", "cookie", "host", "x-a"}
    assert set(request.headers) == expected
    assert request.headers["cookie"] == "a=b"


async def test_what_http_does_not_allow_is_not_sent(elsewhere: ExternalHttp, url: str, site):
    with pytest.raises(UnsendableRequest):
        await elsewhere.get(url, [(b"cookie", b"a=b\t")], timeout_s=WAIT_TIMEOUT_S)
    assert not site.requests
    assert (await elsewhere.get(url, timeout_s=WAIT_TIMEOUT_S)).body == b"yes"


async def test_nothing_of_a_question_is_logged(elsewhere, url, caplog):
    caplog.set_level(logging.DEBUG)
    secret = [(b"authorization", b"Bearer hunter2")]
    await elsewhere.get(f"{url}/plain?ticket=hunter3", secret, timeout_s=WAIT_TIMEOUT_S)
    with pytest.raises(ExternalHttpError) as away:
        await elsewhere.get("http://127.0.0.1:1/?ticket=hunter3", secret, timeout_s=WAIT_TIMEOUT_S)
    said = "".join(each.getMessage() for each in caplog.records) + str(away.value)
    assert "hunter" not in said


async def test_an_answer_without_an_end_is_none(elsewhere: ExternalHttp, url: str):
    with pytest.raises(ExternalHttpError, match="longer than 1000 bytes"):
        await elsewhere.get(f"{url}/huge", timeout_s=WAIT_TIMEOUT_S, max_body_bytes=1000)
    assert (await elsewhere.get(f"{url}/plain", timeout_s=WAIT_TIMEOUT_S)).status == 200


async def test_who_does_not_answer_is_waited_for_so_long(elsewhere, url, site):
    site.may_answer.clear()
    with pytest.raises(ExternalHttpError, match=r"no answer within 0\.1 s"):
        await elsewhere.get(f"{url}/plain", timeout_s=0.1)
    site.may_answer.set()
    assert (await elsewhere.get(f"{url}/plain", timeout_s=WAIT_TIMEOUT_S)).status == 200


@pytest.mark.parametrize("fault", ["refuse", "hang_up", "hide"])
async def test_who_is_away_is_away_and_may_come_back(elsewhere: ExternalHttp, url: str, fault: str):
    parts = urlsplit(url)
    async with TcpProxy(parts.hostname, parts.port) as proxy:
        there = f"http://{proxy.address}/plain"
        assert (await elsewhere.get(there, timeout_s=WAIT_TIMEOUT_S)).status == 200
        await getattr(proxy, fault)()
        with pytest.raises(ExternalHttpError):
            await elsewhere.get(there, timeout_s=0.2 if fault == "hide" else WAIT_TIMEOUT_S)
        await proxy.restore()
        assert (await elsewhere.get(there, timeout_s=WAIT_TIMEOUT_S)).status == 200


async def test_a_connection_that_was_kept_and_closed_is_not_missed(elsewhere, url):
    parts = urlsplit(url)
    async with TcpProxy(parts.hostname, parts.port) as proxy:
        for _ in range(5):
            assert (
                await elsewhere.get(f"http://{proxy.address}/", timeout_s=WAIT_TIMEOUT_S)
            ).status == 200
            proxy.cut()


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("http://", "host name"),
        ("http://127.0.0.1:1/", "connection refused"),
        ("http://localhost:1/", "connection refused"),
        ("http://nowhere.invalid/", "host name is unknown"),
        # These ended in a group of exceptions, a hundred lines long.
        ("http://127.0.0.1:99999999/x", "its URL cannot be used"),
        ("http://10.0.0.1:-1/", "its URL cannot be used"),
        ("http://[::1", "its URL cannot be used"),
        ("http://xn--/", "its URL cannot be used"),
        ("http://a\0b/", "its URL cannot be used"),
        ("http://\ud800/", "its URL cannot be used"),
        ("//a", "its URL cannot be used"),
    ],
)
async def test_nobody_there_is_away(elsewhere: ExternalHttp, url: str, cause: str):
    """Only the name of an exception was told: `it cannot be reached (ConnectError)`."""
    with pytest.raises(ExternalHttpError) as away:
        await elsewhere.get(url, timeout_s=WAIT_TIMEOUT_S)
    assert cause in str(away.value)


async def test_a_server_that_does_not_fit_in_tls_is_told(elsewhere: ExternalHttp, tmp_path: Path):
    """A certificate that is not trusted, and TLS on one side only, were a ConnectError, too."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CertificateAuthority(tmp_path).issue_certificate("server"))

    async def explain(scheme: str, server: asyncio.Server) -> str:
        with pytest.raises(ExternalHttpError) as away:
            port = server.sockets[0].getsockname()[1]
            await elsewhere.get(f"{scheme}://127.0.0.1:{port}/", timeout_s=WAIT_TIMEOUT_S)
        assert "_ssl.c" not in str(away.value)
        return str(away.value)

    async with (
        await asyncio.start_server(answer, "127.0.0.1", 0) as plain,
        await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as secure,
    ):
        assert "authority that is not trusted" in await explain("https", secure)
        assert "try https" in await explain("http", secure)
        assert "without TLS" in await explain("https", plain)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "it is empty"),
        (b"<!doctype html>", "it is HTML and no JSON"),
        (b"{", "it is no JSON in UTF-8"),
        # The text of a codec's exception was shown.
        (b"\xff\xfe\0", "it is no JSON in UTF-8"),
        (b"[" * 100_000, "it is nested too deeply"),
    ],
)
def test_a_body_that_is_no_json_is_described(body: bytes, reason: str):
    with pytest.raises(ValueError) as refused:
        parse_json(body)
    assert str(refused.value) == reason


async def test_its_end_ends_who_still_waits(url: str, site: FakeSite):
    elsewhere = ExternalHttp()
    site.may_answer.clear()
    waiting = asyncio.create_task(elsewhere.get(f"{url}/plain", timeout_s=WAIT_TIMEOUT_S))
    await wait_until(lambda: site.requests)
    await elsewhere.close()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    site.may_answer.set()
