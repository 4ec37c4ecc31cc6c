"""Guard streams by client certificates, which TLS has verified.

The gateway itself verifies them, or a trusted proxy does (`web/http/certificate.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache

from cryptography import x509
from cryptography.x509.oid import NameOID

from gateway.config import X509
from gateway.web.http.certificate import get_certificate

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
