"""If-Match holds whoever else writes the key through the same gateway, and however."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import Any

import httpx
import pytest
from support.brokers import embedded_kafka
from support.gateways import (
    GatewayProcess,
    GatewayThread,
    build_config,
    create_http_client,
    running_gateway,
)
from support.multiplex import MultiplexClient
from support.topic_gateway import run_gateway_sync
from support.waiting import WAIT_TIMEOUT_S
from support.workers import running_workers

from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"docs": 2, "plain": 1})

COMPARED = 20  # conditional writes that each of two clients gets in
BY_ID = [{"key": "${params.id}"}]


def route(path: str, method: str, **options: Any) -> dict[str, Any]:
    return {"when": [{"path": path, "method": method}], "with": {"topic": "docs", **options}}


def routes(eu: bool = False) -> list[dict[str, Any]]:
    filters = [{"key": "${params.id}", "value": {"/region": "eu"}}] if eu else BY_ID
    return [
        route("/items/{id}", "GET", capability="fetch", filters=filters),
        route("/items/{id}", "PUT", capability="produce", key="${params.id}", filters=filters),
        route("/any/{id}", "PUT", capability="produce", key="${params.id}"),
        {"when": [{"path": "/all"}], "with": {"topic": "docs", "format": "envelope"}},
        {
            "when": [{"path": "/socket/{id}"}],
            "with": {"topic": "docs", "produce": True},
        },
        {
            "when": [{"path": "/lost/{id}"}],
            "with": {
                "capability": "produce", "topic": "docs", "key": "${params.id}", "acks": "none",
            },
        },
    ]  # fmt: skip


SIDECAR: dict[str, Any] = {"producer": {"valueFormat": "string"}}


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    config = build_config(kafka.bootstrap, ["docs"], routes(), sidecar=SIDECAR)
    with run_gateway_sync(config) as gateway:
        yield gateway


AnyGateway = GatewayThread | GatewayProcess


class Plain:
    """Writers without a condition, by each of the ways; they count what is taken."""

    def __init__(self, gateway: AnyGateway, key: str) -> None:
        self.gateway, self.key, self.written = gateway, key, 0
        self._http: httpx.AsyncClient
        self._socket: MultiplexClient

    async def put(self) -> None:
        answer = await self._http.put(f"/items/{self.key}", content=b"plain")
        self.written += answer.status_code == 201

    async def put_once(self) -> None:
        once = {"Idempotency-Key": f"{self.key}-{self.written}"}
        answer = await self._http.put(f"/items/{self.key}", content=b"plain", headers=once)
        self.written += answer.status_code == 201

    async def lose(self) -> None:
        answer = await self._http.post(f"/lost/{self.key}", content=b"plain")
        self.written += answer.status_code == 202

    async def socket(self) -> None:
        id = f"{self.written}"
        path = f"/socket/{self.key}"
        await self._socket.send_message("produce", id=id, path=path, key=self.key, value="plain")
        await self._socket.wait_until(
            lambda: any(each.get("id") == id for each in self._socket.messages)
        )
        self.written += 1

    async def sidecar(self) -> None:
        records = [{"key": self.key, "value": "plain"}, {"key": "another", "value": "plain"}]
        answer = await self._http.post("/producers/docs", json={"records": records})
        assert answer.status_code == 200, answer.text
        self.written += 1

    async def sidecar_v2(self) -> None:
        key, value = (b64encode(each.encode()).decode() for each in (self.key, "plain"))
        body = json.dumps({"records": [{"key": key, "value": value}]})
        kind = {"Content-Type": "application/vnd.kafka.binary.v2+json"}
        answer = await self._http.post("/topics/docs", content=body, headers=kind)
        assert answer.status_code == 200, answer.text
        self.written += 1

    async def sidecar_lines(self) -> None:
        lines = json.dumps({"key": self.key, "value": "plain"}).encode() + b"\n"
        kind = {"Content-Type": "application/x-ndjson"}
        answer = await self._http.post("/producers/docs", content=3 * lines, headers=kind)
        assert answer.status_code == 200, answer.text
        self.written += 1

    async def write(self, way: Callable[[Plain], Awaitable[None]], over: asyncio.Event) -> None:
        random = Random(5)
        async with (
            create_http_client(self.gateway) as self._http,
            MultiplexClient(self.gateway.base_url) as self._socket,
        ):
            while not over.is_set():
                began = time.monotonic()
                await way(self)
                # In proportion, so that others get in between on a slow machine, too.
                await asyncio.sleep(random.uniform(0, 12 * (time.monotonic() - began)))


async def compare(gateway: AnyGateway, key: str) -> list[tuple[int, int]]:
    """What was compared with and what was written, by their offsets, of each that was let in."""
    found: list[tuple[int, int]] = []
    async with create_http_client(gateway) as http:
        while len(found) < COMPARED:
            tag = (await http.get(f"/items/{key}")).headers["etag"]
            answer = await http.put(f"/items/{key}", content=b"mine", headers={"If-Match": tag})
            assert answer.status_code in (201, 412), answer.text
            if answer.status_code == 201:
                found.append((int(tag.strip('"').split(".")[1]), answer.json()["offset"]))
    return found


async def offsets(gateway: AnyGateway, key: str) -> list[int]:
    """Of all records of the key."""
    async with create_http_client(gateway) as http:
        lines = {"Accept": "application/x-ndjson"}
        text = (await http.get("/all?from=earliest&until=latest", headers=lines)).text
    told = [json.loads(line) for line in text.splitlines()]
    return [each["offset"] for each in told if "offset" in each and each.get("key") == key]


async def lost_updates(
    gateway: AnyGateway, key: str, *ways: Callable[[Plain], Awaitable[None]]
) -> tuple[int, int]:
    """Records that a conditional write passed over, and those of the plain writers."""
    async with create_http_client(gateway) as http:
        assert (await http.put(f"/items/{key}", content=b"first")).status_code == 201
        assert (await http.get(f"/items/{key}")).status_code == 200
    plain = [(way, Plain(gateway, key)) for way in ways]
    over = asyncio.Event()
    async with asyncio.timeout(WAIT_TIMEOUT_S), asyncio.TaskGroup() as group:
        for way, writer in plain:
            group.create_task(writer.write(way, over))
        compared = await asyncio.gather(*(compare(gateway, key) for _ in range(2)))
        over.set()
    pairs = [pair for some in compared for pair in some]
    there = await offsets(gateway, key)
    passed = sum(before < each < after for before, after in pairs for each in there)
    return passed, sum(writer.written for _, writer in plain)


WAYS = [
    Plain.put, Plain.put_once, Plain.lose, Plain.socket,
    Plain.sidecar, Plain.sidecar_lines, Plain.sidecar_v2,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_none_is_overwritten_that_was_not_compared_with(gateway: GatewayThread, way: Any):
    """A writer without a condition took no turn: what it wrote between the comparison and the
    write of another was overwritten unseen, 87 times in 1,611."""
    passed, plain = await lost_updates(gateway, way.__name__, way)
    assert passed == 0
    assert plain, "nobody else wrote"


@pytest.mark.needs("process")
async def test_none_is_overwritten_whichever_workers_they_meet(kafka: EmbeddedKafka):
    config = build_config(kafka.bootstrap, ["docs"], routes())
    async with running_workers(config) as gateway:
        ways = [Plain.put, Plain.socket, Plain.put_once]
        passed, plain = await lost_updates(gateway, "workers", *ways)
        assert passed == 0
        assert plain


async def test_it_compares_with_what_its_route_shows(kafka: EmbeddedKafka):
    """The latest record of the key was compared with, whether or not the client may see it: with
    the tag that it was given it could never write, and `*` told that there was one."""
    config = build_config(kafka.bootstrap, ["docs"], routes(eu=True))
    async with running_gateway(config) as gateway, create_http_client(gateway) as http:

        async def put(region: str, path: str = "/items/shown", **headers: str) -> int:
            return (await http.put(path, json={"region": region}, headers=headers)).status_code

        assert await put("us", "/any/shown") == 201
        assert (await http.get("/items/shown")).status_code == 404
        assert await put("eu", **{"If-None-Match": "*"}) == 201
        tag = (await http.get("/items/shown")).headers["etag"]
        assert await put("us", "/any/shown") == 201
        again = await http.get("/items/shown")
        assert (again.json(), again.headers["etag"]) == ({"region": "eu"}, tag)
        assert await put("eu", **{"If-None-Match": "*"}) == 412
        assert await put("eu", **{"If-Match": tag}) == 201
        assert await put("eu", **{"If-Match": tag}) == 412
