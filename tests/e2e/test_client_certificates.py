"""Clients that are known by their certificate: of a handshake, or by the word of a proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from support.brokers import embedded_kafka
from support.certificates import Authority
from support.gateways import Gateway, config_for, running_gateway
from support.knock import WIRES, Comes, knock
from websockets.exceptions import InvalidHandshake

from gateway.kafka.embedded import EmbeddedKafka

PATH = "/events/orders"
UNHEARD = (OSError, httpx.TransportError, InvalidHandshake)

kafka = embedded_kafka({"orders": 1})


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "another authority")


@asynccontextmanager
async def guarded(
    kafka: EmbeddedKafka, guard: dict[str, Any], **listen: Any
) -> AsyncIterator[Gateway]:
    routes: Any = [
        {"when": [{"path": PATH}], "guarded": {"machines": []}, "with": {"topic": "orders"}},
        {"when": [{"path": "/events/open"}], "with": {"topic": "orders"}},
    ]
    guards = {"machines": {"type": "x509", **guard}}
    config = config_for(kafka.bootstrap, ["orders"], routes, guards=guards, listen=listen)
    tls = "tls" in listen
    async with running_gateway(config, ready=not tls) as gateway:
        yield gateway


def tls(authority: Authority, **options: str) -> dict[str, Any]:
    own = str(authority.signed("gateway"))
    return {"certificate": own, "key": own, "trust": str(authority.path), **options}


async def test_who_shows_a_certificate_is_known_by_it_on_every_wire(
    kafka: EmbeddedKafka, authority: Authority, stranger: Authority
):
    async with guarded(kafka, {}, tls=tls(authority)) as gateway:
        url = gateway.base_url
        assert url.startswith("https://")
        ada = authority.context(authority.signed("ada"))
        forged = authority.context(stranger.signed("eve"))
        for wire in WIRES:
            assert (await knock(wire, url, PATH, verify=ada)).status == 200
            told = await knock(wire, url, PATH, verify=authority.context())
            assert told.status == 401 and "client certificate" in told.said
            open_ = await knock(wire, url, "/events/open", verify=authority.context())
            assert open_.status == 200
            with pytest.raises(UNHEARD):
                await knock(wire, url, "/events/open", verify=forged)


async def test_where_it_is_required_nobody_else_is_heard(
    kafka: EmbeddedKafka, authority: Authority
):
    async with guarded(kafka, {}, tls=tls(authority, mutual="required")) as gateway:
        url, ada = gateway.base_url, authority.context(authority.signed("ada"))
        for wire in WIRES:
            assert (await knock(wire, url, PATH, verify=ada)).status == 200
            with pytest.raises(UNHEARD):
                await knock(wire, url, "/events/open", verify=authority.context())


@pytest.mark.parametrize(
    ("forwarded", "believed"), [(["127.0.0.1"], True), (["192.0.2.0/24"], False)]
)
async def test_a_proxys_word_counts_if_it_is_named(
    kafka: EmbeddedKafka, authority: Authority, forwarded: list[str], believed: bool
):
    pem = authority.signed("ada").read_text()
    shown = quote(pem[pem.index("-----BEGIN CERTIFICATE") :], safe="")
    async with guarded(kafka, {"forwarded": True}, forwarded=forwarded) as gateway:
        for wire in WIRES:
            for form in (shown, f'Hash=1;Subject="CN=eve,O=x";Cert="{shown}"'):
                comes = Comes({"X-Forwarded-Client-Cert": form})
                told = await knock(wire, gateway.base_url, PATH, comes)
                assert told.status == (200 if believed else 401), told
            assert (await knock(wire, gateway.base_url, PATH)).status == 401
