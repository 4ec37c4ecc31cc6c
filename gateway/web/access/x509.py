"""Guard streams by client certificates, which TLS has verified.

The certificate of a client is in one of two extensions of its ASGI scope:

    tls                    the ASGI extension of that name, if TLS ends in this process; the
                           certificate was verified in the handshake
    gateway.certificate    the header of a trusted proxy, if TLS ends there; it is parsed only
                           when a guard asks for the certificate
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Mapping, MutableMapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from cryptography import x509
from cryptography.x509.oid import NameOID

from gateway.config import X509

from .grant import Grant
from .guard import AccessRequest, Guard, GuardContext, GuardErrors, SecurityScheme

MAX_CACHED_CERTIFICATES = 4096  # certificates

_CERTIFICATE_OPTIONS = "--cert client.pem --key client.key"

_SUBJECT_OIDS = {
    "CN": NameOID.COMMON_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "C": NameOID.COUNTRY_NAME,
    "L": NameOID.LOCALITY_NAME,
    "ST": NameOID.STATE_OR_PROVINCE_NAME,
    "DC": NameOID.DOMAIN_COMPONENT,
    "UID": NameOID.USER_ID,
    "serialNumber": NameOID.SERIAL_NUMBER,
}
_ALTERNATIVE_NAME_TYPES: Mapping[
    str, type[x509.RFC822Name | x509.DNSName | x509.UniformResourceIdentifier]
]
_ALTERNATIVE_NAME_TYPES = {
    "email": x509.RFC822Name, "dns": x509.DNSName, "uri": x509.UniformResourceIdentifier
}  # fmt: skip


class X509Guard(Guard[X509]):
    is_renewable = False

    def __init__(self, name: str, settings: X509, realm: str) -> None:
        self._name = name
        self._settings = settings
        self._parse_cached = lru_cache(MAX_CACHED_CERTIFICATES)(self._parse_certificate)
        self.errors = GuardErrors(name, realm, "connect with a client certificate")

    @classmethod
    def create(cls, section: X509, context: GuardContext) -> X509Guard:
        return cls(context.name, section, context.realm)

    @classmethod
    def describe(cls, section: X509) -> tuple[SecurityScheme, ...]:
        options = _CERTIFICATE_OPTIONS
        return (SecurityScheme({"type": "X509"}, options, options, is_sent_by_browser=True),)

    async def grant(self, request: AccessRequest) -> Grant:
        pem = get_certificate(request.connection.scope, trust_forwarded=self._settings.forwarded)
        if pem is None:
            raise self.errors.build_missing_credentials()
        try:
            grant = self._parse_cached(pem)
        except ValueError:
            raise self.errors.build_invalid_token("the certificate cannot be read") from None
        if grant is None:
            reason = f"the certificate has not exactly one {self._settings.identity}"
            raise self.errors.build_invalid_token(reason)
        if grant.expires is not None and grant.expires <= time.time():
            raise self.errors.build_invalid_token("the certificate is expired")
        return grant

    def _parse_certificate(self, pem: str) -> Grant | None:
        """Return the grant of a certificate; None unless it has exactly one identity."""
        certificate = x509.load_pem_x509_certificate(pem.encode())
        settings = self._settings
        identities = get_field_values(certificate, settings.identity)
        if len(identities) != 1:
            return None
        attributes = [
            (name, get_field_values(certificate, field))
            for name, field in settings.attributes.items()
        ]
        return Grant(
            self._name,
            identities[0],
            frozenset(
                get_field_values(certificate, settings.roles) if settings.roles is not None else ()
            ),
            # An attribute with several values has no single text.
            {name: values[0] for name, values in attributes if len(values) == 1},
            certificate.not_valid_after_utc.timestamp(),
        )


def get_field_values(cert: x509.Certificate, field: str) -> Sequence[str]:
    """Return the values of a key of `_SUBJECT_OIDS` or `_ALTERNATIVE_NAME_TYPES`."""
    if field in _SUBJECT_OIDS:
        attributes = cert.subject.get_attributes_for_oid(_SUBJECT_OIDS[field])
        return [str(attribute.value) for attribute in attributes if attribute.value]
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(_ALTERNATIVE_NAME_TYPES[field])


TLS_EXTENSION = "tls"
FORWARDED_EXTENSION = "gateway.certificate"
CERTIFICATE_HEADER = b"x-forwarded-client-cert"
CLIENT_EXTENSIONS = (TLS_EXTENSION, FORWARDED_EXTENSION)
"""Extensions that identify a client for as long as its connection lasts."""

_PEM_PREFIX = "-----BEGIN CERTIFICATE-----"
MAX_HEADER_CHARS = 64 * 1024  # a longer header is refused
# One element: `Name="text"`, whose text may hold all separators (a subject does), or a text without
# separators; then a comma, a semicolon or the end. Each match begins where the last one ended, and
# the repetitions are possessive, so that the time is linear in the length of the header.
_ELEMENT_PATTERN = re.compile(
    r"""[ \t]*(?:([A-Za-z]+)="((?:[^"\\]|\\.)*+)"|([^",;]*+))[ \t]*([,;]|\Z)""", re.DOTALL
)


def build_tls_extension(transport: asyncio.Transport) -> dict[str, Any] | None:
    """Return the ASGI extension `tls` of a connection; None if the client sent no certificate.

    Only the client's certificate is filled in.
    """
    connection: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    certificate = None if connection is None else connection.getpeercert(binary_form=True)
    if certificate is None:
        return None
    return {
        "server_cert": None,
        "client_cert_chain": [ssl.DER_cert_to_PEM_cert(certificate)],
        "client_cert_name": None,
        "client_cert_error": None,
        "tls_version": None,
        "cipher_suite": None,
    }


def get_certificate(scope: Mapping[str, Any], *, trust_forwarded: bool) -> str | None:
    """Return the certificate of a client as PEM; None if it has sent none.

    With `trust_forwarded`, that of a trusted proxy's header is preferred: that of the connection
    may be the proxy's own. With a malformed header, the client counts as one without a certificate.
    """
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    if trust_forwarded and FORWARDED_EXTENSION in extensions:
        try:
            pem = _parse_header(extensions[FORWARDED_EXTENSION])
        except ValueError:
            return None
        if pem is not None:
            return pem
    tls: Mapping[str, Any] = extensions.get(TLS_EXTENSION) or {}
    if tls.get("client_cert_error") is None:
        for pem in tls.get("client_cert_chain") or ():  # the client's own is the first
            return str(pem)
    return None


def store_forwarded_certificate(scope: MutableMapping[str, Any]) -> None:
    """Store what a trusted proxy sent as `X-Forwarded-Client-Cert` in the scope's extensions.

    Of several headers the last one counts: it is the one that the connected proxy has added.
    """
    values = [value for name, value in scope["headers"] if name == CERTIFICATE_HEADER]
    if values:
        scope.setdefault("extensions", {})[FORWARDED_EXTENSION] = values[-1].decode("latin-1")


def _parse_header(header: str) -> str | None:
    """Return the certificate in a header as PEM; None if there is none.

    The header holds a percent-encoded PEM (nginx: `$ssl_client_escaped_cert`), or elements with
    `Cert=` as Envoy writes them. Of several elements, separated by commas, the last one counts. A
    header that is not well-formed to its end is a `ValueError`: text of a client may precede that
    of its proxy, and a quote that the client left open would swallow the proxy's element.
    """
    if len(header) > MAX_HEADER_CHARS:
        raise ValueError(f"{len(header)} characters")
    pems: list[str] = []
    pos, separator = 0, ";"
    while separator:
        match = _ELEMENT_PATTERN.match(header, pos)
        if match is None:
            raise ValueError(f"no element at {pos}")
        name, quoted, plain, separator = match.groups()
        pos = match.end()
        pems += _parse_pem(name, quoted) if plain is None else _parse_pem(*_split_element(plain))
        if separator == ",":  # another element follows, of a proxy nearer to us
            pems.clear()
    return pems[0] if pems else None


def _split_element(element: str) -> tuple[str, str]:
    """Return the name and text of a pair without quotes. A bare PEM has the name `cert`."""
    name, equals, text = element.partition("=")
    return (name, text) if equals and name.lower() == "cert" else ("cert", element)


def _parse_pem(name: str, text: str) -> list[str]:
    """Return the PEM of a pair named `cert` as a list of one; an empty list for anything else."""
    pem = unquote(text) if name.lower() == "cert" else ""
    return [pem] if pem.startswith(_PEM_PREFIX) else []
