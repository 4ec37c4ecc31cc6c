"""Define the guard `x509`, which reads client certificates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from gateway.config.sections.listen import Listen
from gateway.config.types.fields import Flag, Text
from gateway.config.types.section import Problem

from .guard_section import GuardSection

CertificateField = Literal[
    "CN", "O", "OU", "C", "L", "ST", "DC", "UID", "serialNumber", "email", "dns", "uri"
]
"""A field of a certificate: `email`, `dns` and `uri` are alternative names of the subject
(RFC 5280 4.2.1.6), the others are attributes of its distinguished name."""


class X509(GuardSection):
    """A guard that reads the client certificate, which TLS has verified (`listen.tls.ca`)."""

    has_ambient_credentials: ClassVar[bool] = True

    type: Literal["x509"] = Field(description="The kind of guard. For access control.")
    identity: CertificateField = Field(
        default="CN", description="The field that names the client. For templates."
    )
    roles: CertificateField | None = Field(
        default=None, description="The field that has its roles. For `guarded` of routes."
    )
    attributes: dict[Text, CertificateField] = Field(
        default={},
        description="Attributes of the client, each with the field that has its value. For "
        "templates.",
    )
    forwarded: Flag = Field(
        default=False,
        description="Trust the header X-Forwarded-Client-Cert of the proxies in listen.forwarded. "
        "They must remove this header from the requests of clients. For gateways behind a proxy "
        "that terminates TLS.",
    )

    def check_listen(self, name: str, listen: Listen) -> Iterator[Problem]:
        """Yield the problem of a guard that sees no certificate, or one that anybody could send."""
        if not self.forwarded:
            if listen.tls is None or listen.tls.ca is None:
                what = f"guard '{name}' sees no certificate: clients are not asked for any"
                yield Problem((), f"{what}; add listen.tls.ca", is_key=True)
        elif isinstance(listen.forwarded, bool):
            what = "anybody could send the certificate of another"
            hint = "list the proxies in listen.forwarded"
            yield Problem(("forwarded",), f"{what}; {hint}", is_key=True)
