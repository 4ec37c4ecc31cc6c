"""How often somebody may try to be let in: each attempt counts, whatever the wire.

Attempts are counted by address, so each test comes from addresses of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.admin_api import ADMIN_SECTION, open_admin_api
from support.brokers import embedded_kafka
from support.gateways import GatewayThread, build_config, create_http_client
from support.in_process_gateway import running_in_process_gateway
from support.multiplex import MultiplexClient
from support.topic_gateway import run_gateway_sync
from websockets.exceptions import ConnectionClosed

from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 1})

BURST = 30
PATH = "/events/orders"
SHOP = "https://shop.example"


def config_of(kafka: EmbeddedKafka, **listen: Any) -> dict[str, Any]:
    routes = [
        {
            "when": [{"path": PATH}],
            "guarded": {"users": []},
            "with": {"topic": "orders", "produce": True},
        }
    ]
    guards = {"users": {"type": "inline", "users": {"ada": {"token": "token-of-ada"}}}}
    return build_config(kafka.bootstrap, ["orders"], routes, guards=guards, listen=listen)


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    shops = {"policy": "cross-origin", "allow": {"origins": [SHOP]}}
    limits = {"rate": "1/m", "burst": BURST}
    listen = {"forwarded": True, "limits": limits, "access-control": shops}
    admin = {**ADMIN_SECTION, "guarded": {"users": []}}
    with run_gateway_sync({**config_of(kafka, **listen), "admin": admin}) as running:
        yield running


def of(address: str, token: str | None = None) -> dict[str, str]:
    own = {"X-Forwarded-For": address}
    return own if token is None else {**own, "Authorization": f"Bearer {token}"}


async def statuses(
    gateway: GatewayThread, method: str, path: str, headers: dict[str, str]
) -> list[int]:
    async with create_http_client(gateway) as http:
        return [
            (await http.request(method, path, headers=headers)).status_code
            for _ in range(BURST + 10)
        ]


async def test_each_request_counts_whatever_it_asks_for(gateway: GatewayThread):
    """Renewals of tokens, OPTIONS and preflights were not counted: 100 of 100 were answered."""
    preflight = {"Origin": SHOP, "Access-Control-Request-Method": "GET"}
    for n, (method, path, headers, status) in enumerate(
        [
            ("GET", PATH, of("", "wrong"), 401),
            ("POST", "/streams/abcdefghijklmnopqrstuv/token", of("", "wrong"), 404),
            ("OPTIONS", PATH, of(""), 204),
            ("OPTIONS", PATH, preflight, 200),
        ]
    ):
        headers = {**headers, **of(f"192.0.2.{n}")}
        got = await statuses(gateway, method, path, headers)
        assert got == [status] * BURST + [429] * 10, (method, path)


async def test_all_but_health_checks_count(gateway: GatewayThread):
    """A page, or a path that nobody serves, may cost as much as a request that is answered."""
    for path, status, later in (
        ("/health/live", 200, 200),
        ("/", 200, 429),
        ("/nowhere", 404, 429),
    ):
        got = await statuses(gateway, "GET", path, of(f"192.0.2.{100 + len(path)}"))
        assert got == [status] * BURST + [later] * 10, path


async def guess(url: str, address: str, guesses: int) -> MultiplexClient:
    """On one socket, one token after the other, the last one right, and a ping between."""
    socket = MultiplexClient(url, additional_headers=of(address))
    async with socket:
        try:
            for n in range(guesses):
                jwt = "token-of-ada" if n == guesses - 1 else f"wrong-{n}"
                await socket.send_message("token", jwt=jwt)
                await socket.send_message("subscribe", id=f"{n}", path=PATH)
                await socket.send_message("ping")
        except ConnectionClosed:
            pass
        await socket.wait_closed()
    assert not [each for each in socket.messages if each["type"] == "begin"]
    return socket


def tried(socket: MultiplexClient) -> int:
    return sum(each.get("code") == "unauthorized" for each in socket.messages)


async def test_nobody_guesses_tokens_on_sockets(gateway: GatewayThread):
    """A socket could try 3,000 tokens in a second, since messages counted as nothing."""
    sockets = [await guess(gateway.base_url, "192.0.2.11", 1500) for _ in range(3)]
    assert {socket.close_code for socket in sockets} <= {1008, 1013}
    assert 0 < sum(map(tried, sockets)) <= BURST
    errors = [each for each in sockets[-1].messages if each["type"] == "error"]
    assert {each["code"] for each in errors} == {"busy"}, "its handshake is too many by then"


async def test_a_socket_that_tells_one_wrong_token_after_the_other_is_closed(kafka: EmbeddedKafka):
    """Also without a rate: what could be read and not be done never closed a socket."""
    async with running_in_process_gateway(config_of(kafka)) as (url, _):
        socket = await guess(url, "192.0.2.12", 200)
    assert (socket.close_code, tried(socket)) == (1008, 16)


async def test_a_produce_with_a_wrong_token_is_an_attempt(gateway: GatewayThread):
    """A record asks guards as a subscription does; it counted as nothing either."""
    async with MultiplexClient(gateway.base_url, additional_headers=of("192.0.2.13")) as socket:
        for n in range(1000):
            try:
                await socket.send_message("token", jwt=f"wrong-{n}")
                await socket.send_message("produce", id=f"{n}", path=PATH, value=n)
            except ConnectionClosed:
                break
        assert await socket.wait_closed() in (1008, 1013)
        assert sum(each.get("code") == "unauthorized" for each in socket.messages) <= BURST


async def test_a_page_may_open_all_its_streams_and_renew_its_token(gateway: GatewayThread):
    headers = of("192.0.2.14", "token-of-ada")
    async with MultiplexClient(gateway.base_url, additional_headers=headers) as socket:
        for n in range(100):
            await socket.send_message("subscribe", id=f"{n}", path=PATH)
        for n in range(100):
            await socket.wait_for_message(f"{n}", "begin")
        for n in range(5):
            await socket.send_message("token", jwt="token-of-ada")
            await socket.wait_for_message(None, "renewed", n)


async def test_one_who_asks_beyond_the_rate_is_told_when_to_come_back(gateway: GatewayThread):
    headers = of("192.0.2.15", "token-of-ada")
    async with MultiplexClient(gateway.base_url, additional_headers=headers) as socket:
        await socket.subscribe("a", PATH)
        for _ in range(200):
            try:
                await socket.send_message("change", id="a", path=PATH)
            except ConnectionClosed:
                break
        assert await socket.wait_closed() == 1013
        errors = [each for each in socket.messages if each["type"] == "error"]
        assert {each["code"] for each in errors} == {"rate-limited"}
        assert all(isinstance(each["retryAfter"], int) for each in errors), json.dumps(errors[:1])


async def test_operators_are_counted_apart_from_clients(gateway: GatewayThread):
    """The port of operators let anybody try tokens as often as they liked."""
    clients: Any = await statuses(gateway, "GET", PATH, of("127.0.0.1", "wrong"))
    assert clients[-1] == 429
    async with open_admin_api(gateway, of("127.0.0.1", "wrong")) as http:
        tried = [(await http.get("/streams")).status_code for _ in range(BURST + 5)]
    assert tried == [401] * BURST + [429] * 5
