"""Requests that are written as records: by whom, where to, and once."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from support.brokers import embedded_kafka
from support.gateways import (
    GatewayThread,
    build_config,
    create_http_client,
    running_gateway,
)
from support.topic_gateway import run_gateway_sync
from support.waiting import WAIT_TIMEOUT_S
from support.workers import running_workers
from websockets.asyncio.client import connect

from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 3, "stock": 1, "lost": 1})

SHOP, EVIL = "https://shop.example", "https://evil.example"
PLACE = "{credentials}"
GUARDS = {
    "dev": {
        "type": "inline",
        "credentials": {"headers": {"authorization": f"Bearer {PLACE}"}, "cookies": {"sid": PLACE}},
        "users": {
            "ada": {"token": "of-ada", "password": "lovelace", "roles": ["write"]},
            "bob": {"token": "of-bob"},
        },
    }
}
CORS = {"access-control": {"policy": "cross-origin", "allow": {"origins": [SHOP]}}}


def route(path: str, method: str | None = None, /, **options: Any) -> dict[str, Any]:
    when = {"path": path} if method is None else {"path": path, "method": method}
    return {"when": [when], "with": {"topic": "orders", **options}}


def command(path: str, method: str | None = None, /, **options: Any) -> dict[str, Any]:
    return route(path, method, capability="produce", **options)


ROUTES = [
    command("/orders"),
    route("/orders", format="envelope"),
    command("/orders/{id}", "PUT", key="${params.id}", overrides={"from": "${query.by}"}),
    command("/orders/{id}", "DELETE", key="${params.id}"),
    command("/once", key="${idempotencyKey}"),
    command("/soon", acks="none"),
    command("/of/{customer}", filters=[{"key": "${params.customer}"}], key="${params.customer}"),
    command("/eu", filters=[{"headers": {"region": "eu"}}]),
    command("/gone", topic="gone"),
    command("/lost", topic="lost"),
    {
        **command("/mine", key="${guarded['dev'].identity}", overrides={
            "x-who": "${guarded['dev'].identity}",
        }),
        "guarded": {"dev": ["write"]},
    },
]  # fmt: skip


@pytest.fixture(scope="module")
def shop(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    topics = ["orders", "stock", "gone", "lost"]
    config = build_config(kafka.bootstrap, topics, ROUTES, guards=GUARDS, listen=CORS)
    with run_gateway_sync(config) as gateway:
        yield gateway


async def records(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    """All of the topic, as it is now."""
    lines = {"Accept": "application/x-ndjson"}
    answer = await http.get("/orders?from=earliest&until=latest", headers=lines)
    told = [json.loads(line) for line in answer.text.splitlines()]
    told = [each.get("@delete", each) for each in told]
    return [each for each in told if "offset" in each and "value" in each]


async def record_at(http: httpx.AsyncClient, answer: httpx.Response) -> dict[str, Any]:
    where = answer.json()
    (found,) = [
        each
        for each in await records(http)
        if (each["partition"], each["offset"]) == (where["partition"], where["offset"])
    ]
    return found


async def test_a_body_is_one_record_and_the_answer_says_where(shop: GatewayThread):
    async with create_http_client(shop) as http:
        body = "ünïcode\r\n\0".encode()
        answer = await http.post("/orders", content=body, headers={"Content-Type": "text/x-a; b=c"})
        assert (answer.status_code, answer.json()["topic"]) == (201, "orders")
        assert answer.headers["cache-control"] == "no-store"
        found = await record_at(http, answer)
        assert (found["key"], found["value"]) == (None, body.decode())
        assert found["headers"] == [["content-type", "text/x-a; b=c"]]
        empty = await http.post("/orders")
        assert empty.status_code == 201
        assert (await record_at(http, empty))["value"] == ""


async def test_key_and_headers_are_filled_in_by_the_route(shop: GatewayThread):
    async with create_http_client(shop) as http:
        answer = await http.put("/orders/a%2Fb?by=me", content=b"1", headers={"from": "you"})
        assert answer.status_code == 201
        found = await record_at(http, answer)
        assert (found["key"], found["headers"]) == ("a/b", [["from", "me"]])
        missing = await http.put("/orders/7", content=b"1")
        assert (missing.status_code, "'by'" in missing.json()["detail"]) == (400, True)


async def test_a_delete_writes_a_tombstone(shop: GatewayThread):
    async with create_http_client(shop) as http:
        answer = await http.delete("/orders/gone")
        assert answer.status_code == 200
        found = await record_at(http, answer)
        assert (found["key"], found["value"]) == ("gone", None)
        assert (await http.request("DELETE", "/orders/gone", content=b"x")).status_code == 400


async def test_one_that_is_tried_again_is_one_record(shop: GatewayThread):
    async with create_http_client(shop) as http, create_http_client(shop) as other:
        tried = {"Idempotency-Key": "again", "Content-Type": "text/plain"}
        first = await http.post("/orders", content=b"1", headers=tried)
        assert (first.status_code, "repeated" in first.json()) == (201, False)
        for client in (http, other):
            again = await client.post("/orders", content=b"1", headers=tried)
            assert (again.status_code, again.json()) == (200, {**first.json(), "repeated": True})
        mistake = await http.post("/orders", content=b"2", headers=tried)
        assert (mistake.status_code, mistake.json()["title"]) == (422, "Idempotency key reused")
        twice = await http.post("/orders", headers=[("Idempotency-Key", "a")] * 2)
        assert twice.status_code == 400
        assert (
            await http.post("/orders", headers={"Idempotency-Key": "k" * 257})
        ).status_code == 400


async def test_the_key_of_a_record_may_be_that_of_its_request(shop: GatewayThread):
    async with create_http_client(shop) as http:
        answer = await http.post("/once", content=b"1", headers={"Idempotency-Key": "of-1"})
        assert (await record_at(http, answer))["key"] == "of-1"
        without = await http.post("/once", content=b"1")
        assert without.status_code == 400 and "Idempotency-Key" in without.json()["detail"]


async def test_a_route_whose_records_may_be_lost_answers_at_once(shop: GatewayThread):
    async with create_http_client(shop) as http:
        answer = await http.post("/soon", content=b"soon")
        assert (answer.status_code, answer.json()) == (202, {"topic": "orders"})
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while True:
                if any(each["value"] == "soon" for each in await records(http)):
                    break
                await asyncio.sleep(0.05)


async def test_who_writes_a_part_of_a_topic_writes_that_part_only(shop: GatewayThread):
    async with create_http_client(shop) as http:
        assert (await http.post("/of/ada", content=b"1")).status_code == 201
        assert (await http.post("/eu", content=b"1", headers={"region": "eu"})).status_code == 403


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/orders", "POST, GET, HEAD, OPTIONS"),
        ("/orders/7", "PUT, DELETE, OPTIONS"),
        ("/once", "POST, OPTIONS"),
    ],
)
async def test_a_path_says_what_it_answers_to(shop: GatewayThread, path: str, allow: str):
    async with create_http_client(shop) as http:
        asked = await http.options(path)
        assert (asked.status_code, asked.headers["allow"]) == (204, allow)
        other = await http.patch(path)
        assert (other.status_code, other.headers["allow"]) == (405, allow)
        assert allow in other.json()["detail"]


async def test_what_cannot_be_written_is_told(shop: GatewayThread):
    async with create_http_client(shop) as http:
        assert (await http.post("/nowhere")).status_code == 404
        assert (await http.get("/once")).status_code == 405
        assert (await http.post("/gone", content=b"1")).status_code == 404
        assert (await http.post("/orders?filter=key=a")).status_code == 403
        packed = await http.post("/orders", content=b"1", headers={"Content-Encoding": "gzip"})
        assert packed.status_code == 415
        ifs = await http.post("/orders", headers={"If-Match": '"1"'})
        assert (ifs.status_code, "If-Match" in ifs.json()["detail"]) == (400, True)


async def test_a_body_that_is_too_large_is_refused_whether_or_not_it_says_so(shop: GatewayThread):
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(66):
            yield bytes(1024)

    async with create_http_client(shop) as http:
        assert (await http.post("/orders", content=bytes(65 * 1024))).status_code == 413
        assert (await http.post("/orders", content=pieces())).status_code == 413
        assert (await http.post("/orders", content=bytes(64 * 1024))).status_code == 201


BASIC = "Basic " + base64.b64encode(b"ada:lovelace").decode()
ASKED: list[tuple[dict[str, str], int]] = [
    ({}, 401),
    ({"authorization": "Bearer of-nobody"}, 401),
    ({"authorization": "Bearer of-bob"}, 403),
    ({"authorization": "Bearer of-ada"}, 201),
    ({"authorization": "Bearer of-ada", "origin": SHOP}, 201),
    ({"authorization": "Bearer of-ada", "origin": EVIL}, 403),
    ({"cookie": "sid=of-ada"}, 201),
    ({"cookie": "sid=of-ada", "origin": SHOP}, 403),  # credentials are not allowed there
    ({"cookie": "sid=of-ada", "origin": EVIL}, 403),
    ({"cookie": "sid=of-ada", "origin": "null"}, 403),
    ({"authorization": BASIC}, 201),
    ({"authorization": BASIC, "origin": SHOP}, 403),
]


@pytest.mark.parametrize(("headers", "status"), ASKED)
async def test_who_may_write_and_from_which_page(
    shop: GatewayThread, headers: dict[str, str], status: int
):
    async with create_http_client(shop) as http:
        answer = await http.post("/mine", content=b"1", headers=headers)
        assert answer.status_code == status, answer.text
        if status == 201:
            found = await record_at(http, answer)
            assert (found["key"], found["headers"]) == ("ada", [["x-who", "ada"]])


async def test_the_same_page_may_write_with_its_cookie(shop: GatewayThread):
    async with create_http_client(shop) as http:
        same = {"cookie": "sid=of-ada", "origin": shop.base_url}
        assert (await http.post("/mine", content=b"1", headers=same)).status_code == 201


SAID: list[tuple[dict[str, Any], str]] = [
    ({"path": "/orders/7?by=me", "key": "7"}, "produced"),
    ({"path": "/orders/7?by=me"}, "produced"),
    ({"path": "/orders/7?by=me", "key": "8"}, "forbidden"),
    ({"path": "/orders", "value": None}, "forbidden"),
    ({"path": "/orders/7?by=me", "value": None}, "forbidden"),
    ({"path": "/mine"}, "unauthorized"),
]


@pytest.mark.parametrize(("message", "told"), SAID)
async def test_over_websocket_a_route_fixes_what_it_fixes_over_http(
    shop: GatewayThread, message: dict[str, Any], told: str
):
    url = shop.base_url.replace("http", "ws", 1) + "/ws"
    async with connect(url, proxy=None) as ws, asyncio.timeout(WAIT_TIMEOUT_S):
        await ws.send(json.dumps({"type": "produce", "id": "1", "value": "v", **message}))
        answer = json.loads(await ws.recv())
        assert told in (answer["type"], answer.get("code")), answer


async def test_while_kafka_is_away_a_client_is_asked_to_come_back():
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        config = build_config(kafka.bootstrap, ["orders"], [command("/orders")])
        async with running_gateway(config) as gateway, create_http_client(gateway) as http:
            assert (await http.post("/orders", content=b"1")).status_code == 201
            kafka.down(1)
            answer = await http.post("/orders", content=b"2")
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            kafka.up(1)
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                while True:
                    if (await http.post("/orders", content=b"3")).status_code == 201:
                        break
                    await asyncio.sleep(0.1)


@pytest.mark.smoke
@pytest.mark.needs("process")
async def test_tried_again_at_any_of_three_workers_it_is_one_record():
    with EmbeddedKafka(topics={"orders": 3}) as kafka:
        routes = [command("/orders"), route("/orders", format="envelope")]
        config = build_config(kafka.bootstrap, ["orders"], routes)
        async with running_workers(config) as gateway:

            async def tries(n: int) -> httpx.Response:
                async with create_http_client(gateway) as http:  # a connection of its own
                    key = {"Idempotency-Key": str(n % 10)}
                    return await http.post("/orders", content=b"%d" % (n % 10), headers=key)

            answers = await asyncio.gather(*(tries(n) for n in range(60)))
            assert {each.status_code for each in answers} == {200, 201}
            assert sum(each.status_code == 201 for each in answers) == 10
            async with create_http_client(gateway) as http:
                found = sorted(each["value"] for each in await records(http))
                assert found == [str(n) for n in range(10)]
