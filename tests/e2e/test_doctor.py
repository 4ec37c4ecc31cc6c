"""`gateway doctor` names what was done to a gateway first, and nothing on a healthy one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.admin_api import ADMIN_SECTION, open_admin_api
from support.brokers import embedded_kafka
from support.certificates import CertificateAuthority
from support.clients.raw import RawClient
from support.doctor import (
    describe,
    diagnose_gateway,
    get_first,
    get_first_cause,
    wait_for_metric,
)
from support.gateways import GatewayProcess, build_config, running_gateway_process
from support.oracle import StreamOracle
from support.waiting import WAIT_TIMEOUT_S, wait_until
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.needs("process")

kafka = embedded_kafka({"orders": 3}, scope="function")

LOADED = {"loop-lag"}  # what a busy machine does to a gateway in good health


def build_doctor_config(
    kafka: EmbeddedKafka | str, routes: Any = None, **sections: Any
) -> dict[str, Any]:
    bootstrap = kafka if isinstance(kafka, str) else kafka.bootstrap
    return build_config(bootstrap, ["orders"], routes, admin=ADMIN_SECTION, **sections)


@asynccontextmanager
async def running(
    kafka: EmbeddedKafka | str, routes: Any = None, **sections: Any
) -> AsyncIterator[GatewayProcess]:
    async with running_gateway_process(build_doctor_config(kafka, routes, **sections)) as gateway:
        yield gateway


@asynccontextmanager
async def following(gateway: GatewayProcess, path: str = "/events/orders", **options: Any):
    """A client that has begun."""
    async with RawClient(f"{gateway.base_url}{path}", **options) as client:
        await client.wait_for_events(1)
        yield client


async def produce_forever(oracle: StreamOracle, count: int = 20, **options: Any) -> None:
    while True:
        await oracle.produce_records("orders", count, **options)
        await asyncio.sleep(0.05)


def run_doctor(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments], prog_name="gateway")


# healthy ones


async def test_an_idle_gateway_is_healthy(kafka: EmbeddedKafka):
    async with running(kafka) as gateway:
        assert describe(await diagnose_gateway(gateway)).keys() <= LOADED


async def test_a_gateway_under_load_is_healthy(kafka: EmbeddedKafka, oracle: StreamOracle):
    async with running(kafka) as gateway, following(gateway), following(gateway):
        diagnosis = await diagnose_gateway(gateway, produce_forever(oracle))
        assert describe(diagnosis).keys() <= LOADED
        assert diagnosis.clients == 2 and diagnosis.deliveries_per_second > 0


# what was done to Kafka


async def test_a_topic_that_was_deleted_is_named_first(kafka: EmbeddedKafka):
    async with running(kafka) as gateway, following(gateway):
        kafka.delete_topic("orders")
        await wait_for_metric(gateway, 'partition="0",cause="unknown-topic"')
        diagnosis = await diagnose_gateway(gateway)
        assert get_first(diagnosis) == "topic-missing", describe(diagnosis)


async def test_a_broker_that_is_too_old_is_named_first():
    with EmbeddedKafka({"orders": 1}, fetch_version=8) as kafka:
        async with running(kafka) as gateway, RawClient(f"{gateway.base_url}/events/orders"):
            diagnosis = await diagnose_gateway(gateway)
            assert get_first(diagnosis) == "broker-old", describe(diagnosis)
            assert "Fetch" in str(get_first_cause(diagnosis).evidence)


# what was done to the gateway


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody takes and that refuses connections."""
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


async def test_a_limit_that_refuses_clients_is_named_first(kafka: EmbeddedKafka):
    limits = {"limits": {"connections": 2}}

    async def connect_again() -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=WAIT_TIMEOUT_S) as http:
            while True:
                await http.get(f"{gateway.base_url}/records/orders?until=latest")
                await asyncio.sleep(0.1)

    async with running(kafka, listen=limits) as gateway, following(gateway), following(gateway):
        diagnosis = await diagnose_gateway(gateway, connect_again())
        assert get_first(diagnosis) == "clients-refused", describe(diagnosis)


async def test_a_filter_that_matches_nothing_is_named_first(
    kafka: EmbeddedKafka, oracle: StreamOracle
):
    route = {
        "when": [{"path": "/none"}],
        "with": {"topic": "orders", "filters": [{"key": "misspelt"}]},
    }
    async with running(kafka, [route]) as gateway, following(gateway, "/none"):
        diagnosis = await diagnose_gateway(gateway, produce_forever(oracle, key=b"spelt"))
        assert get_first(diagnosis) == "filter-matches-none", describe(diagnosis)


async def test_a_paused_route_is_named_first(kafka: EmbeddedKafka):
    async with running(kafka) as gateway, open_admin_api(gateway) as http:
        await http.post("/routes/events/orders/pause")
        diagnosis = await diagnose_gateway(gateway)
        assert get_first(diagnosis) == "route-paused", describe(diagnosis)


# the command


async def test_the_command_prints_findings_and_ends_with_1(kafka: EmbeddedKafka):
    async with running(kafka) as gateway, open_admin_api(gateway) as http:
        url = gateway.admin_url
        healthy = await asyncio.to_thread(run_doctor, url, "--interval", "1s")
        assert healthy.exit_code == 0 and "healthy" in healthy.stdout, healthy
        await http.post("/routes/events/orders/pause")
        found = await asyncio.to_thread(run_doctor, url, "--interval", "1s")
        assert found.exit_code == 1 and "1. route-paused: " in found.stdout, found
        told = await asyncio.to_thread(run_doctor, url, "--interval", "1s", "--json")
        assert told.exit_code == 1
        causes = json.loads(told.stdout)["causes"]
        assert [cause["name"] for cause in causes] == ["route-paused"]
        plain = await asyncio.to_thread(run_doctor, gateway.base_url, "--interval", "1s")
        assert plain.exit_code == 0 and "not judged: route-paused" in plain.stdout, plain


def test_the_command_says_where_to_ask(closed_port: int):
    for arguments, status, said in (
        ((f"http://127.0.0.1:{closed_port}",), 1, "admin on"),
        (("http://127.0.0.1:9", "--interval", "soon"), 2, "--interval"),
    ):
        ended = run_doctor(*arguments)
        assert ended.exit_code == status and said in ended.stderr, ended


async def test_the_command_takes_the_address_from_the_configuration(
    kafka: EmbeddedKafka, closed_port: int, tmp_path: Any
):
    async with running(kafka) as gateway:
        port = int(gateway.admin_url.rpartition(":")[2])
        file = tmp_path / "gateway.yaml"
        config: Mapping[str, Any] = build_doctor_config(kafka)
        file.write_text(json.dumps({**config, "admin": {"port": port}}))
        ended = await asyncio.to_thread(run_doctor, "-c", str(file), "--interval", "1s")
        assert ended.exit_code == 0, ended
        file.write_text(json.dumps({**config, "admin": None}))
        ended = await asyncio.to_thread(run_doctor, "-c", str(file))
        assert ended.exit_code == 1 and "no section admin" in ended.stderr, ended


async def test_with_tls_the_certificate_is_the_one_of_the_configuration(
    kafka: EmbeddedKafka, tmp_path: Path
):
    """It is for the names of clients, and of an authority that this machine need not know."""
    authority = CertificateAuthority(tmp_path)
    own = authority.issue_certificate("gateway", valid_days=30)
    stranger = authority.issue_certificate("stranger")
    # As most files are: with the authority, whose other certificates must not be trusted.
    for file in (own, stranger):
        file.write_bytes(file.read_bytes() + authority.certificate_path.read_bytes())
    config = build_doctor_config(
        kafka,
        listen={"tls": {"certificate": str(own), "key": str(own)}},
        guards={"users": {"type": "inline", "users": {"eve": {"token": "t"}}, "exposed": True}},
    ) | {"admin": {"host": "0.0.0.0", "port": 0, "guarded": {"users": []}}}
    async with running_gateway_process(config, ready=False) as gateway:
        await wait_until(lambda: "startup complete" in gateway.log, gateway.read_log_tail)
        port = int(gateway.admin_url.rpartition(":")[2])
        file = tmp_path / "gateway.yaml"
        for certificate, status, said in ((own, 0, "no cause"), (stranger, 1, "CERTIFICATE")):
            tls = {"certificate": str(certificate), "key": str(certificate)}
            admin = {**config["admin"], "port": port}
            file.write_text(json.dumps({**config, "admin": admin, "listen": {"tls": tls}}))
            arguments = ("-c", str(file), "--interval", "1s", "--token", "t")
            ended = await asyncio.to_thread(run_doctor, *arguments)
            assert ended.exit_code == status and said in ended.stdout + ended.stderr, ended
