"""What is said where TLS or the login do not match a listener of a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import running_kafka
from support.certificates import CertificateAuthority
from support.local_kafka import RiggedKafka
from support.secure_kafka import BrokerSecurity

from gateway.config.sections.security import Security
from gateway.errors import KafkaError
from gateway.kafka.client.cluster import parse_address
from gateway.kafka.client.connections import ConnectionRole, Connections
from gateway.kafka.client.security import create_credentials
from gateway.kafka.protocol.requests import MetadataRequest

pytestmark = pytest.mark.needs("kafka")

LOGIN = {"mechanism": "scram-sha-256", "username": "carol", "password": "pw"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("listeners")


@pytest.fixture(scope="module")
def known(directory: Path) -> CertificateAuthority:
    return CertificateAuthority(directory, "known")


@pytest.fixture(scope="module")
def unknown(directory: Path) -> CertificateAuthority:
    return CertificateAuthority(directory, "unknown")


@pytest.fixture(scope="module")
def kafka(known: CertificateAuthority) -> Iterator[RiggedKafka]:
    """A broker with each kind of listener."""
    security = BrokerSecurity(
        users={"carol": "pw"},
        mechanisms=("SCRAM-SHA-256", "OAUTHBEARER"),
        certificate=known.issue_certificate("broker"),
        authority=known.certificate_path,
    )
    with running_kafka(security.create_kafka()) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def strict_kafka(known: CertificateAuthority) -> Iterator[RiggedKafka]:
    """A broker that requires client certificates."""
    security = BrokerSecurity(
        certificate=known.issue_certificate("strict"),
        authority=known.certificate_path,
        client_auth="required",
    )
    with running_kafka(security.create_kafka()) as kafka:
        yield kafka


async def explain(server: str, security: dict[str, Any]) -> str:
    """Return why this server cannot be asked with this section `kafka.security`."""
    connections = Connections(credentials=create_credentials(Security.model_validate(security)))
    connections.update_addresses({-1: parse_address(server)})
    try:
        with pytest.raises(KafkaError) as failed:
            await connections.send(-1, ConnectionRole.CONTROL, MetadataRequest(()))
    finally:
        await connections.close()
    text = str(failed.value)
    subject = f"the bootstrap server at {server} "
    assert text.startswith(subject)
    assert "<" not in text and "Error" not in text and "_ssl.c" not in text
    return text.removeprefix(subject)


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SASL"])
@pytest.mark.parametrize("sasl", [{}, {"sasl": LOGIN}])
async def test_tls_at_a_port_without_tls(kafka, known, listener, sasl):
    tls = {"tls": {"ca": str(known.certificate_path)}}
    said = await explain(kafka.get_addresses(listener)[0], tls | sasl)
    assert said == (
        "ends the TLS handshake, as a port without TLS does; remove kafka.security.tls, or use "
        "the port of a listener with TLS"
    )


@pytest.mark.parametrize("listener", ["TLS", "SASL_TLS"])
@pytest.mark.parametrize("sasl", [{}, {"sasl": LOGIN}])
async def test_plaintext_at_a_port_with_tls(
    kafka: RiggedKafka, listener: str, sasl: dict[str, Any]
):
    said = await explain(kafka.get_addresses(listener)[0], sasl)
    assert said == "speaks TLS on this port, and the gateway does not; set kafka.security.tls"


@pytest.mark.parametrize(("listener", "uses_tls"), [("PLAINTEXT", False), ("TLS", True)])
async def test_a_login_at_a_listener_without_sasl(kafka, known, listener, uses_tls):
    tls = {"tls": {"ca": str(known.certificate_path)}} if uses_tls else {}
    said = await explain(kafka.get_addresses(listener)[0], {"sasl": LOGIN} | tls)
    assert said == (
        "takes no login on this port, its listener has no SASL; remove kafka.security.sasl, or "
        "use the port of a listener with SASL"
    )


@pytest.mark.parametrize(("listener", "uses_tls"), [("SASL", False), ("SASL_TLS", True)])
async def test_no_login_at_a_listener_with_sasl(kafka, known, listener, uses_tls):
    """It closes the connection at the first request, which was taken for a port with TLS."""
    tls = {"tls": {"ca": str(known.certificate_path)}} if uses_tls else {}
    said = await explain(kafka.get_addresses(listener)[0], tls)
    assert said == (
        "closes the connection at the first request, as a listener that requires a login does; "
        "set kafka.security.sasl"
    )


async def test_a_mechanism_that_is_not_offered(kafka: RiggedKafka):
    sasl = LOGIN | {"mechanism": "scram-sha-512"}
    said = await explain(kafka.get_addresses("SASL")[0], {"sasl": sasl})
    assert said.startswith("does not offer the SASL mechanism SCRAM-SHA-512, but ")
    assert "SCRAM-SHA-256" in said and said.endswith("; correct kafka.security.sasl.mechanism")


@pytest.mark.parametrize("wrong", [{"password": "guessed"}, {"username": "nobody"}])
async def test_a_wrong_login(kafka: RiggedKafka, wrong: dict[str, str]):
    said = await explain(kafka.get_addresses("SASL")[0], {"sasl": LOGIN | wrong})
    assert said.startswith("refuses the login (Authentication failed")
    assert said.endswith("); correct kafka.security.sasl.username and password")
    assert "guessed" not in said


async def test_a_wrong_token(kafka: RiggedKafka):
    sasl = {"mechanism": "oauthbearer", "token": "forged"}
    said = await explain(kafka.get_addresses("SASL")[0], {"sasl": sasl})
    assert said.startswith("refuses the token (") and "forged" not in said


async def test_an_authority_that_is_not_trusted(kafka: RiggedKafka, unknown: CertificateAuthority):
    server = kafka.get_addresses("TLS")[0]
    start = "has a certificate of an authority that the gateway does not trust; "
    said = await explain(server, {"tls": {"ca": str(unknown.certificate_path)}})
    assert said == f"{start}correct kafka.security.tls.ca, which has another one"
    said = await explain(server, {"tls": {}})
    assert said == f"{start}set kafka.security.tls.ca to a PEM file with this authority"


async def test_no_client_certificate(strict_kafka: RiggedKafka, known: CertificateAuthority):
    tls = {"ca": str(known.certificate_path)}
    said = await explain(strict_kafka.get_addresses("TLS")[0], {"tls": tls})
    assert said == "requires a client certificate; set kafka.security.tls.certificate and key"


async def test_a_client_certificate_that_is_refused(strict_kafka, known, unknown):
    for pem in (
        unknown.issue_certificate("stranger"), known.issue_certificate("late", valid_days=-1)
    ):  # fmt: skip
        tls = {"ca": str(known.certificate_path), "certificate": str(pem), "key": str(pem)}
        said = await explain(strict_kafka.get_addresses("TLS")[0], {"tls": tls})
        assert said.startswith("refuses the gateway's certificate (certificate unknown); ")
        assert said.endswith("correct kafka.security.tls.certificate")


async def test_a_certificate_that_has_expired_or_is_for_another_host(known: CertificateAuthority):
    """The broker must start with each of them."""
    tls = {"tls": {"ca": str(known.certificate_path)}}
    for certificate, text in (
        (
            known.issue_certificate("old", valid_days=-1),
            "has a certificate that has expired; renew it at the broker",
        ),
        (
            known.issue_certificate("elsewhere", hostname="kafka.example"),
            "has a certificate for other names than 127.0.0.1; use one of its names in "
            "kafka.servers, or add this name to the certificate",
        ),
    ):
        security = BrokerSecurity(certificate=certificate, authority=known.certificate_path)
        with running_kafka(security.create_kafka()) as kafka:
            assert await explain(kafka.get_addresses("TLS")[0], tls) == text
