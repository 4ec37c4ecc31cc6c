from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from urllib.parse import parse_qs

import pytest
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.errors import AuthenticationFailed, BrokerUnavailable, KafkaError
from gateway.kafka.client.security import ClientCredentialsTokenProvider, FileTokenProvider

COMPRESSED = {"access_token": "x", "expires_in": 9}


class FakeIssuer:
    def __init__(self) -> None:
        self.status = 200
        self.answer_body: object = {"access_token": "one", "expires_in": 100}
        self.is_compressed = False
        self.requests: list[tuple[str, dict[str, list[str]]]] = []
        self.url = ""
        self.may_answer = Event()
        self.may_answer.set()


@pytest.fixture
def issuer() -> Iterator[FakeIssuer]:
    issuer = FakeIssuer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            issuer.requests.append((self.headers["Authorization"], parse_qs(body)))
            issuer.may_answer.wait()
            body = json.dumps(issuer.answer_body).encode()
            self.send_response(issuer.status)
            # What is compressed unasked is not read: gzip of gzip took gigabytes.
            if issuer.is_compressed or self.headers["Accept-Encoding"] != "identity":
                self.send_header("Content-Encoding", "gzip")
                body = gzip.compress(body)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer.url = f"http://127.0.0.1:{server.server_port}/token"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def wait_for_token(tokens: ClientCredentialsTokenProvider, expected: str) -> None:
    """Ask as connects do until the token that is renewed in the background is there."""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while await tokens.token() != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_token_is_issued_for_client_credentials_as_the_rfc_has_it(issuer: FakeIssuer):
    tokens = ClientCredentialsTokenProvider(
        issuer.url, "me:you", "s&cret", "kafka", {"audience": "k"}
    )
    assert await tokens.token() == "one"
    ((basic, form),) = issuer.requests
    assert base64.b64decode(basic.removeprefix("Basic ")) == b"me%3Ayou:s%26cret"
    assert form == {
        "grant_type": ["client_credentials"], "scope": ["kafka"], "audience": ["k"]
    }  # fmt: skip


async def test_it_is_kept_until_shortly_before_it_expires(issuer: FakeIssuer):
    now = 0.0
    tokens = ClientCredentialsTokenProvider(issuer.url, "me", "secret", clock=lambda: now)
    await asyncio.gather(*(tokens.token() for _ in range(5)))
    now = 79.0
    await tokens.token()
    assert len(issuer.requests) == 1
    now, issuer.answer_body = 81.0, {"access_token": "two"}
    await wait_for_token(tokens, "two")
    assert len(issuer.requests) == 2


async def test_the_lifetime_of_a_token_counts_from_before_it_was_asked_for(issuer: FakeIssuer):
    now = 0.0
    tokens = ClientCredentialsTokenProvider(issuer.url, "me", "secret", clock=lambda: now)
    issuer.may_answer.clear()
    waiting = asyncio.create_task(tokens.token())
    await wait_until(lambda: issuer.requests)
    now = 50.0
    issuer.may_answer.set()
    assert await waiting == "one"
    now, issuer.answer_body = 101.0, {"access_token": "two"}
    assert await tokens.token() == "two"


async def test_a_valid_token_is_used_while_its_issuer_is_silent(issuer: FakeIssuer):
    """Connects waited for the issuer for as long as they may wait for the broker, so each of them
    failed although the token was valid for up to a fifth of its lifetime more."""
    now = 0.0
    tokens = ClientCredentialsTokenProvider(
        issuer.url, "me", "secret", clock=lambda: now, timeout=10 * WAIT_TIMEOUT_S
    )
    await tokens.token()
    now, issuer.answer_body = 81.0, {"access_token": "two"}
    issuer.may_answer.clear()
    try:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            assert [await tokens.token() for _ in range(5)] == ["one"] * 5
            await wait_until(lambda: len(issuer.requests) == 2, "it is asked once")
    finally:
        issuer.may_answer.set()
    await wait_for_token(tokens, "two")


async def test_an_issuer_that_is_silent_is_named_once_no_token_is_left(issuer: FakeIssuer):
    tokens = ClientCredentialsTokenProvider(issuer.url, "me", "secret", timeout=0.1)
    issuer.may_answer.clear()
    try:
        with pytest.raises(BrokerUnavailable, match=f"{issuer.url} .*(within 0.1 s|timed out)"):
            await tokens.token()
    finally:
        issuer.may_answer.set()


def test_tokens_are_issued_in_an_event_loop_after_the_one_of_the_first_has_ended(issuer):
    """A lock belonged to the first loop: connects at the same time raised RuntimeError in the
    second one."""
    now = 0.0
    tokens = ClientCredentialsTokenProvider(issuer.url, "me", "secret", clock=lambda: now)

    async def fetch_tokens() -> list[str]:
        return await asyncio.gather(*(tokens.token() for _ in range(3)))

    async def begin_renewal() -> None:
        await tokens.token()
        await asyncio.sleep(0)

    assert asyncio.run(fetch_tokens()) == ["one"] * 3
    now = 81.0
    asyncio.run(begin_renewal())  # which ends with the loop
    now, issuer.answer_body = 201.0, {"access_token": "two"}
    assert asyncio.run(fetch_tokens()) == ["two"] * 3


@pytest.mark.parametrize("status", [400, 401, 403])
async def test_refused_credentials_are_told_without_the_secret(issuer: FakeIssuer, status: int):
    issuer.status = status
    tokens = ClientCredentialsTokenProvider(issuer.url, "me", "hush")
    with pytest.raises(AuthenticationFailed, match=str(status)) as failed:
        await tokens.token()
    assert "hush" not in str(failed.value) + repr(tokens)


async def test_an_issuer_in_trouble_is_not_a_refusal(issuer: FakeIssuer):
    issuer.status = 503
    with pytest.raises(BrokerUnavailable):
        await ClientCredentialsTokenProvider(issuer.url, "me", "secret").token()


async def test_an_issuer_that_is_asked_too_often_is_not_a_refusal(issuer: FakeIssuer):
    """It was taken for a refusal of the credentials, which is retried after 5 s to a minute."""
    issuer.status = 429
    with pytest.raises(BrokerUnavailable):
        await ClientCredentialsTokenProvider(issuer.url, "me", "secret").token()


@pytest.mark.parametrize(
    "response",
    [
        b"upstream gone\r\n\r\n",
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n{"access_t',
        b'HTTP/1.1 200 OK\r\nContent-Length: 64\r\n\r\n{"access_t',
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
        b"",
    ],
    ids=["not HTTP", "chunks", "length", "headers", "nothing"],
)
async def test_an_issuer_that_breaks_off_its_answer_is_not_a_refusal(response: bytes):
    """`http.client.HTTPException`, which is no OSError, came out of connects: nobody expected it,
    and the task that read from the broker ended for good."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"grant_type")
        writer.write(response)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/token"
        with pytest.raises(BrokerUnavailable, match=url):
            await ClientCredentialsTokenProvider(url, "me", "secret").token()


async def test_an_issuer_that_answers_byte_by_byte_is_left():
    """Each attempt held a thread for as long as bytes came. After six nobody could look up a host
    name, and the gateway did not end."""
    was_answering, was_left = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):  # left before it had asked
            await reader.readuntil(b"grant_type")
            was_answering.set()
            writer.write(b"HTTP/1.1 200 OK\r\nX: ")
            reading = asyncio.create_task(reader.read())
            while not reading.done():
                writer.write(b"y")
                await asyncio.wait([reading], timeout=0.01)
            was_left.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/token"
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while not was_answering.is_set():
                with pytest.raises(BrokerUnavailable, match=r"within 0\.5 s"):
                    await ClientCredentialsTokenProvider(url, "me", "secret", timeout=0.5).token()
            await was_left.wait()


@pytest.mark.parametrize("url", ["https://login..example.com/token", "http://localhost:99999/t"])
async def test_a_url_that_cannot_be_used_is_named(url: str):
    """UnicodeError, or OverflowError, came out of connects, and the broker was blamed."""
    with pytest.raises(BrokerUnavailable, match=re.escape(url)):
        await ClientCredentialsTokenProvider(url, "me", "secret").token()


async def test_a_redirect_is_not_followed(issuer: FakeIssuer):
    """The request for the other URL would have no credentials, and no form."""
    issuer.status = 302
    with pytest.raises(AuthenticationFailed, match="302, a redirect"):
        await ClientCredentialsTokenProvider(issuer.url, "me", "secret").token()


async def test_an_issuer_that_is_away_is_not_a_refusal():
    with pytest.raises(BrokerUnavailable):
        await ClientCredentialsTokenProvider("http://127.0.0.1:1/token", "me", "secret").token()


@pytest.mark.parametrize("status", [401, 503])
async def test_a_valid_token_is_used_while_its_issuer_gives_no_other(issuer, status, caplog):
    """A token was dropped at four fifths of its lifetime: with the issuer away from then on,
    connections failed for the last fifth although the brokers still took the token."""
    now = 0.0
    tokens = ClientCredentialsTokenProvider(issuer.url, "me", "secret", clock=lambda: now)
    await tokens.token()
    issuer.status, now = status, 81.0
    assert await tokens.token() == "one"
    await wait_until(lambda: "is used for 19 s more" in caplog.text, "the failure is told")
    assert [await tokens.token() for _ in range(3)] == ["one"] * 3
    assert len(issuer.requests) == 2, "asked again only after a while"
    now = 99.0
    assert await tokens.token() == "one"
    await wait_until(lambda: "is used for 1 s more" in caplog.text, "asked again")
    now = 100.0
    with pytest.raises(KafkaError, match=str(status)):
        await tokens.token()
    issuer.status, issuer.answer_body = 200, {"access_token": "two", "expires_in": 100}
    assert await tokens.token() == "two"


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {},
        {"access_token": None},
        {"access_token": "x", "expires_in": "soon"},
        {"access_token": "x", "expires_in": float("nan")},
        {"access_token": "x", "expires_in": -1},
        {"access_token": "x", "expires_in": 10**400},
        COMPRESSED,
    ],
)
async def test_an_answer_that_is_no_token_is_told(issuer: FakeIssuer, answer: object):
    issuer.answer_body = answer
    issuer.is_compressed = answer == COMPRESSED
    with pytest.raises(AuthenticationFailed, match="no token"):
        await ClientCredentialsTokenProvider(issuer.url, "me", "secret").token()


async def test_a_token_file_is_read_anew(tmp_path):
    path = tmp_path / "token"
    path.write_text("one\n")
    tokens = FileTokenProvider(path)
    assert await tokens.token() == "one"
    path.write_text("two\n")
    assert await tokens.token() == "two"
    path.unlink()
    with pytest.raises(AuthenticationFailed, match="tokenFile"):
        await tokens.token()
