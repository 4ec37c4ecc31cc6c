"""Guards that read the certificate of a client, which TLS has checked: that of the gateway itself,
or of a proxy that is believed (`web/http/client_certificate`)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache

from cryptography import x509
from cryptography.x509.oid import NameOID

from gateway.config import X509
from gateway.web.http.client_certificate import get_certificate

from .grant import Grant
from .guard import AccessRequest
from .guard_errors import GuardErrors

MAX_CACHED_CERTIFICATES = 4096  # certificates

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


class X509Guard:
    """See the module."""

    is_renewable = False

    def __init__(self, name: str, settings: X509, realm: str) -> None:
        self._name = name
        self._settings = settings
        self._parse_cached = lru_cache(MAX_CACHED_CERTIFICATES)(self._parse_certificate)
        self.errors = GuardErrors(name, realm, "connect with a client certificate")

    async def grant(self, request: AccessRequest) -> Grant:
        pem = get_certificate(request.connection.scope, trust_forwarded=self._settings.forwarded)
        if pem is None:
            raise self.errors.build_missing_credentials()
        try:
            grant = self._parse_cached(pem)
        except ValueError:
            raise self.errors.build_invalid_token("the certificate cannot be read") from None
        if grant is None:
            why = f"the certificate has not exactly one {self._settings.identity}"
            raise self.errors.build_invalid_token(why)
        if grant.expires is not None and grant.expires <= time.time():
            raise self.errors.build_invalid_token("the certificate is expired")
        return grant

    def _parse_certificate(self, pem: str) -> Grant | None:
        """None if nobody, or more than one, is named by it. Raises ValueError if it is none."""
        read = x509.load_pem_x509_certificate(pem.encode())
        settings = self._settings
        named = get_field_values(read, settings.identity)
        if len(named) != 1:
            return None
        found = [
            (name, get_field_values(read, field)) for name, field in settings.attributes.items()
        ]
        return Grant(
            self._name,
            named[0],
            frozenset(get_field_values(read, settings.roles) if settings.roles is not None else ()),
            {name: values[0] for name, values in found if len(values) == 1},
            read.not_valid_after_utc.timestamp(),
        )


def get_field_values(cert: x509.Certificate, field: str) -> Sequence[str]:
    """What stands in a field: of the subject, or of its alternative names."""
    if field in _SUBJECT_OIDS:
        attributes = cert.subject.get_attributes_for_oid(_SUBJECT_OIDS[field])
        return [str(each.value) for each in attributes if each.value]
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(_ALTERNATIVE_NAME_TYPES[field])
