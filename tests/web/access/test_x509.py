from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.access_requests import build_access_request, build_connection

from gateway.config import X509
from gateway.errors import NotGranted
from gateway.web.access.grant import Grant
from gateway.web.access.x509 import FORWARDED_EXTENSION, TLS_EXTENSION, X509Guard

KEY = ec.derive_private_key(7, ec.SECP256R1())
ENDS = datetime.datetime(2096, 10, 2, 7, 6, 40, tzinfo=datetime.UTC)
OIDS = {
    "CN": NameOID.COMMON_NAME, "O": NameOID.ORGANIZATION_NAME, "UID": NameOID.USER_ID,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME, "DC": NameOID.DOMAIN_COMPONENT,
}  # fmt: skip


def build_certificate(
    *subject: tuple[str, str],
    names: Sequence[x509.GeneralName] = (),
    ends: datetime.datetime = ENDS,
) -> str:
    name = x509.Name([x509.NameAttribute(OIDS[field], text) for field, text in subject])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(KEY.public_key())
        .serial_number(7)
        .not_valid_before(datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(ends)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
    made = builder.sign(KEY, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


def build_guard(**options: Any) -> X509Guard:
    return X509Guard("machines", X509.model_validate({"type": "x509", **options}), "orders")


def build_tls_connection(
    certificate: str, *, by: str = TLS_EXTENSION, error: str | None = None
) -> Any:
    shown: Any = {"client_cert_chain": [certificate], "client_cert_error": error}
    return build_connection(extensions={by: certificate if by == FORWARDED_EXTENSION else shown})


SENSOR = build_certificate(
    ("CN", "sensor-7"), ("O", "Acme"), ("OU", "read"), ("OU", "write"), ("DC", "a"), ("DC", "b"),
    names=[
        x509.DNSName("sensor-7.acme"), x509.UniformResourceIdentifier("spiffe://acme/sensor/7"),
        x509.RFC822Name("a@acme"), x509.RFC822Name("b@acme"),
    ],
)  # fmt: skip


@pytest.mark.parametrize(
    ("options", "grant"),
    [
        ({}, Grant("machines", "sensor-7", expires=4e9)),
        ({"identity": "O"}, Grant("machines", "Acme", expires=4e9)),
        ({"identity": "uri"}, Grant("machines", "spiffe://acme/sensor/7", expires=4e9)),
        ({"identity": "dns"}, Grant("machines", "sensor-7.acme", expires=4e9)),
        ({"roles": "OU"}, Grant("machines", "sensor-7", frozenset({"read", "write"}), {}, 4e9)),
        (
            {"attributes": {"org": "O", "none": "L", "several": "DC"}},
            Grant("machines", "sensor-7", frozenset(), {"org": "Acme"}, 4e9),
        ),
    ],
)
async def test_a_certificate_makes_the_grant(options: Any, grant: Grant):
    assert (
        await build_guard(**options).grant(build_access_request(build_tls_connection(SENSOR)))
        == grant
    )


@pytest.mark.parametrize(
    ("options", "came"),
    [
        ({"identity": "L"}, build_tls_connection(SENSOR)),
        ({"identity": "email"}, build_tls_connection(SENSOR)),
        ({"identity": "uri"}, build_tls_connection(build_certificate(("CN", "a")))),
        ({}, build_tls_connection(build_certificate(("CN", "ada"), ("CN", "admin")))),
        ({}, build_tls_connection(build_certificate(("O", "Acme")))),
        (
            {},
            build_tls_connection("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        ),
        ({}, build_tls_connection("")),
        (
            {},
            build_tls_connection(
                build_certificate(
                    ("CN", "a"), ends=datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)
                )
            ),
        ),
        ({}, build_tls_connection(SENSOR, error="it is not trusted")),
        ({}, build_tls_connection(SENSOR, by=FORWARDED_EXTENSION)),
        ({}, build_connection()),
        ({"forwarded": True}, build_connection(("X-Forwarded-Client-Cert", f"Cert={SENSOR!r}"))),
    ],
)
async def test_no_other_certificate_does(options: Any, came: Any):
    with pytest.raises(NotGranted) as refused:
        await build_guard(**options).grant(build_access_request(came))
    assert refused.value.status == 401


async def test_a_proxys_word_is_taken_where_that_is_said_and_before_its_own_certificate():
    made, own = build_guard(forwarded=True), build_certificate(("CN", "proxy"))
    came = build_tls_connection(own)
    came.scope["extensions"][FORWARDED_EXTENSION] = SENSOR
    assert (await made.grant(build_access_request(came))).identity == "sensor-7"
    assert (await made.grant(build_access_request(build_tls_connection(own)))).identity == "proxy"
    assert (await build_guard().grant(build_access_request(came))).identity == "proxy"


async def test_a_certificate_is_read_once():
    made = build_guard()
    first = await made.grant(build_access_request(build_tls_connection(SENSOR)))
    assert await made.grant(build_access_request(build_tls_connection(SENSOR))) is first
    assert not made.is_renewable
