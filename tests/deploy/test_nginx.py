"""deploy/nginx.conf does what it says, in front of a real gateway."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from aiokafka import AIOKafkaProducer
from support.clients.raw import RawClient
from support.gateways import GatewayProcess, build_config, running_gateway
from support.waiting import wait_until
from websockets import Origin
from websockets.asyncio.client import connect

from gateway.core.token.resume_token import TokenWriter, TopicPositions, parse_token, seal_token
from gateway.kafka.embedded import EmbeddedKafka

DEPLOY = Path(__file__).parents[2] / "deploy"
EVENTS = {"Accept": "text/event-stream", "Connection": "close"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@asynccontextmanager
async def nginx(folder: Path, gateway: GatewayProcess) -> AsyncIterator[str]:
    """The snippet as it is, but for its two ports."""
    port = free_port()
    text = (DEPLOY / "nginx.conf").read_text()
    text = text.replace("127.0.0.1:8080", f"127.0.0.1:{gateway.port}")
    text = text.replace("listen 80;", f"listen 127.0.0.1:{port};")
    (folder / "gateway.conf").write_text(text)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr notice;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}include {folder}/gateway.conf;\n}}\n"
    )
    command = shutil.which("nginx") or "/usr/sbin/nginx"
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            command, "-p", str(folder), "-c", str(folder / "nginx.conf"), stderr=log
        )
    try:
        await wait_until(lambda: answers(port), lambda: (folder / "log").read_text())
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def orders(client: RawClient) -> list[str]:
    return [event["data"] for event in client.events if event["event"] == "message"]


@pytest.mark.needs("nginx")
async def test_behind_nginx_events_come_at_once_and_a_restart_loses_none(
    embedded: EmbeddedKafka, tmp_path: Path
):
    embedded.create_topic("orders", 2)
    producer = AIOKafkaProducer(bootstrap_servers=embedded.bootstrap)
    await producer.start()
    try:
        async with (
            running_gateway(build_config(embedded.bootstrap, ["orders"])) as gateway,
            nginx(tmp_path, gateway) as url,
            RawClient(f"{url}/events/orders", headers=EVENTS) as client,
        ):
            await client.wait_for_events(1)
            await producer.send_and_wait("orders", b"first", partition=0)
            await client.wait_for_events(lambda _: orders(client) == ["first"])
            await gateway.kill()
            await producer.send_and_wait("orders", b"meanwhile", partition=1)
            await wait_until(lambda: len(client.responses) > 1, client.describe_state)
            async with httpx.AsyncClient(trust_env=False) as program:
                assert (await program.get(f"{url}/events/orders")).status_code == 503
            await gateway.start()
            await producer.send_and_wait("orders", b"after", partition=0)
            await client.wait_for_events(lambda _: len(orders(client)) >= 3)
            assert sorted(orders(client)) == ["after", "first", "meanwhile"]
            assert not client.is_closed
    finally:
        await producer.stop()


@pytest.mark.needs("nginx")
async def test_behind_nginx_the_id_of_2000_partitions_comes_through(
    embedded: EmbeddedKafka, tmp_path: Path
):
    embedded.create_topic("orders", 2000)
    async with running_gateway(build_config(embedded.bootstrap, ["orders"])) as gateway:
        async with RawClient(f"{gateway.base_url}/events/orders") as client:
            await client.wait_for_events(1)
            mine = parse_token(client.last_event_id)
        places = TopicPositions("orders", "", [10**10] * 2000, [0] * 2000)
        writer = TokenWriter("", [places], mine.issued)
        token = seal_token(writer.to_text(), mine.view_digest).decode()
        assert len(token) > 12_000
        async with nginx(tmp_path, gateway) as url, httpx.AsyncClient(trust_env=False) as http:
            headers = {**EVENTS, "Last-Event-ID": token}
            async with http.stream("GET", f"{url}/events/orders", headers=headers) as answer:
                assert answer.status_code == 200
                async for line in answer.aiter_lines():
                    if line.startswith("id: "):
                        break
                assert parse_token(line.removeprefix("id: ")).topics[0].offsets[0] == 10**10


@pytest.mark.needs("nginx")
async def test_behind_nginx_a_page_of_its_own_has_a_websocket(
    embedded: EmbeddedKafka, tmp_path: Path
):
    """Its Origin has the port that the browser knows; a Host without one was another site."""
    embedded.create_topic("orders", 1)
    async with (
        running_gateway(build_config(embedded.bootstrap, ["orders"])) as gateway,
        nginx(tmp_path, gateway) as url,
        connect(
            f"{url.replace('http', 'ws')}/events/orders", origin=Origin(url), proxy=None
        ) as socket,
        asyncio.timeout(30),
    ):
        assert json.loads(await socket.recv())["type"] == "begin"


@pytest.mark.needs("nginx")
async def test_behind_nginx_limits_are_by_the_clients_own_addresses(
    embedded: EmbeddedKafka, tmp_path: Path
):
    """What a client says of itself is believed as far as the proxy before it is: here that is this
    machine, which nginx adds."""
    embedded.create_topic("orders", 1)
    listen = {"limits": {"perAddress": 1}, "forwarded": ["127.0.0.1"]}
    config = build_config(embedded.bootstrap, ["orders"], listen=listen)

    def of(address: str) -> dict[str, str]:
        return {"X-Forwarded-For": address, **EVENTS}

    async with running_gateway(config) as gateway, nginx(tmp_path, gateway) as url:
        path = f"{url}/events/orders"
        async with (
            RawClient(path, headers=of("192.0.2.1")) as one,
            RawClient(path, headers=of("192.0.2.2")) as other,
            httpx.AsyncClient(trust_env=False) as http,
        ):
            await one.wait_for_events(1)
            await other.wait_for_events(1)
            assert (await http.get(path, headers=of("192.0.2.1"))).status_code == 429


@pytest.mark.needs("nginx")
async def test_behind_nginx_what_is_compressed_comes_at_once(
    embedded: EmbeddedKafka, tmp_path: Path
):
    embedded.create_topic("orders", 1)
    async with (
        running_gateway(build_config(embedded.bootstrap, ["orders"])) as gateway,
        nginx(tmp_path, gateway) as url,
        httpx.AsyncClient(trust_env=False, timeout=30) as http,
        AIOKafkaProducer(bootstrap_servers=embedded.bootstrap) as producer,
        http.stream("GET", f"{url}/events/orders", headers=EVENTS) as answer,
    ):
        assert answer.headers["content-encoding"] == "gzip"
        lines = answer.aiter_lines()
        async for line in lines:
            if line.startswith("id: "):
                break
        await producer.send_and_wait("orders", b"now", partition=0)
        async for line in lines:
            if line == "data: now":
                break
