"""`gateway run` with a uvicorn whose internals it does not know: the same streams, by ASGI."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.brokers import embedded_kafka
from support.certificates import CertificateAuthority
from support.clients.raw import RawClient
from support.gateways import GatewayProcess, build_config, running_gateway_process
from support.multiplex import MultiplexClient
from support.raw_http import RawConnection, build_request
from support.records import produce_records
from support.waiting import wait_until

from gateway.kafka.embedded import EmbeddedKafka

RENAMED = """
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
Protocol._launch_asgi_task = Protocol._start_asgi_task
del Protocol._start_asgi_task
from gateway.cli import main

main()
"""
pytestmark = pytest.mark.needs("process")

COMMAND = (sys.executable, "-c", RENAMED, "run", "-c")
WARNING = "is not one that this version of the gateway knows"
EVENTS = "/events/orders?from=earliest"

kafka = embedded_kafka({"orders": 1})


@asynccontextmanager
async def running_fallback(config: Mapping[str, Any]) -> AsyncIterator[GatewayProcess]:
    tls = "tls" in config["listen"]
    async with running_gateway_process(config, command=COMMAND, ready=not tls) as gateway:
        yield gateway
        assert "Traceback" not in gateway.log


def count_warnings(gateway: GatewayProcess) -> int:
    (line,) = {line for line in gateway.log.splitlines() if WARNING in line}
    assert "HttpToolsProtocol._start_asgi_task(cycle, app)" in line and "install uvicorn" in line
    return gateway.log.count(WARNING)


@pytest.mark.parametrize("workers", [1, 2])
async def test_streams_resume_and_end_as_with_a_known_one(kafka: EmbeddedKafka, workers: int):
    await produce_records(kafka.bootstrap, "orders", [b"a", b"b"])
    listen = {"host": "127.0.0.1", "port": 0, "workers": workers}
    config = build_config(kafka.bootstrap, ["orders"], listen=listen)
    async with running_fallback(config) as gateway:
        assert count_warnings(gateway) == 1
        async with RawClient(f"{gateway.base_url}{EVENTS}&until=latest") as first:
            await first.wait_for_events(lambda events: events[-1:] and events[-1]["event"] == "end")
            total = sum(event["event"] == "message" for event in first.events)
        assert total >= 2
        async with (
            RawClient(f"{gateway.base_url}{EVENTS}", last_event_id=first.last_event_id) as resumed,
            MultiplexClient(gateway.base_url) as socket,
        ):
            await resumed.wait_for_events(1)
            await socket.subscribe("s", "/events/orders", **{"from": "earliest"})
            await socket.wait_until(lambda: socket.record_counts["s"] == total)
            await produce_records(kafka.bootstrap, "orders", [b"c"])
            await resumed.wait_for_events(2)
            assert [event["data"] for event in resumed.events[1:]] == ["c"]
            await socket.wait_until(lambda: socket.record_counts["s"] == total + 1)
            gateway.send_signal(signal.SIGTERM)
            assert await socket.wait_closed() == 1012
            await wait_until(lambda: "drain" in resumed.body.decode(), "the end event")
        assert await gateway.stop() == 0


async def test_a_head_that_is_too_large_is_refused(kafka: EmbeddedKafka):
    """uvicorn's protocol on httptools would take it, whatever its size."""
    async with running_fallback(build_config(kafka.bootstrap, ["orders"])) as gateway:
        with RawConnection(gateway.port) as wire:
            wire.send_bytes(build_request("/health/live", b"X: " + b"x" * 200_000))
            assert wire.read_head().status == 400


async def test_tls_handshakes_are_counted_until_they_are_complete(
    kafka: EmbeddedKafka, tmp_path: Path
):
    authority = CertificateAuthority(tmp_path)
    pem = str(authority.issue_certificate("gateway"))
    listen = {
        "host": "127.0.0.1",
        "port": 0,
        "tls": {"certificate": pem, "key": pem},
        "limits": {"perAddress": 3},
    }
    config = build_config(kafka.bootstrap, ["orders"], listen=listen)
    async with running_fallback(config) as gateway:
        context = authority.create_client_context()
        for _ in range(5):  # more than may be under way at once
            async with httpx.AsyncClient(verify=context, trust_env=False) as http:
                url = gateway.base_url.replace("127.0.0.1", "localhost")
                assert (await http.get(f"{url}/health/live")).status_code == 200


async def test_certificates_of_clients_that_nobody_could_read_are_no_guard(
    kafka: EmbeddedKafka, tmp_path: Path
):
    authority = CertificateAuthority(tmp_path)
    pem = str(authority.issue_certificate("gateway"))
    tls = {"certificate": pem, "key": pem, "ca": str(authority.certificate_path)}
    config = build_config(
        kafka.bootstrap,
        ["orders"],
        [{"when": [{"path": "/e"}], "guarded": {"machines": []}, "with": {"topic": "orders"}}],
        guards={"machines": {"type": "x509"}},
        listen={"tls": tls},
    )
    with pytest.raises(AssertionError, match="guard 'machines' cannot read client certificates"):
        async with running_fallback(config):
            pass


async def test_a_reload_adds_no_guard_of_certificates_that_nobody_could_read(
    kafka: EmbeddedKafka, tmp_path: Path
):
    """Only the start was refused: after such a reload, clients were answered 401 for ever."""
    authority = CertificateAuthority(tmp_path)
    pem = str(authority.issue_certificate("gateway"))
    tls = {"certificate": pem, "key": pem, "trust": str(authority.certificate_path)}
    listen = {"host": "127.0.0.1", "port": 0, "tls": tls}
    config = build_config(kafka.bootstrap, ["orders"], listen=listen)
    async with (
        running_fallback(config) as gateway,
        httpx.AsyncClient(verify=authority.create_client_context(), trust_env=False) as http,
    ):
        url = gateway.base_url.replace("127.0.0.1", "localhost")
        assert (await http.get(f"{url}/health/live")).status_code == 200
        gateway.write_config({**config, "guards": {"machines": {"type": "x509"}}})
        gateway.send_signal(signal.SIGHUP)
        await wait_until(
            lambda: "configuration not reloaded" in gateway.log, gateway.read_log_tail, 30
        )
        assert "guard 'machines' cannot read client certificates" in gateway.log


@pytest.mark.smoke
async def test_a_known_one_costs_no_line_in_the_log(kafka: EmbeddedKafka):
    """sse-starlette replaces a method of uvicorn's server: it took our own for an unknown one."""
    async with running_gateway_process(build_config(kafka.bootstrap, ["orders"])) as gateway:
        assert WARNING not in gateway.log
