"""What `listen` says of all requests of its port holds for the sidecar's; what it lets pages do
does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from support.brokers import embedded_kafka
from support.gateways import build_config, create_http_client
from support.in_process_gateway import running_in_process_gateway
from support.ndjson_request import build_chunk, open_ndjson_request, read_json_line
from support.sidecars import running_sidecar, wait_until_ready
from support.workers import running_workers

from gateway.cli.sidecar import create_sidecar

PARTS: Any = {"producer": {}, "consumer": {}}
FREE = ("/health/liveness", "/health/readiness", "/docs", "/docs.css", "/openapi.json")
kafka = embedded_kafka({"t": 1})


async def post(http: httpx.AsyncClient, **headers: str) -> httpx.Response:
    return await http.post("/producers/t", json={"records": [{}]}, headers=headers)


@pytest.mark.parametrize(
    ("limits", "status"), [({"connections": 1}, 503), ({"perAddress": 1}, 429)]
)
async def test_a_request_counts_as_a_connection_for_as_long_as_it_lasts(kafka, limits, status):
    async with running_sidecar(kafka.bootstrap, listen={"limits": limits}, **PARTS) as http:
        await wait_until_ready(http)
        async with open_ndjson_request(http, "t") as (reader, writer):
            writer.write(build_chunk(b'{"partition":0}\n'))
            await read_json_line(reader)
            refused = await post(http)
            body = refused.json()
            assert refused.status_code == body["statusCode"] == body["error_code"] == status
            assert int(refused.headers["Retry-After"]) >= 1
            assert refused.headers["content-type"] == "application/json"
            for path in FREE:
                assert (await http.get(path)).status_code == 200
        async with asyncio.timeout(60):
            while (await post(http)).status_code != 200:
                pass


async def test_an_address_may_ask_so_often(kafka):
    """Also with one connection, and for what is refused."""
    limits = {"rate": "3/h"}
    async with running_sidecar(kafka.bootstrap, listen={"limits": limits}, **PARTS) as http:
        await wait_until_ready(http)
        answers = [await post(http), await http.get("/nothing/here"), await post(http)]
        assert 429 not in [each.status_code for each in answers[:2]]
        answers = [await post(http) for _ in range(3)]
        assert answers[-1].status_code == 429
        assert answers[-1].json()["code"] == "TOO_MANY_REQUESTS"
        paths = (await http.get("/openapi.json")).json()["paths"]
        assert {path for path in paths if not all("429" in each for each in told(paths[path]))} == {
            path for path in FREE if path in paths
        }
        for path in FREE * 2:
            assert (await http.get(path)).status_code == 200


def told(item: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The answers of each of its operations."""
    return (each["responses"] for name, each in item.items() if name != "parameters")


@pytest.mark.needs("process")
async def test_two_workers_count_together(kafka):
    config = build_config(
        kafka.bootstrap, [], [], sidecar={"producer": {}}, listen={"limits": {"rate": "5/h"}}
    )
    async with running_workers(config, 2) as gateway:
        statuses = []
        for _ in range(12):  # a connection each, which either may take
            async with create_http_client(gateway) as http:
                statuses.append((await post(http)).status_code)
        assert statuses[-1] == 429
        assert statuses.count(429) >= 7


async def test_pages_are_refused_whatever_streams_let_them_do(kafka):
    """Streams of the same port may be read from that origin."""
    origin = "https://shop.example"
    access = {"policy": "cross-origin", "allow": {"origins": [origin]}}
    config = build_config(kafka.bootstrap, ["t"], sidecar=PARTS, listen={"access-control": access})
    async with (
        running_in_process_gateway(config, co_hosted_app_factory=create_sidecar) as (url, _),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http,
    ):
        await wait_until_ready(http)
        preflight = {
            "Origin": origin, "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type",
        }  # fmt: skip
        answers = [
            await post(http, Origin=origin),
            await http.get("/topics", headers={"Origin": origin}),
            await http.options("/producers/t", headers=preflight),
            await http.post("/consumers/g", headers={"Sec-Fetch-Site": "same-origin"}),
        ]
        assert [each.status_code for each in answers] == [403] * 4
        page = await http.get("/docs", headers={"Origin": origin})
        assert page.status_code == 200
        for each in (*answers, page):
            assert not [name for name in each.headers if name.startswith("access-control-")]
        async with http.stream("GET", "/records/t", headers={"Origin": origin}) as stream:
            assert stream.headers["access-control-allow-origin"] == origin
        assert (await post(http)).status_code == 200
