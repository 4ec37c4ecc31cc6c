"""The keys of an issuer over HTTP: while it rotates them, is away, or slow."""

from __future__ import annotations

import asyncio
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
        await here.becomes(401, old)


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

        protocols: Any = ["gateway.v1", f"bearer.{good}"]
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
