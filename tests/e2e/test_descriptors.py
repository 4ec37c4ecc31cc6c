"""A gateway that has just started and has no free descriptor for what its first requests need."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import psutil
import pytest
from starlette.responses import JSONResponse
from support.app_server import running_app
from support.certificates import CertificateAuthority
from support.gateways import (
    GatewayProcess,
    build_config,
    create_http_client,
    running_gateway_process,
)
from support.issuer import AUDIENCE, ISSUER_NAME, TokenIssuer, get_private_key
from support.raw_http import RawConnection
from support.waiting import wait_until

from gateway.kafka.embedded import EmbeddedKafka

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit(2)"),
    pytest.mark.needs("process"),
]

HEADERS = {"Authorization": "Bearer ada"}
UNTIL_NOW = "/orders?until=latest&from=earliest"


@asynccontextmanager
async def no_free_descriptor(gateway: GatewayProcess) -> AsyncIterator[None]:
    """Leave the gateway the descriptors that it has, and none that it closes meanwhile."""
    process = psutil.Process(gateway.pid)
    before = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (3, before[1]))  # lower than any that can become free
    try:
        yield
    finally:
        process.rlimit(psutil.RLIMIT_NOFILE, before)


async def whoami(scope: object, receive: object, send: object) -> None:
    await JSONResponse({"identity": "ada"})(scope, receive, send)  # type: ignore[arg-type]


@pytest.mark.smoke
async def test_the_first_guarded_request_without_a_free_descriptor_gets_503_and_later_200() -> None:
    """It got 500: reading the certificates for the request to the application failed."""
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        async with running_app(whoami) as url:
            route = {
                "when": [{"path": "/orders"}],
                "guarded": {"shop": []},
                "with": {"topic": "orders"},
            }
            guards = {"shop": {"type": "http", "url": url, "cache": "1s", "timeout": "60s"}}
            config = build_config(kafka.bootstrap, ["orders"], [route], guards=guards)
            async with (
                running_gateway_process(config) as gateway,
                create_http_client(gateway) as http,
            ):
                assert (await http.get("/health/live")).status_code == 200  # it is connected
                async with no_free_descriptor(gateway):
                    refused = await http.get(UNTIL_NOW, headers=HEADERS)
                assert (refused.status_code, refused.json()["title"]) == (503, "Guard unavailable")
                assert int(refused.headers["retry-after"]) >= 1
                accepted = await http.get(UNTIL_NOW, headers=HEADERS)
                assert accepted.status_code == 200
                assert "Traceback" not in gateway.log


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_the_first_token_is_verified_without_a_free_descriptor(algorithm: str) -> None:
    """It got 500: what verifies a signature by ES256 was imported by the first token."""
    issuer = TokenIssuer(algorithm)
    forged = issuer.issue_token(key=get_private_key(algorithm, 1))
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        route = {"when": [{"path": "/orders"}], "guarded": {"login": []}}
        guard = {"type": "jwt", "issuer": ISSUER_NAME, "audience": AUDIENCE, "keys": issuer.jwks}
        config = build_config(
            kafka.bootstrap,
            ["orders"],
            [route | {"with": {"topic": "orders"}}],
            guards={"login": guard},
        )
        async with running_gateway_process(config) as gateway, create_http_client(gateway) as http:
            assert (await http.get("/health/live")).status_code == 200  # it is connected
            async with no_free_descriptor(gateway):
                refused = await http.get("/orders", headers={"Authorization": f"Bearer {forged}"})
            assert refused.status_code == 401
            assert "Traceback" not in gateway.log


LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from gateway.cli import main
main()
"""


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_clients_leave_descriptors_for_kafka(tmp_path: Path, tls: bool) -> None:
    """As many clients as the system allowed connected, and cut the others off from Kafka for as
    long as they stayed: a lost connection to a broker could not be opened again. Without TLS not
    a word was said, with it one line a second."""
    listen = {}
    if tls:
        pem = str(CertificateAuthority(tmp_path).issue_certificate("web"))
        listen = {"tls": {"certificate": pem, "key": pem}}
    with EmbeddedKafka(topics={"orders": 1}) as kafka, ExitStack() as stack:
        route = {"when": [{"path": "/orders"}], "with": {"topic": "orders"}}
        config = build_config(kafka.bootstrap, ["orders"], [route], listen=listen)
        command = (sys.executable, "-c", LIMITED, "run", "-c")
        async with running_gateway_process(config, command=command) as gateway:
            process = psutil.Process(gateway.pid)
            clients = [
                stack.enter_context(RawConnection(gateway.port, receive_buffer=4096))
                for _ in range(64)
            ]
            await wait_until(lambda: sum(map(is_closed, clients)) >= 16)
            assert not all(map(is_closed, clients)) and "ulimit -n" in gateway.log
            assert process.num_fds() <= 64 - 8  # Kafka may have some of the others
            assert gateway.log.count("refused by") == 1
            for client in clients:
                client.socket.close()
            async with create_http_client(gateway, verify=False) as http:
                await wait_until(lambda: process.num_fds() < 40)
                assert (await http.get("/health/live")).status_code == 200
            assert "Traceback" not in gateway.log


def is_closed(connection: RawConnection) -> bool:
    connection.socket.setblocking(False)
    try:
        return not connection.socket.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True
