"""Clients that are known by the certificate of their handshake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.brokers import embedded_kafka
from support.certificates import CertificateAuthority
from support.gateways import GatewayThread, build_config, running_gateway
from support.stream_attempts import WIRE_NAMES, attempt_stream
from websockets.exceptions import InvalidHandshake

from gateway.kafka.embedded import EmbeddedKafka

PATH = "/events/orders"
UNHEARD = (OSError, httpx.TransportError, InvalidHandshake)

kafka = embedded_kafka({"orders": 1})


@pytest.fixture
def stranger(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path, "another authority")


@asynccontextmanager
async def guarded(
    kafka: EmbeddedKafka, guard: dict[str, Any], **listen: Any
) -> AsyncIterator[GatewayThread]:
    routes: Any = [
        {"when": [{"path": PATH}], "guarded": {"machines": []}, "with": {"topic": "orders"}},
        {"when": [{"path": "/events/open"}], "with": {"topic": "orders"}},
    ]
    guards = {"machines": {"type": "x509", **guard}}
    config = build_config(kafka.bootstrap, ["orders"], routes, guards=guards, listen=listen)
    tls = "tls" in listen
    async with running_gateway(config, ready=not tls) as gateway:
        yield gateway


def tls(authority: CertificateAuthority, **options: str) -> dict[str, Any]:
    own = str(authority.issue_certificate("gateway"))
    return {"certificate": own, "key": own, "ca": str(authority.certificate_path), **options}


async def test_who_shows_a_certificate_is_known_by_it_on_every_wire(
    kafka: EmbeddedKafka, authority: CertificateAuthority, stranger: CertificateAuthority
):
    async with guarded(kafka, {}, tls=tls(authority)) as gateway:
        url = gateway.base_url
        assert url.startswith("https://")
        ada = authority.create_client_context(authority.issue_certificate("ada"))
        forged = authority.create_client_context(stranger.issue_certificate("eve"))
        for wire in WIRE_NAMES:
            assert (await attempt_stream(wire, url, PATH, verify=ada)).status == 200
            told = await attempt_stream(wire, url, PATH, verify=authority.create_client_context())
            assert told.status == 401 and "client certificate" in told.text
            open_ = await attempt_stream(
                wire, url, "/events/open", verify=authority.create_client_context()
            )
            assert open_.status == 200
            with pytest.raises(UNHEARD):
                await attempt_stream(wire, url, "/events/open", verify=forged)


async def test_where_it_is_required_nobody_else_is_heard(
    kafka: EmbeddedKafka, authority: CertificateAuthority
):
    async with guarded(kafka, {}, tls=tls(authority, mutual="required")) as gateway:
        url, ada = (
            gateway.base_url,
            authority.create_client_context(authority.issue_certificate("ada")),
        )
        for wire in WIRE_NAMES:
            assert (await attempt_stream(wire, url, PATH, verify=ada)).status == 200
            with pytest.raises(UNHEARD):
                await attempt_stream(
                    wire, url, "/events/open", verify=authority.create_client_context()
                )
