"""The certificate of a client, as an ASGI scope has it.

extensions["tls"]                    of who ends TLS here (the ASGI extension of that name);
                                     what is there was checked in the handshake
extensions["gateway.certificate"]    of who ends it in front of the gateway, and is believed
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote

TLS = "tls"
FORWARDED = "gateway.certificate"
HEADER = b"x-forwarded-client-cert"
KEPT = (TLS, FORWARDED)
"""Extensions that say who a client is, for as long as it is connected."""

_BEGIN = "-----BEGIN CERTIFICATE-----"
_PIECES = re.compile(r'(?:[^",;]|"(?:[^"\\]|\\.)*")+|[",;]')  # a subject may have all of these


def extension(transport: asyncio.Transport) -> dict[str, Any] | None:
    """The ASGI extension `tls` of a connection on which a client has shown a certificate."""
    connection: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    shown = None if connection is None else connection.getpeercert(binary_form=True)
    if shown is None:
        return None
    return {
        "server_cert": None,
        "client_cert_chain": [ssl.DER_cert_to_PEM_cert(shown)],
        "client_cert_name": None,
        "client_cert_error": None,
        "tls_version": None,
        "cipher_suite": None,
    }


def certificate(scope: Mapping[str, Any], *, forwarded: bool) -> str | None:
    """The certificate of a client, as PEM; None if it has shown none.

    forwarded: take the word of a proxy for it, which may have shown its own.
    """
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    if forwarded and FORWARDED in extensions:
        return str(extensions[FORWARDED])
    of_tls: Mapping[str, Any] = extensions.get(TLS) or {}
    if of_tls.get("client_cert_error") is None:
        for pem in of_tls.get("client_cert_chain") or ():
            return str(pem)
    return None


def believe(scope: MutableMapping[str, Any]) -> None:
    """Take over what a proxy says in `X-Forwarded-Client-Cert`: a PEM, percent-encoded (nginx:
    `$ssl_client_escaped_cert`), or as Envoy's `Cert=`; of several the last, which is that of the
    proxy that asks."""
    said = [value for name, value in scope["headers"] if name == HEADER]
    elements: list[str] = []
    for piece in _PIECES.findall(said[-1].decode("latin-1")) if said else ():
        if piece == ",":
            elements.clear()
        elif piece != ";":
            elements.append(piece.strip())
    for element in elements:
        name, equals, value = element.partition("=")
        pem = unquote((value if equals and name.lower() == "cert" else element).strip('"'))
        if pem.startswith(_BEGIN):
            scope.setdefault("extensions", {})[FORWARDED] = pem
            return
