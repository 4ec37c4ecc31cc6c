"""What stands between the gateway and its brokers: TLS, SASL, racks.

GATEWAY_SESSION_SECONDS: for how long sessions of 2 s are looked at (5).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import AclOperation
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from support.admin import KafkaAdmin
from support.app_server import running_app
from support.brokers import KafkaCluster, running_kafka
from support.certificates import CertificateAuthority
from support.clients.client import ReceivedEvent
from support.clients.raw import RawClient
from support.gateways import (
    build_config,
    create_http_client,
    running_gateway_process,
    wait_until_ready,
)
from support.grouped import SINGLE_NAMES
from support.kafka_proxy import KafkaProxy
from support.local_kafka import RiggedKafka
from support.oracle import StreamOracle
from support.secure_kafka import (
    PASSWORDS_BY_USER,
    BrokerSecurity,
    build_unsecured_jwt,
    grant_access,
)
from support.tasks import running_task
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.core.log.record import TopicPartition

TOPIC = "guarded"
SESSION_SECONDS = float(os.environ.get("GATEWAY_SESSION_SECONDS", "5"))
SESSION_COUNT = 3
READERS = ("User:carol", "User:CN=client")


@pytest.fixture(scope="module")
def secured(session_secured: RiggedKafka) -> RiggedKafka:
    """`READERS` may read the topic, and who shows nothing."""
    admin = KafkaAdmin(session_secured.bootstrap)
    admin.create_topic(TOPIC, 3)
    for principal in READERS:
        grant_access(admin, principal, TOPIC, AclOperation.READ)
    return session_secured


def configured(kafka: RiggedKafka, listener: str, **security: Any) -> dict[str, Any]:
    servers = ",".join(kafka.get_addresses(listener))
    return build_config(servers, [TOPIC], kafka={"security": security})


def has(count: int) -> Callable[[Sequence[ReceivedEvent]], bool]:
    return lambda events: sum(each["event"] == "message" for each in events) >= count


async def reads(kafka: RiggedKafka, listener: str, **security: Any) -> None:
    """A gateway with these credentials streams what is written, live and from before."""
    async with (
        StreamOracle(",".join(kafka.bootstrap)) as oracle,
        running_gateway_process(configured(kafka, listener, **security)) as gateway,
        RawClient(f"{gateway.base_url}/records/{TOPIC}") as client,
    ):
        await client.wait_for_events(1)
        await oracle.produce_records(TOPIC, 10)
        await client.wait_for_events(has(10))
        oracle.check_events(client.events)
        async with httpx.AsyncClient(trust_env=False) as http:
            url = f"{gateway.base_url}/records/{TOPIC}?from=earliest&until=latest"
            told = (await http.get(url)).text
            assert all((acked.value or b"").decode()[1:-1].replace('"', '\\"') in told
                       for acked in oracle.list_acked())  # fmt: skip


async def test_it_reads_through_tls_and_with_a_password_in_it(
    secured: RiggedKafka, authority: CertificateAuthority
):
    tls = {"ca": str(authority.certificate_path)}
    sasl = {"mechanism": "scram-sha-512", "username": "carol", "password": "pw"}
    await reads(secured, "TLS", tls=tls)
    await reads(secured, "SASL_TLS", tls=tls, sasl=sasl)


async def test_who_may_not_read_is_told(secured: RiggedKafka):
    sasl = {"mechanism": "plain", "username": "mallory", "password": "pw"}
    await denied(configured(secured, "SASL", sasl=sasl))


async def denied(config: Mapping[str, Any]) -> None:
    async with (
        running_gateway_process(config) as gateway,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        answer = await http.get(f"{gateway.base_url}/events/{TOPIC}")
        assert answer.status_code == 403, answer.text
        assert answer.json()["topic"] == TOPIC


@pytest.mark.needs("kafka")
@pytest.mark.parametrize(
    "mechanism", ["plain", pytest.param("oauthbearer", marks=pytest.mark.night)]
)
async def test_sessions_that_end_cost_nobody_an_answer(mechanism: str):
    """The broker closed each connection whose session was over upon the next request, which was a
    503, and each partition was told as lost and back (KIP-368). A bearer token ends the session
    when it expires, and the next one is another token."""
    security = BrokerSecurity(users=PASSWORDS_BY_USER, mechanisms=(mechanism.upper(),))
    issued: list[float] = []

    async def issue(_: Request) -> JSONResponse:
        issued.append(time.monotonic())
        return JSONResponse(
            {"access_token": build_unsecured_jwt(exp=time.time() + 2), "expires_in": 2}
        )

    properties = {} if mechanism == "oauthbearer" else {"connections.max.reauth.ms": "2000"}
    async with running_app(Starlette(routes=[Route("/token", issue, methods=["POST"])])) as issuer:
        token = {"tokenUrl": f"{issuer}/token", "clientId": "gateway", "clientSecret": "s3cret"}
        password = {"username": "carol", "password": "pw"}
        sasl = {"mechanism": mechanism, **(token if mechanism == "oauthbearer" else password)}
        local = security.create_kafka(properties=properties)
        await _outlive_sessions(
            local, sasl, lambda: len(issued) >= SESSION_COUNT or mechanism == "plain"
        )


async def _outlive_sessions(
    local: RiggedKafka, sasl: Mapping[str, str], has_outlived: Callable[[], bool]
) -> None:
    """Write and read for `SESSION_SECONDS`, and until so many sessions have ended."""
    with running_kafka(local) as kafka:
        KafkaAdmin(kafka.bootstrap).create_topic("sessions", 3)
        routes = [
            {"when": [{"path": "/read", "method": "GET"}], "with": {"topic": "sessions"}},
            {
                "when": [{"path": "/write", "method": "POST"}],
                "with": {"capability": "produce", "topic": "sessions"},
            },
        ]
        servers, secured = ",".join(kafka.get_addresses("SASL")), {"security": {"sasl": sasl}}
        config = build_config(servers, ["sessions"], routes, kafka=secured)
        async with (
            running_gateway_process(config) as gateway,
            RawClient(f"{gateway.base_url}/read") as client,
            create_http_client(gateway) as http,
        ):
            await client.wait_for_events(1)
            ends, answers = time.monotonic() + SESSION_SECONDS, list[int]()
            while time.monotonic() < ends or not has_outlived():
                answers.append((await http.post("/write", json={"n": len(answers)})).status_code)
                read = await http.get("/read", params={"until": "latest"})
                answers.append(read.status_code)
                await asyncio.sleep(0.05)
            assert max(answers) < 300, Counter(answers)
            await client.wait_for_events(has(len(answers) // 2))
            assert [event for event in client.events if event["event"] == "ready"] == []
        assert "cause=" not in gateway.log
        print(f"{len(answers)} answers, {Counter(answers)}")


@pytest.mark.needs("kafka")
async def test_a_password_is_rotated_without_a_reconnect_of_clients(tmp_path: Path):
    """It needed a restart. Sessions of 2 s make every connection log in again."""
    security = BrokerSecurity(users=PASSWORDS_BY_USER, mechanisms=("SCRAM-SHA-512",))
    properties = {"connections.max.reauth.ms": "2000"}
    file = tmp_path / "password"
    file.write_text("first")
    sasl = {"mechanism": "scram-sha-512", "username": "eve", "password": f"${{file:{file}}}"}
    with running_kafka(security.create_kafka(properties=properties)) as kafka:
        admin = KafkaAdmin(kafka.bootstrap)
        admin.create_topic(TOPIC, 3)
        admin.set_password("eve", "first")
        async with (
            StreamOracle(",".join(kafka.bootstrap)) as oracle,
            running_gateway_process(configured(kafka, "SASL", sasl=sasl)) as gateway,
            RawClient(f"{gateway.base_url}/records/{TOPIC}") as client,
        ):
            await client.wait_for_events(1)
            file.write_text("second")
            os.kill(gateway.pid, signal.SIGHUP)
            await wait_until(lambda: "configuration reloaded" in gateway.log, gateway.read_log_tail)
            admin.set_password("eve", "second")
            loop = asyncio.get_running_loop()
            ends, written = loop.time() + SESSION_SECONDS, 0
            while loop.time() < ends:
                await oracle.produce_records(TOPIC, 1)
                written += 1
                await client.wait_for_events(has(written))
            await wait_until_ready(gateway.base_url)
            # Between the two changes a login may be refused, which passes.
            passing = {"error", "ready", *SINGLE_NAMES}
            oracle.check_events([each for each in client.events if each["event"] not in passing])
            assert len(client.responses) == 1
            assert "kafka.security" not in gateway.log  # among what needs a restart


async def test_a_wrong_password_is_a_reason_not_to_be_ready(secured: RiggedKafka):
    sasl = {"mechanism": "plain", "username": "carol", "password": "guessed"}
    config = configured(secured, "SASL", sasl=sasl)
    async with (
        running_gateway_process(config, ready=False) as gateway,
        create_http_client(gateway) as http,
    ):
        told = ""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while "uthentication" not in told:
                answer = await http.get("/health/ready")
                assert answer.status_code == 503
                told = answer.text
                await asyncio.sleep(0.05)
        stream = await http.get(f"/events/{TOPIC}", timeout=30)
        assert stream.status_code == 503
        assert "guessed" not in told + stream.text + gateway.log


async def test_it_speaks_https_itself_and_ends_in_order(
    kafka: KafkaCluster, authority: CertificateAuthority
):
    name, pem = kafka.create_unique_topic(), str(authority.issue_certificate("web"))
    config = build_config(
        kafka.bootstrap_servers, [name], listen={"tls": {"certificate": pem, "key": pem}}
    )
    async with (
        StreamOracle(kafka.bootstrap_servers) as oracle,
        running_gateway_process(config, ready=False) as gateway,
        httpx.AsyncClient(
            verify=authority.create_client_context(), trust_env=False, timeout=30
        ) as http,
    ):
        assert gateway.base_url.startswith("https://")
        async with http.stream("GET", f"{gateway.base_url}/events/{name}") as answer:
            body = ""
            async for piece in answer.aiter_text():
                if not body:
                    acked = await oracle.produce_records(name, 5)
                body += piece
                if (acked[-1].value or b"").decode() in body and gateway.is_alive:
                    gateway.send_signal(signal.SIGTERM)
        assert body.endswith('event: end\ndata: {"reason":"drain"}\n\n')
        await http.aclose()  # a kept connection would have to take part in TLS's farewell
        assert await gateway.stop() == 0


async def test_a_gateway_in_a_rack_reads_from_the_replica_in_it(kafka3: KafkaCluster):
    """KIP-392: the leader names the replica of the gateway's rack, which then is asked."""
    name = await asyncio.to_thread(
        lambda: kafka3.create_unique_topic(assignment=[[1, 2, 3], [2, 1, 3]])
    )
    await asyncio.to_thread(kafka3.admin.wait_in_sync)
    async with (
        StreamOracle(kafka3.bootstrap_servers) as oracle,
        KafkaProxy.wrap_cluster(kafka3.bootstrap_servers) as network,
    ):
        config = build_config(network.bootstrap, [name], kafka={"rack": "rack-3"})
        async with (
            running_gateway_process(config) as gateway,
            RawClient(f"{gateway.base_url}/records/{name}") as client,
        ):
            await client.wait_for_events(1)
            await oracle.produce_records(name, 20)
            await client.wait_for_events(has(20))
            before = {node: network[node].bytes_to_client for node in (1, 2, 3)}
            padding = {"padding": "x" * 5000}
            await oracle.produce_records(name, 100, fields=padding)
            await client.wait_for_events(has(120))
            oracle.check_events(client.events, start={TopicPartition(name, n): 0 for n in (0, 1)})
        came = {node: network[node].bytes_to_client - before[node] for node in (1, 2, 3)}
        assert came[3] > 400_000, came
        assert came[1] + came[2] < 100_000, came


async def test_a_replica_in_the_rack_that_stands_still_dies_and_returns_costs_no_record(
    kafka3: KafkaCluster,
):
    """It is out of sync meanwhile, and what it lacks is read from the leader."""
    name = await asyncio.to_thread(
        lambda: kafka3.create_unique_topic(assignment=[[1, 2, 3], [2, 1, 3]])
    )
    await asyncio.to_thread(kafka3.admin.wait_in_sync)
    assert kafka3.local_kafka is not None
    node = kafka3.local_kafka.get_node(3)
    config = build_config(kafka3.bootstrap_servers, [name], kafka={"rack": "rack-3"})
    start = {TopicPartition(name, number): 0 for number in (0, 1)}
    async with (
        StreamOracle(kafka3.bootstrap_servers) as oracle,
        running_gateway_process(config) as gateway,
        RawClient(f"{gateway.base_url}/records/{name}") as client,
    ):
        await client.wait_for_events(1)

        async def write() -> None:
            while True:
                await oracle.produce_records(name, 5)
                await asyncio.sleep(0.02)

        async def go_on(count: int = 200) -> None:
            """Return when so many more have come."""
            done = sum(each["event"] == "message" for each in client.events)
            await client.wait_for_events(has(done + count))

        async with running_task(write()):
            await go_on()
            node.freeze()  # `replica.lag.time.max.ms` later it is out of sync
            await go_on()
            node.unfreeze()
            await go_on()
            node.kill()
            await go_on()
            await asyncio.to_thread(node.start)
            await asyncio.to_thread(kafka3.admin.wait_in_sync)
            await go_on()
        await client.wait_for_events(has(len(oracle.list_acked())))
        oracle.check_events(client.events, start=start)
