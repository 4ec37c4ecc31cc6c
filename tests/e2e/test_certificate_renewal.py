"""A certificate that is replaced while streams run: those that come get the new one, those that are
there hear nothing of it."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families as parsed
from support.brokers import embedded_kafka
from support.certificates import CertificateAuthority
from support.gateways import GatewayProcess, build_config, running_gateway_process
from support.multiplex import MultiplexClient
from support.oracle import StreamOracle
from support.waiting import WAIT_TIMEOUT_S, wait_until
from support.workers import running_workers

from gateway.kafka.embedded import EmbeddedKafka
from gateway.web.http.certificate import read_validity

pytestmark = pytest.mark.needs("process")

PATH = "/records/orders"

kafka = embedded_kafka({"orders": 1}, scope="function")


def config(kafka: EmbeddedKafka, path: Path, key: Path | None = None) -> dict[str, Any]:
    tls = {"certificate": str(path), "key": str(key or path)}
    return build_config(kafka.bootstrap, ["orders"], listen={"tls": tls})


def put(source: Path, target: Path) -> Path:
    shutil.copy(source, f"{target}.new")
    return Path(f"{target}.new").replace(target)


async def shown(gateway: GatewayProcess, authority: CertificateAuthority) -> str:
    """Whose certificate a connection is shown that comes now."""
    context = authority.create_client_context()
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=context)
    connection: ssl.SSLObject = writer.get_extra_info("ssl_object")
    found = connection.getpeercert(binary_form=True)
    writer.transport.abort()
    assert found is not None
    return x509.load_der_x509_certificate(found).subject.rfc4514_string()


async def shows(
    gateway: GatewayProcess, authority: CertificateAuthority, name: str, times: int = 1
) -> None:
    """Connections are, so many in a row: of several workers each may be asked."""
    row = 0
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while row < times:
            row = row + 1 if await shown(gateway, authority) == f"CN={name}" else 0
            await asyncio.sleep(0.02)


async def figure(gateway: GatewayProcess, authority: CertificateAuthority) -> float:
    async with httpx.AsyncClient(trust_env=False, verify=authority.create_client_context()) as http:
        told = (await http.get(gateway.base_url + "/metrics", timeout=WAIT_TIMEOUT_S)).text
    wanted = "gateway_certificate_expiry_timestamp_seconds"
    (family,) = [family for family in parsed(told) if family.name == wanted]
    (sample,) = family.samples
    return float(sample.value)


class Streams:
    """Over HTTP and WebSocket, on connections of the first certificate."""

    def __init__(self, gateway: GatewayProcess, authority: CertificateAuthority) -> None:
        context = authority.create_client_context()
        self._http = httpx.AsyncClient(trust_env=False, timeout=WAIT_TIMEOUT_S, verify=context)
        self._url = gateway.base_url + PATH
        self.socket = MultiplexClient(gateway.base_url, PATH, ssl=context)
        self.told = ""

    async def __aenter__(self) -> Streams:
        await self.socket.__aenter__()
        self._reading = asyncio.create_task(self._read())
        await self.socket.wait_for_message(None, "begin")
        await wait_until(lambda: "event: begin" in self.told, timeout_s=WAIT_TIMEOUT_S)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._http.aclose()
        await self.socket.__aexit__(*exc)

    async def _read(self) -> None:
        async with self._http.stream("GET", self._url) as answer:
            async for piece in answer.aiter_text():
                self.told += piece

    async def have(self, records: int) -> None:
        await self.socket.wait_until(lambda: len(self.socket.get_records(None)) == records)
        await wait_until(lambda: self.told.count('"offset":') == records, timeout_s=WAIT_TIMEOUT_S)
        assert self.socket.close_code is None and not self._reading.done()


@pytest.mark.parametrize("workers", [1, 2])
async def test_those_who_come_get_the_new_one_and_streams_go_on(
    kafka: EmbeddedKafka, tmp_path: Path, workers: int
):
    authority = CertificateAuthority(tmp_path)
    path = put(authority.issue_certificate("old", valid_days=10), tmp_path / "server.pem")
    running: Callable[..., Any] = running_gateway_process
    options: dict[str, Any] = {"ready": False}
    if workers > 1:
        running, options["worker_count"] = running_workers, workers
    async with (
        running(config(kafka, path), **options) as gateway,
        StreamOracle(",".join(kafka.bootstrap)) as oracle,
    ):
        assert await shown(gateway, authority) == "CN=old"
        async with Streams(gateway, authority) as streams:
            await oracle.produce_records("orders", 5)
            await streams.have(5)
            assert await figure(gateway, authority) == read_validity(path)[1]
            path = put(authority.issue_certificate("new", valid_days=20), path)
            await shows(gateway, authority, "new", 10 * workers)
            assert await figure(gateway, authority) == read_validity(path)[1]
            await oracle.produce_records("orders", 5)
            await streams.have(10)
        assert gateway.log.count("certificate renewed from") == workers
        assert await gateway.stop() == 0
