"""What lets a client in is over at some time: its stream ends then, unless it is renewed."""

from __future__ import annotations

import contextlib
import json
import time
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.clients.wires import CLIENT_BY_WIRE, WireName, client_for_wire
from support.gateways import GatewayThread, build_config, running_gateway_process
from support.issuer import AUDIENCE, ISSUER_NAME, TokenIssuer
from support.multiplex import MultiplexClient
from support.oracle import StreamOracle
from support.topic_gateway import run_gateway_sync
from support.waiting import WAIT_TIMEOUT_S

from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 1})

ISSUER = TokenIssuer()
SOON = 2.0  # seconds


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    with run_gateway_sync(config_of(kafka)) as running:
        yield running


def config_of(kafka: EmbeddedKafka) -> dict[str, Any]:
    guard = {
        "type": "jwt", "issuer": ISSUER_NAME, "audience": AUDIENCE, "keys": ISSUER.jwks,
        "attributes": {"tenant": "tenant", "shelf": "shelf"}, "challenge": "24h",
    }  # fmt: skip

    def of_claim(path: str, claim: str) -> dict[str, Any]:
        own = [{"key": f"${{guarded['login'].attributes.{claim}}}"}]
        return {
            "when": [{"path": path}],
            "guarded": {"login": []},
            "with": {"topic": "orders", "filters": own, "format": "envelope"},
        }

    routes = [of_claim("/mine", "tenant"), of_claim("/shelf", "shelf")]
    return build_config(kafka.bootstrap, ["orders"], routes, guards={"login": guard})


def bearer(**claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(**claims)}"}


def token(**claims: Any) -> str:
    return ISSUER.issue_token(**{"tenant": "a", **claims})


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
async def test_a_stream_ends_with_its_token_and_says_so(gateway: GatewayThread, accept: str):
    async with httpx.AsyncClient(timeout=WAIT_TIMEOUT_S) as http:
        for seconds in (SOON, 5 * SOON, 20 * SOON):  # a busy machine may ask too late
            over = time.time() + seconds
            headers = {**bearer(exp=over), "Accept": accept}
            answer = await http.get(f"{gateway.base_url}/mine", headers=headers)
            if answer.status_code == 200:
                break
    assert time.time() >= int(over)
    assert answer.status_code == 200
    assert "token-expired" in answer.text.strip().splitlines()[-1]


@pytest.mark.night
async def test_a_socket_goes_on_with_a_new_token_and_ends_without_one(gateway: GatewayThread):
    headers = bearer(exp=time.time() + SOON)
    async with MultiplexClient(gateway.base_url, additional_headers=headers) as socket:
        await socket.subscribe("one", "/mine")
        until = time.time() + 3 * SOON
        await socket.send_message("token", jwt=token(exp=until))
        await socket.wait_for_message(None, "renewed")
        ended = await socket.wait_for_message("one", "end")
        assert ended["reason"] == "token-expired"
        assert time.time() >= int(until)


async def test_another_clients_token_renews_nothing(gateway: GatewayThread):
    async with MultiplexClient(gateway.base_url, additional_headers=bearer()) as socket:
        await socket.subscribe("one", "/mine")
        await socket.send_message("token", jwt=token(sub="eve"))
        error = await socket.wait_for_message(None, "error")
        assert error["code"] == "forbidden"


async def test_what_a_new_token_shows_comes_from_where_the_old_one_stood(
    gateway: GatewayThread, oracle: StreamOracle
):
    async with MultiplexClient(gateway.base_url, additional_headers=bearer()) as socket:
        await socket.subscribe("one", "/mine")
        await oracle.produce_records("orders", 5, key=b"a")
        await oracle.produce_records("orders", 5, key=b"b")
        await socket.wait_until(lambda: len(socket.get_records("one")) == 5)
        await socket.send_message("token", jwt=token(tenant="b"))
        await socket.wait_for_message("one", "begin", 1)
        await oracle.produce_records("orders", 5, key=b"a")
        await oracle.produce_records("orders", 5, key=b"b")
        await socket.wait_until(lambda: len(socket.get_records("one")) >= 10)
        first = socket.get_records("one")[0]["offset"]
        await socket.wait_until(lambda: socket.get_records("one")[-1]["offset"] == first + 19)
        seen = [(record["offset"] - first, record["key"]) for record in socket.get_records("one")]
        assert seen[:5] == [(n, "a") for n in range(5)]
        assert seen[-5:] == [(n, "b") for n in range(15, 20)]
        assert seen == sorted(set(seen)) and {key for _, key in seen[5:]} == {"b"}


# over HTTP


class Gunzip:
    """Before another parser; as strict as it can be: the sum at the end is that of all."""

    def __init__(self, behind: Any) -> None:
        self._behind = behind
        self._inflating = zlib.decompressobj(31)

    def feed(self, data: bytes) -> Any:
        return self._behind.feed(self._inflating.decompress(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)


class Gunzipping(RawClient):
    def create_parser(self) -> Any:
        return Gunzip(super().create_parser())


HTTP = pytest.mark.parametrize("wire", ["sse", "ndjson"])


async def renew(gateway: GatewayThread, client: RawClient, at: int = 0, **claims: Any) -> int:
    """Answer a challenge; the status of the answer."""
    await client.wait_for_events(lambda _: len(challenges(client)) > at)
    asked = challenges(client)[at]
    async with httpx.AsyncClient(timeout=WAIT_TIMEOUT_S, headers=bearer(**claims)) as http:
        return (await http.post(gateway.base_url + asked["url"])).status_code


def challenges(client: RawClient) -> list[dict[str, Any]]:
    return [json.loads(each["data"]) for each in client.events if each["event"] == "challenge"]


def begins(client: RawClient) -> list[dict[str, Any]]:
    return [json.loads(each["data"]) for each in client.events if each["event"] == "begin"]


def seen(client: RawClient) -> list[tuple[int, str]]:
    """Offsets, from its first one on, and keys of its records."""
    told = [json.loads(each["data"]) for each in client.events if each["event"] == "message"]
    return [(record["offset"] - told[0]["offset"], record["key"]) for record in told]


@HTTP
@pytest.mark.parametrize("gzip", [False, True])
async def test_what_a_posted_token_shows_comes_on_the_same_stream_from_where_it_stood(
    gateway: GatewayThread, oracle: StreamOracle, wire: WireName, gzip: bool
):
    headers = bearer(exp=time.time() + 600) | ({"Accept-Encoding": "gzip"} if gzip else {})
    kind = type("one", (Gunzipping, CLIENT_BY_WIRE[wire]) if gzip else (CLIENT_BY_WIRE[wire],), {})
    async with kind(f"{gateway.base_url}/mine", headers=headers) as client:
        await client.wait_for_events(lambda _: begins(client))
        await oracle.produce_records("orders", 5, key=b"a")
        await oracle.produce_records("orders", 5, key=b"b")
        await client.wait_for_events(lambda _: len(seen(client)) == 5)
        # the challenge of a day before expiry is due at once
        assert await renew(gateway, client, tenant="b", exp=time.time() + 600) == 204
        await client.wait_for_events(lambda _: len(begins(client)) == 2)
        told = begins(client)[1]
        assert told["changed"] is True and told["view"] == "changed"
        await oracle.produce_records("orders", 5, key=b"a")
        await oracle.produce_records("orders", 5, key=b"b")
        await client.wait_for_events(lambda _: seen(client)[-1:] == [(19, "b")])
        assert seen(client)[:5] == [(n, "a") for n in range(5)]
        assert {key for _, key in seen(client)[5:]} == {"b"}
        assert seen(client) == sorted(set(seen(client)))
        # and an end that strict readers of gzip take for whole
        for seconds in (SOON, 5 * SOON, 20 * SOON):  # a busy machine may come too late
            status = await renew(gateway, client, tenant="b", exp=time.time() + seconds)
            if status == 204:
                break
        assert status == 204
        await client.wait_for_events(
            lambda _: any(each["event"] == "end" for each in client.events)
        )
        assert len(client.responses) == 1
        if gzip:
            assert zlib.decompress(client.body, 31).count(b"token-expired") == 1


@HTTP
async def test_who_posts_for_another_or_for_nothing_renews_nothing(
    gateway: GatewayThread, wire: WireName
):
    url = f"{gateway.base_url}/mine"
    async with client_for_wire(wire, RawClient)(
        url, headers=bearer(exp=time.time() + 600)
    ) as client:
        assert await renew(gateway, client, sub="eve") == 403
        assert await renew(gateway, client, exp=time.time() - 1) == 401
        async with httpx.AsyncClient(timeout=WAIT_TIMEOUT_S, headers=bearer()) as http:
            gone = await http.post(f"{gateway.base_url}/streams/nothing/token")
            assert gone.status_code == 404 and "connect again" in gone.json()["detail"]
        assert await renew(gateway, client) == 204


async def test_a_socket_is_asked_for_a_token_once_for_all_its_streams(gateway: GatewayThread):
    headers = bearer(exp=time.time() + 600)
    async with MultiplexClient(gateway.base_url, additional_headers=headers) as socket:
        for name in ("one", "two"):
            await socket.subscribe(name, "/mine")
        await socket.wait_until(
            lambda: any(each["type"] == "challenge" for each in socket.messages)
        )
        await socket.send_message("ping", id="after")
        await socket.wait_for_message("after", "pong")
        asked = [each for each in socket.messages if each["type"] == "challenge"]
        assert len(asked) == 1 and asked[0]["guard"] == "login" and "url" not in asked[0]


@HTTP
async def test_a_token_that_ends_no_later_is_not_asked_for_again(
    gateway: GatewayThread, oracle: StreamOracle, wire: WireName
):
    until = int(time.time()) + 600
    url = f"{gateway.base_url}/mine"
    async with client_for_wire(wire, RawClient)(url, headers=bearer(exp=until)) as client:
        assert await renew(gateway, client, exp=until) == 204
        await oracle.produce_records("orders", 1, key=b"a")
        await client.wait_for_events(lambda _: seen(client) == [(0, "a")])
        assert len(challenges(client)) == 1
        assert await renew(gateway, client, exp=until + 600) == 204
        await client.wait_for_events(lambda _: len(challenges(client)) == 2)


async def test_a_token_that_is_not_good_for_all_streams_of_a_socket_changes_none(
    gateway: GatewayThread, oracle: StreamOracle
):
    async with MultiplexClient(gateway.base_url, additional_headers=bearer(shelf="s")) as socket:
        await socket.subscribe("one", "/mine")
        await socket.subscribe("two", "/shelf")
        await socket.send_message("token", jwt=token(tenant="b"))
        assert (await socket.wait_for_message(None, "error"))["code"] == "forbidden"
        for key in (b"b", b"a", b"s"):
            await oracle.produce_records("orders", 1, key=key)
        await socket.wait_until(lambda: socket.get_records("one") and socket.get_records("two"))
        assert [record["key"] for record in socket.get_records("one")] == ["a"]
        await socket.subscribe("three", "/shelf")


@pytest.mark.needs("process")
async def test_any_worker_renews(kafka: EmbeddedKafka, oracle: StreamOracle):
    config = config_of(kafka) | {}
    config["listen"] |= {"workers": 3}
    async with running_gateway_process(config) as gateway, contextlib.AsyncExitStack() as stack:
        url = f"{gateway.base_url}/mine"
        clients = [
            await stack.enter_async_context(RawClient(url, headers=bearer(exp=time.time() + 600)))
            for _ in range(6)
        ]
        for client in clients:
            await client.wait_for_events(lambda _, client=client: begins(client))
            for _ in range(3):
                # each post is a connection of its own, and so comes to any of them
                assert await renew(gateway, client) == 204
        await oracle.produce_records("orders", 1, key=b"a")
        for client in clients:
            await client.wait_for_events(lambda _, client=client: seen(client) == [(0, "a")])
            assert len(begins(client)) == 1
