"""The keys of an issuer over HTTP: while it rotates them, is away, slow, or talks nonsense."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from support.app_server import running_app
from support.brokers import embedded_kafka
from support.gateways import build_config
from support.in_process_gateway import running_in_process_gateway
from support.issuer import AUDIENCE, ISSUER_NAME, JwksApp, TokenIssuer
from support.multiplex import MultiplexClient
from support.stream_attempts import AttemptOptions, AttemptResult, attempt_stream
from support.tcp_proxy import TcpProxy
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.kafka.embedded import EmbeddedKafka

PATH = "/events/orders"
BROWSER = {"Sec-Fetch-Mode": "cors"}

kafka = embedded_kafka({"orders": 1})


class House:
    """A gateway, the issuer behind a door that can be shut, and who asks."""

    def __init__(self, url: str, site: JwksApp, door: TcpProxy) -> None:
        self.url, self.site, self.door = url, site, door
        self.issuer = site.issuer

    async def ask(self, token: str, wire: str = "lines", **headers: str) -> AttemptResult:
        comes = AttemptOptions({"Authorization": f"Bearer {token}", **headers})
        return await attempt_stream(wire, self.url, PATH, comes)

    async def becomes(self, status: int, token: str) -> AttemptResult:
        """The answer, once it is this one."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while True:
                told = await self.ask(token)
                if told.status == status:
                    return told
                await asyncio.sleep(0.02)


@asynccontextmanager
async def house(kafka: EmbeddedKafka, *, away: bool = False, **jwks: str) -> AsyncIterator[House]:
    """jwks: of the guard. away: from the beginning."""
    site = JwksApp(TokenIssuer("ES256"))
    async with running_app(site) as url, TcpProxy("127.0.0.1", urlsplit(url).port) as door:
        if away:
            await door.refuse()
        keys = {"refresh": "1h", "cooldown": "100ms", "timeout": "30s", "maxAge": "1d", **jwks}
        guard = {
            "type": "jwt", "issuer": ISSUER_NAME, "audience": AUDIENCE, "jwks": keys,
            "keys": f"http://{door.address}/jwks",
        }  # fmt: skip
        routes: Any = [
            {"when": [{"path": PATH}], "guarded": {"login": []}, "with": {"topic": "orders"}},
            {"when": [{"path": "/events/open"}], "with": {"topic": "orders"}},
        ]
        config = build_config(kafka.bootstrap, ["orders"], routes, guards={"login": guard})
        async with running_in_process_gateway(config) as (base, _):
            yield House(base, site, door)


async def read_warnings(url: str) -> tuple[int, list[str]]:
    """Return the status of /health/ready, and its warnings."""
    async with httpx.AsyncClient() as http:
        response = await http.get(f"{url}/health/ready")
    return response.status_code, response.json()["warnings"]


async def test_keys_are_fetched_before_anybody_comes_and_once(kafka: EmbeddedKafka):
    async with house(kafka, cooldown="1h") as here:
        await wait_until(lambda: here.site.request_count == 1, timeout_s=WAIT_TIMEOUT_S)
        said = await asyncio.gather(
            *[here.ask(here.issuer.issue_token(sub=f"{n}")) for n in range(20)]
        )
        assert {told.status for told in said} == {200} and here.site.request_count == 1


async def test_a_new_key_is_found_by_its_first_token_and_an_old_one_forgotten(
    kafka: EmbeddedKafka,
):
    async with house(kafka) as here:
        old = here.issuer.issue_token()
        assert (await here.ask(old)).status == 200
        here.issuer.rotate_key("k1", keep_old=True)
        await here.becomes(200, here.issuer.issue_token())
        assert (await here.ask(old)).status == 200, "its key is still there"
        here.issuer.rotate_key("k2")
        await here.becomes(200, here.issuer.issue_token())
        told = await here.ask(old)
        assert told.status == 401 and "no key" in told.challenge


async def test_a_key_that_is_taken_back_is_forgotten_though_no_new_one_comes(
    kafka: EmbeddedKafka,
):
    async with house(kafka, refresh="100ms") as here:
        here.issuer.rotate_key("k1", keep_old=True)
        stolen = here.issuer.issue_token()
        await here.becomes(200, stolen)
        here.issuer.rotate_key("k2")
        await here.becomes(401, stolen)


async def test_invented_keys_do_not_make_it_ask_for_each(kafka: EmbeddedKafka):
    async with house(kafka, cooldown="1h") as here:
        await here.becomes(200, here.issuer.issue_token())
        for n in range(20):
            invented = here.issuer.issue_token(headers={"kid": f"invented{n}"})
            assert (await here.ask(invented)).status == 401
        assert here.site.request_count == 1


@pytest.mark.parametrize("fault", ["refuse", "hang_up", "hide"])
async def test_while_the_issuer_is_away_its_old_keys_serve_and_nobody_waits(
    kafka: EmbeddedKafka, fault: str
):
    """Those that are due are asked for beside; the five minutes are those of a clock that can be
    set (tests/web/access/test_jwks.py)."""
    late = "1s" if fault == "hide" else "30s"
    async with house(kafka, refresh="100ms", timeout=late) as here:
        good = here.issuer.issue_token()
        await here.becomes(200, good)
        await getattr(here.door, fault)()
        for n in range(30):
            assert (await here.ask(here.issuer.issue_token(sub=f"{n}"))).status == 200
            await asyncio.sleep(0.01)
        bad = here.issuer.issue_token(exp=1_000_000_000)
        assert (await here.ask(bad)).status == 401, "nothing else is let in"

        here.issuer.rotate_key("k1", keep_old=True)
        new = here.issuer.issue_token()
        told = await here.becomes(503, new)
        assert 3 <= int(told.headers["retry-after"]) <= 10
        assert (await here.ask(good)).status == 200

        await here.door.restore()
        await here.becomes(200, new)


async def test_an_issuer_that_was_never_there_lets_nobody_in_and_everybody_come_back(
    kafka: EmbeddedKafka,
):
    async with house(kafka, away=True) as here:
        good = here.issuer.issue_token()
        told = await here.ask(good)
        assert told.status == 503 and told.problem["title"] == "Guard unavailable"
        assert 3 <= int(told.headers["retry-after"]) <= 10

        told = await here.ask(good, "events", **BROWSER)
        assert told.status == 200, "any other status would end an EventSource for good"
        assert '"guard-unavailable"' in told.text and "retry:" in told.text

        protocols: Any = [f"bearer.{good}"]
        async with MultiplexClient(here.url, PATH, subprotocols=protocols) as socket:
            assert (await socket.wait_for_message(None, "error"))["code"] == "guard-unavailable"
            assert await socket.wait_closed() == 1013
        assert (await here.ask(good, "multiplex")).status == 503
        assert (await attempt_stream("lines", here.url, "/events/open")).status == 200
        # Operators were not told: the gateway is ready, as other routes work.
        status, (warning,) = await read_warnings(here.url)
        assert status == 200 and warning.startswith("guard login: ")
        assert here.door.address in warning

        await here.door.restore()
        await here.becomes(200, good)
        assert await read_warnings(here.url) == (200, [])
        for wire in ("events", "socket", "multiplex"):
            assert (await here.ask(good, wire)).status == 200


async def test_a_slow_issuer_holds_up_only_those_who_need_it(kafka: EmbeddedKafka):
    async with house(kafka, away=True, cooldown="100ms") as here:
        here.site.is_open.clear()
        await here.door.restore()
        waiting = asyncio.create_task(here.becomes(200, here.issuer.issue_token()))
        await wait_until(lambda: here.site.request_count, timeout_s=WAIT_TIMEOUT_S)
        for wire in ("events", "lines", "socket", "multiplex"):
            assert (await attempt_stream(wire, here.url, "/events/open")).status == 200
        assert not waiting.done()
        here.site.is_open.set()
        assert (await waiting).status == 200


async def test_who_waits_for_a_slow_issuer_is_told_after_a_while(kafka: EmbeddedKafka):
    async with house(kafka, timeout="200ms") as here:
        here.site.is_open.clear()
        here.issuer.rotate_key("k1")
        await here.becomes(503, here.issuer.issue_token())
        here.site.is_open.set()
        await here.becomes(200, here.issuer.issue_token())


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"<html>Not found</html>", 200),
        (b"", 200),
        (b'{"keys": "none"}', 200),
        (b'{"keys": [{"kty": "RSA", "n": "!", "e": "AQAB"}]}', 200),
        (b"[" * 100_000, 200),
        (b" " * 5_000_000 + b'{"keys": []}', 200),
        (None, 500),
        (None, 404),
        (None, 302),
    ],
)
async def test_nonsense_takes_no_key_away(kafka: EmbeddedKafka, body: bytes | None, status: int):
    async with house(kafka, refresh="100ms") as here:
        good = here.issuer.issue_token()
        assert (await here.ask(good)).status == 200
        here.site.body, here.site.status = body, status
        asked = here.site.request_count
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while here.site.request_count < asked + 2:  # it was looked at, and asked for again
                assert (await here.ask(good)).status == 200
        here.issuer.rotate_key("k1", keep_old=True)
        here.site.body, here.site.status = None, 200
        await here.becomes(200, here.issuer.issue_token())


async def test_a_shared_secret_of_a_url_signs_nothing(kafka: EmbeddedKafka):
    async with house(kafka) as here:
        shared = TokenIssuer("HS256", "k7")
        here.site.body = json.dumps({"keys": [*here.issuer.jwks, *shared.jwks]}).encode()
        assert (await here.ask(here.issuer.issue_token())).status == 200
        assert (await here.ask(shared.issue_token())).status == 401
