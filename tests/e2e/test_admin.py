"""What operators ask on their own port: one answer for all workers, and to nobody else."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
from support.admin_api import ADMIN_SECTION, list_streams, open_admin_api
from support.brokers import embedded_kafka
from support.certificates import CertificateAuthority
from support.clients.raw import RawClient
from support.clients.wires import CLIENT_BY_WIRE, WireName, client_for_wire
from support.gateways import (
    GatewayProcess,
    GatewayThread,
    build_config,
    running_gateway,
    running_gateway_process,
)
from support.multiplex import MultiplexClient
from support.oracle import StreamOracle
from support.waiting import WAIT_TIMEOUT_S, wait_until
from support.workers import find_workers as workers_of
from support.workers import running_workers, wait_for_workers

from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 3, "stock": 3})
AnyGateway = GatewayThread | GatewayProcess

LINES = {"Accept": "application/x-ndjson"}
USERS = {
    "ada": {"token": "token-of-ada", "roles": ["read"]},
    "bob": {"token": "token-of-bob", "roles": ["read"]},
    "eve": {"token": "token-of-eve", "roles": ["read", "operate"]},
}
THREE = pytest.param(3, marks=pytest.mark.needs("process"))
WITH_WORKERS = [
    pytest.param(3, wire, marks=pytest.mark.needs("process")) for wire in ("sse", "websocket")
]
every_number_of_workers = pytest.mark.parametrize("workers", [1, THREE])
each_wire_with_some_workers = pytest.mark.parametrize(
    ("wire", "workers"),
    [
        *(
            pytest.param(wire, 3, marks=pytest.mark.needs("process"))
            for wire in ("sse", "websocket")
        ),
        *((wire, 1) for wire in ("sse", "ndjson", "websocket")),
    ],
)


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer token-of-{name}"}


def config_of(kafka: EmbeddedKafka, **admin: Any) -> dict[str, Any]:
    """/open for whoever comes, /kept for who is known, and a socket of many streams."""
    routes = [
        {"when": [{"path": "/open/{id}"}], "with": {"topic": "orders", "format": "envelope"}},
        {
            "when": [{"path": "/kept"}, {"path": "/v2/kept"}],
            "guarded": {"users": ["read"]},
            "with": {"topic": "stock", "format": "envelope"},
        },
    ]
    return build_config(
        kafka.bootstrap,
        ["orders", "stock"],
        routes,
        guards={"users": {"type": "inline", "users": USERS}},
        admin={**ADMIN_SECTION, **admin},
    )


@asynccontextmanager
async def running(config: Mapping[str, Any], workers: int) -> AsyncIterator[AnyGateway]:
    if workers == 1:
        async with running_gateway(config) as gateway:
            yield gateway
    else:
        async with running_workers(config, workers) as process:
            yield process


@contextmanager
def running_for_module(kafka: EmbeddedKafka, workers: int) -> Iterator[AnyGateway]:
    with asyncio.Runner() as runner:
        started = running(config_of(kafka), workers)
        gateway = runner.run(started.__aenter__())
        try:
            yield gateway
        finally:
            runner.run(started.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def gateway_of_1(kafka: EmbeddedKafka) -> Iterator[AnyGateway]:
    with running_for_module(kafka, 1) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def gateway_of_3(kafka: EmbeddedKafka) -> Iterator[AnyGateway]:
    with running_for_module(kafka, 3) as gateway:
        yield gateway


@pytest.fixture
def workers() -> int:
    """How many `gateway` has, where a test does not say so."""
    return 1


@pytest.fixture
def shared_gateway(request: pytest.FixtureRequest, workers: int) -> AnyGateway:
    gateway: AnyGateway = request.getfixturevalue(f"gateway_of_{workers}")
    return gateway


@pytest_asyncio.fixture
async def gateway(shared_gateway: AnyGateway) -> AsyncIterator[AnyGateway]:
    """Shared by the module; what operators forbade is allowed again after the test, and its streams
    are gone."""
    yield shared_gateway
    async with open_admin_api(shared_gateway) as http:
        for held in (await http.get("/revocations")).json()["revocations"]:
            given = {name: held[name] for name in ("identity", "guard") if name in held}
            assert (await http.delete("/revocations", params=given)).status_code == 200
        for route, told in (await routes_of(http)).items():
            if told["paused"]:
                assert (await http.post(f"/routes{route}/resume")).status_code == 200
        await none_listed(http)


@pytest.fixture
def read_log(caplog: pytest.LogCaptureFixture) -> Callable[[AnyGateway], str]:
    """What a gateway logged, one in a thread only since the test began."""
    caplog.set_level("INFO")
    return lambda gateway: gateway.log if isinstance(gateway, GatewayProcess) else caplog.text


def named(client: RawClient, name: str) -> list[dict[str, Any]]:
    return [json.loads(each["data"]) for each in client.events if each["event"] == name]


def reasons(client: RawClient) -> list[str]:
    return [end["reason"] for end in named(client, "end")]


def all_reasons(clients: Sequence[RawClient]) -> list[str]:
    return [reason for client in clients for reason in reasons(client)]


async def begun(client: RawClient, times: int = 1) -> None:
    await client.wait_for_events(lambda _: len(named(client, "begin")) >= times)


async def ended(client: RawClient, reason: str) -> None:
    await client.wait_for_events(lambda _: reason in reasons(client))


async def connected(
    stack: AsyncExitStack,
    gateway: AnyGateway,
    wire: WireName,
    path: str,
    name: str | None = None,
) -> RawClient:
    """With its first block; SSE as of a browser, which a 503 would end for good."""
    headers = {} if name is None else bearer(name)
    if wire == "sse":
        headers |= {"Sec-Fetch-Mode": "cors"}
    client = client_for_wire(wire, RawClient)(f"{gateway.base_url}{path}", headers=headers)
    await stack.enter_async_context(client)
    await begun(client)
    return client


@asynccontextmanager
async def client_of(gateway: AnyGateway) -> AsyncIterator[httpx.AsyncClient]:
    """On a connection for each request, so that each worker has some."""
    async with httpx.AsyncClient(
        base_url=gateway.base_url,
        headers={"Connection": "close"},
        timeout=WAIT_TIMEOUT_S,
        trust_env=False,
    ) as http:
        yield http


async def routes_of(http: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    told = (await http.get("/routes")).json()
    assert told["missing"] == []
    return {route["route"]: route for route in told["routes"]}


@every_number_of_workers
async def test_every_stream_is_listed_whatever_its_wire_and_its_worker(
    gateway: AnyGateway, workers: int
):
    async with AsyncExitStack() as stack:
        for wire in CLIENT_BY_WIRE:
            for n in range(3):
                await connected(stack, gateway, wire, f"/open/{n}?token=s3cret&_n={n}")
            await connected(stack, gateway, wire, "/kept", "ada")
        http = await stack.enter_async_context(open_admin_api(gateway))
        found = await list_streams(http)
        assert len(found) == 12 and len({stream["id"] for stream in found}) == 12
        assert {stream["wire"] for stream in found} == set(CLIENT_BY_WIRE)
        assert {stream["state"] for stream in found} == {"live"}
        assert {stream["address"] for stream in found} == {"127.0.0.1"}
        assert "s3cret" not in json.dumps(found)
        urls = [stream["url"] for stream in found]
        assert sum(url.startswith("/open/2?token=***&_n=2") for url in urls) == 3
        assert all(stream["bytes"] > 0 and stream["error"] is None for stream in found)
        found = counted_off(found)
        # one at a time they are the same, in the same order
        assert counted_off(await list_streams(http, "limit=1")) == found
        kept = [stream for stream in found if stream["route"] == "/kept"]
        assert [stream["identity"] for stream in kept] == [{"users": "ada"}] * 3
        for query in ("identity=ada", "route=/kept", "guard=users&limit=2"):
            assert counted_off(await list_streams(http, query)) == kept
        assert (
            await list_streams(http, "identity=bob")
            == await list_streams(http, "address=1.2.3.4")
            == []
        )
        one = (await http.get(f"/streams/{kept[0]['id']}")).json()
        assert one["topics"] == ["stock"] and one["position"]
        assert {stream["worker"] for stream in found} <= set(range(1, workers + 1))


def counted_off(streams: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Without what heartbeats change."""
    return [{name: told for name, told in one.items() if name != "bytes"} for one in streams]


async def test_what_holds_up_a_stream_is_told_until_it_is_over(
    kafka: EmbeddedKafka, gateway: AnyGateway
):
    async with AsyncExitStack() as stack:
        await connected(stack, gateway, "sse", "/open/1")
        http = await stack.enter_async_context(open_admin_api(gateway))
        kafka.down(1)
        try:
            error = await error_listed(http, held_up=True)
            assert error["partition"].startswith("orders-") and error["cause"] == "connection"
        finally:
            kafka.up(1)
        await error_listed(http, held_up=False)


async def error_listed(http: httpx.AsyncClient, *, held_up: bool) -> Any:
    """That of its only stream, once it has one, or none any more."""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while True:
            (stream,) = await list_streams(http)
            if (stream["error"] is not None) == held_up:
                return stream["error"]
            await asyncio.sleep(0.05)


async def none_listed(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while True:
            if not await list_streams(http):
                return
            await asyncio.sleep(0.05)


@each_wire_with_some_workers
async def test_streams_are_ended_by_id_and_by_who_has_them_and_no_others(
    gateway: AnyGateway, wire: WireName, workers: int, read_log: Callable[[AnyGateway], str]
):
    before = len(read_log(gateway))
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(open_admin_api(gateway))
        await none_listed(http)  # those of the test before may not have ended yet
        ada = [await connected(stack, gateway, wire, "/kept", "ada") for _ in range(3)]
        bob = [await connected(stack, gateway, wire, "/kept", "bob") for _ in range(2)]
        (first, *_) = await list_streams(http, "identity=bob")
        assert (await http.delete(f"/streams/{first['id']}")).status_code == 204
        await wait_until(lambda: all_reasons(bob) == ["disconnected"], "its end")
        answer = await http.delete("/streams?identity=ada&guard=users")
        assert answer.json() == {"ended": 3, "missing": []}
        for client in ada:
            await ended(client, "disconnected")
        assert all_reasons(bob) == ["disconnected"]
        again = await http.delete(f"/streams/{first['id']}")
        assert again.status_code == 404
        assert again.headers["content-type"] == "application/problem+json"
        assert (
            "admin: disconnect identity='ada' guard='users' ended=3" in read_log(gateway)[before:]
        )


async def test_what_is_misspelt_ends_nothing(gateway: AnyGateway):
    async with AsyncExitStack() as stack:
        client = await connected(stack, gateway, "sse", "/open/1")
        http = await stack.enter_async_context(open_admin_api(gateway))
        for url in ("/streams", "/streams?identiy=ada", "/streams?route=/open/{id}&limit=1"):
            assert (await http.delete(url)).status_code == 400
        for id in ("1-0-1", "9-0-1", "x", "1-00000000-1"):
            assert (await http.delete(f"/streams/{id}")).status_code == 404
        for query in ("limit=0", "limit=x", "limit=99999", "after=1", "after=x-y"):
            assert (await http.get(f"/streams?{query}")).status_code == 400
        refused = await http.put("/streams")
        assert refused.status_code == 405 and "DELETE" in refused.headers["allow"]
        assert (await http.get("/nothing")).status_code == 404
        assert len(await list_streams(http)) == 1 and reasons(client) == []


@every_number_of_workers
async def test_where_it_is_guarded_only_who_has_the_role_is_answered(
    kafka: EmbeddedKafka, workers: int, read_log: Callable[[AnyGateway], str]
):
    config = config_of(kafka, guarded={"users": ["operate"]})
    async with running(config, workers) as gateway, open_admin_api(gateway) as http:
        for _ in range(workers):
            assert (await http.get("/streams")).status_code == 401
            assert (await http.get("/streams", headers=bearer("ada"))).status_code == 403
            assert (await http.get("/streams", headers=bearer("eve"))).status_code == 200
        assert (await http.delete("/streams?identity=ada")).status_code == 401
        answer = await http.delete("/streams?identity=ada", headers=bearer("eve"))
        assert answer.json() == {"ended": 0, "missing": []}
        assert "by=users:eve" in read_log(gateway) and "token-of-eve" not in read_log(gateway)


async def test_from_other_machines_it_is_reached_by_tls_and_known_certificates_are_let_in(
    kafka: EmbeddedKafka, tmp_path: Path
):
    authority = CertificateAuthority(tmp_path)
    own, eve = authority.issue_certificate("gateway"), authority.issue_certificate("eve")
    tls = {"certificate": str(own), "key": str(own), "ca": str(authority.certificate_path)}
    config = build_config(
        kafka.bootstrap,
        ["orders"],
        listen={"tls": tls},
        guards={"machines": {"type": "x509"}},
        admin={"host": "0.0.0.0", "port": 0, "guarded": {"machines": []}},
    )
    async with running_gateway(config) as gateway:
        port = urlsplit(gateway.admin_url).port
        for certificate, status in ((None, 401), (eve, 200)):
            trusting = authority.create_client_context(certificate)
            async with httpx.AsyncClient(verify=trusting, trust_env=False) as http:
                answer = await http.get(f"https://127.0.0.1:{port}/streams", timeout=WAIT_TIMEOUT_S)
                assert answer.status_code == status


async def test_a_page_in_a_browser_is_not_answered_nor_who_comes_by_another_name(
    gateway: AnyGateway,
):
    async with open_admin_api(gateway) as http:
        assert (await http.get("/streams")).status_code == 200
        for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}):
            assert (await http.get("/streams", headers=headers)).status_code == 403
            assert (await http.delete("/streams?identity=a", headers=headers)).status_code == 403
        for host in ("evil.example", "evil.example:80", "10.0.0.1", "127.0.0.1.evil.example"):
            assert (await http.get("/streams", headers={"Host": host})).status_code == 403


async def test_clients_do_not_come_to_it_where_they_come_in(gateway: AnyGateway):
    async with (
        httpx.AsyncClient(
            base_url=gateway.base_url, timeout=WAIT_TIMEOUT_S, trust_env=False
        ) as http,
    ):
        assert (await http.get("/streams")).status_code == 404
        assert (await http.delete("/streams?identity=ada")).status_code in (404, 405)


async def test_without_a_word_of_it_there_is_no_such_port(kafka: EmbeddedKafka):
    config = {name: part for name, part in config_of(kafka).items() if name != "admin"}
    async with running(config, 1) as gateway:
        assert not gateway.admin_url


# revocation


@each_wire_with_some_workers
async def test_who_is_revoked_has_no_stream_and_gets_none_until_that_is_lifted(
    gateway: AnyGateway, wire: WireName, workers: int
):
    async with AsyncExitStack() as stack:
        ada = [await connected(stack, gateway, wire, "/kept", "ada") for _ in range(3)]
        bob = await connected(stack, gateway, wire, "/kept", "bob")
        http = await stack.enter_async_context(open_admin_api(gateway))
        told = {"identity": "ada", "guard": "users"}
        answer = (await http.post("/revocations", json=told)).json()
        assert answer["ended"] == 3 and answer["missing"] == [] and answer["until"] is None
        for client in ada:
            await ended(client, "access-revoked")
        async with client_of(gateway) as client:
            for _ in range(4 * workers):  # whichever worker it comes to
                refused = await client.get("/kept", headers=bearer("ada"))
                assert refused.status_code == 403, refused.text
                page = await client.get("/kept?until=latest", headers=bearer("bob"))
                assert page.status_code == 200
        (held,) = (await http.get("/revocations")).json()["revocations"]
        assert held["identity"] == "ada" and held["guard"] == "users" and held["by"] == "anyone"
        lifted = await http.delete("/revocations?identity=ada&guard=users")
        assert lifted.json() == {"missing": []}
        assert (await http.delete("/revocations?identity=ada")).status_code == 404
        await connected(stack, gateway, wire, "/kept", "ada")
        assert len(named(bob, "begin")) == 1 and reasons(bob) == []


async def test_a_revocation_that_is_none_is_refused_with_what_to_say(gateway: AnyGateway):
    bodies = (
        "", "[]", "{}", '{"identity": ""}', '{"identity": 7}', '{"identity": "a", "gaurd": "x"}',
        '{"identity": "a", "until": "soon"}',
        '{"identity": "a", "until": -1}', '{"identity": "a", "guard": "usres"}',
    )  # fmt: skip
    async with open_admin_api(gateway) as http:
        for body in bodies:
            refused = await http.post("/revocations", content=body)
            assert refused.status_code == 400 and refused.json()["detail"], body
        assert (await http.get("/revocations")).json() == {"revocations": []}


async def test_a_page_that_is_waited_for_is_not_shown_to_who_was_revoked_meanwhile(
    gateway: AnyGateway, oracle: StreamOracle
):
    async with (
        open_admin_api(gateway) as http,
        client_of(gateway) as client,
    ):
        asked = client.get("/kept?wait=30s&from=live", headers=LINES | bearer("ada"))
        waiting = asyncio.create_task(asked)
        await wait_until(lambda: gateway.connection_count > 0, "its connection")
        for _ in range(1000):
            figures = (await http.get("/metrics")).text
            if re.search(r'^gateway_clients{route="/kept",wire="ndjson"} 1', figures, re.M):
                break
            await asyncio.sleep(0.02)
        else:
            pytest.fail("it is not waited for")
        await http.post("/revocations", json={"identity": "ada"})
        await oracle.produce_records("stock", 1)
        assert (await waiting).status_code == 403


# pausing


@each_wire_with_some_workers
async def test_clients_of_a_paused_route_end_and_come_back_when_it_goes_on(
    gateway: AnyGateway,
    oracle: StreamOracle,
    wire: WireName,
    workers: int,
    read_log: Callable[[AnyGateway], str],
):
    before = len(read_log(gateway))
    async with AsyncExitStack() as stack:
        some = [await connected(stack, gateway, wire, f"/open/{n}") for n in range(3)]
        kept = await connected(stack, gateway, wire, "/kept", "ada")
        http = await stack.enter_async_context(open_admin_api(gateway))
        answer = (await http.post("/routes/open/{id}/pause")).json()
        assert answer["route"] == "/open/{id}" and answer["ended"] == 3
        for client in some:
            await ended(client, "paused")
        by_route = await routes_of(http)
        assert by_route["/open/{id}"]["paused"]["by"] == "anyone"
        assert by_route["/kept"]["paused"] is None and by_route["/kept"]["streams"] == 1
        async with client_of(gateway) as client:
            for _ in range(4 * workers):
                paused = await client.get("/open/1", headers=LINES)
                assert paused.status_code == 503 and int(paused.headers["retry-after"]) >= 3
                source = {"Accept": "text/event-stream", "Sec-Fetch-Mode": "cors"}
                events = await client.get("/open/1", headers=source)
                assert events.status_code == 200 and '{"reason":"paused"}' in events.text
                assert "retry: " in events.text
        acked = await oracle.produce_records("orders", 4)
        assert (await http.post("/routes/%2Fopen%2F{id}/resume")).status_code == 200
        for client in some:
            await client.wait_for_events(
                lambda _, client=client: len(named(client, "message")) == len(acked)
            )
        assert named(kept, "end") == [] and len(named(kept, "begin")) == 1
        assert (await http.post("/routes/open/{id}/resume")).status_code == 404
        assert (await http.post("/routes/opne/{id}/pause")).status_code == 404
        assert "admin: pause route='/open/{id}' ended=3 by=anyone" in read_log(gateway)[before:]


@pytest.mark.needs("process")
async def test_what_is_forbidden_holds_in_a_worker_that_is_started_later_and_after_a_reload(
    kafka: EmbeddedKafka,
):
    async with running_workers(config_of(kafka), 2) as gateway, open_admin_api(gateway) as http:
        await http.post("/revocations", json={"identity": "ada"})
        await http.post("/routes/open/{id}/pause")
        for process in workers_of(gateway).values():
            process.kill()
        await wait_for_workers(gateway, 2, start_count=4)
        gateway.send_signal(signal.SIGHUP)
        said = "configuration reloaded"
        await wait_until(lambda: gateway.log.count(said) == 2, gateway.read_log_tail)
        async with client_of(gateway) as client:
            for _ in range(8):
                assert (await client.get("/open/1")).status_code == 503
                answer = await client.get("/kept?until=latest", headers=bearer("ada"))
                assert answer.status_code == 403
                answer = await client.get("/kept?until=latest", headers=bearer("bob"))
                assert answer.status_code == 200
        assert (await routes_of(http))["/open/{id}"]["paused"] is not None


# what is configured, and logged


def without_open(kafka: EmbeddedKafka) -> dict[str, Any]:
    config = config_of(kafka)
    return config | {"routes": config["routes"][1:]}


@every_number_of_workers
async def test_a_reload_says_what_came_of_it_in_all_workers(
    kafka: EmbeddedKafka, workers: int, read_log: Callable[[AnyGateway], str]
):
    async with running(config_of(kafka), workers) as gateway, AsyncExitStack() as stack:
        some = [await connected(stack, gateway, "sse", f"/open/{n}") for n in range(4)]
        for _ in range(2):
            await connected(stack, gateway, "sse", "/kept", "ada")
        http = await stack.enter_async_context(open_admin_api(gateway))
        gateway.write_config(without_open(kafka) | {"name": "other"})
        told = (await http.post("/reload")).json()
        assert told["routes"] == {"same": 1, "changed": 0, "added": 0, "removed": 1}
        assert told["streams"] == {"ended (route-removed)": 4, "untouched": 2}
        assert told["missing"] == [] and "name" in told["kept"]
        for client in some:
            await ended(client, "route-removed")
        gateway.write_config(
            {"kafka": {"servers": ["a:9092"]}, "routse": [], "admin": {"port": "x"}}
        )
        refused = await http.post("/reload")
        assert refused.status_code == 422
        assert refused.headers["content-type"] == "application/problem+json"
        assert len(refused.json()["problems"]) == 2 and "routes" in refused.json()["problems"][0]
        assert set(await routes_of(http)) == {"/kept"}
        assert "admin: reload problems=" in read_log(gateway)


@pytest.mark.needs("process")
async def test_the_command_says_what_came_of_it(kafka: EmbeddedKafka):
    config = config_of(kafka, guarded={"users": ["operate"]})
    async with running_gateway_process(config) as gateway:

        async def reload(url: str, token: str) -> tuple[int, str]:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway", "reload", "-c", str(gateway.config_path)),
                url,
                env={**os.environ, "GATEWAY_ADMIN_TOKEN": token},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            said, _ = await process.communicate()
            return process.returncode or 0, said.decode()

        async with open_admin_api(gateway) as http:
            url = str(http.base_url)
        gateway.write_config(
            without_open(kafka) | {"admin": {**ADMIN_SECTION, "guarded": {"users": ["operate"]}}}
        )
        status, said = await reload(url, "token-of-ada")
        assert status == 1 and "does not grant the role operate" in said
        status, said = await reload(url, "token-of-eve")
        assert status == 0, said
        assert "routes: 1 same, 0 changed, 0 added, 1 removed; streams: none" in said
        status, said = await reload("http://127.0.0.1:1", "token-of-eve")
        assert status == 1 and "no gateway answers at http://127.0.0.1:1" in said


@pytest.mark.parametrize("workers", [THREE])
async def test_what_is_logged_is_changed_in_all_workers(gateway: AnyGateway, workers: int):
    async with open_admin_api(gateway) as http:
        assert (await http.get("/levels")).json()["level"] == "info"
        for body in (
            {"level": "loud"},
            {"levels": {"web": "loud"}},
            {"levels": {"wbe": "info"}},
            {"lvel": "info"},
            [],
        ):
            assert (await http.put("/levels", json=body)).status_code == 400
        told = await http.put("/levels", json={"level": "info", "levels": {"web": "debug"}})
        assert told.json()["levels"]["web"] == "debug"

        async def is_changed() -> bool:
            """At whichever worker answers."""
            async with httpx.AsyncClient(base_url=http.base_url, trust_env=False) as each:
                levels = (await each.get("/levels")).json()["levels"]
            return bool(levels.get("web") == "debug")

        agreeing = 0  # in a row; the others are told, and not waited for
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while agreeing < 3 * workers:
                agreeing = agreeing + 1 if await is_changed() else 0
        assert (await http.put("/levels", json={"levels": {"web": "info"}})).status_code == 200


async def test_it_has_the_figures_also_where_clients_may_not_have_them(kafka: EmbeddedKafka):
    config = config_of(kafka) | {"telemetry": {"metrics": {"prometheus": None}}}
    async with running(config, 1) as gateway, open_admin_api(gateway) as http:
        assert "gateway_info" in (await http.get("/metrics")).text
        async with client_of(gateway) as client:
            assert (await client.get("/metrics")).status_code == 404


async def test_of_a_socket_of_many_streams_only_those_end_that_are_meant(
    gateway: AnyGateway, oracle: StreamOracle
):
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(open_admin_api(gateway))
        socket = await stack.enter_async_context(
            MultiplexClient(gateway.base_url, additional_headers=bearer("ada"))
        )
        await socket.subscribe("a", "/open/1")
        await socket.subscribe("b", "/kept")
        assert {stream["route"] for stream in await list_streams(http)} == {"/open/{id}", "/kept"}
        await http.post("/routes/open/{id}/pause")
        assert (await socket.wait_for_message("a", "end"))["reason"] == "paused"
        await socket.send_message("subscribe", id="c", path="/open/2")
        assert (await socket.wait_for_message("c", "error"))["code"] == "paused"
        await oracle.produce_records("stock", 2)
        await socket.wait_until(lambda: len(socket.get_records("b")) == 2)
        await http.post("/revocations", json={"identity": "ada"})
        assert (await socket.wait_for_message("b", "end"))["reason"] == "access-revoked"
        await socket.send_message("subscribe", id="d", path="/kept")
        assert (await socket.wait_for_message("d", "error"))["code"] == "forbidden"
        assert socket.close_code is None
