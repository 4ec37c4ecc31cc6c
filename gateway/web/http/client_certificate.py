"""The certificate of a client, as an ASGI scope has it.

extensions["tls"]                    of who ends TLS here (the ASGI extension of that name);
                                     what is there was checked in the handshake
extensions["gateway.certificate"]    of who ends it in front of the gateway, and is believed: what
                                     its header says, read when a guard asks for it
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote

TLS_EXTENSION = "tls"
FORWARDED_EXTENSION = "gateway.certificate"
CERTIFICATE_HEADER = b"x-forwarded-client-cert"
CLIENT_EXTENSIONS = (TLS_EXTENSION, FORWARDED_EXTENSION)
"""Extensions that say who a client is, for as long as it is connected."""

_PEM_PREFIX = "-----BEGIN CERTIFICATE-----"
MAX_HEADER_CHARS = 64 * 1024  # characters of a header that is read
# `Name="text"`, in which a subject may have all of these marks, or a text without any; then a
# comma, a semicolon or the end. Matched from where the last one ended, and possessive: linear.
_ELEMENT_PATTERN = re.compile(
    r"""[ \t]*(?:([A-Za-z]+)="((?:[^"\\]|\\.)*+)"|([^",;]*+))[ \t]*([,;]|\Z)""", re.DOTALL
)


def build_tls_extension(transport: asyncio.Transport) -> dict[str, Any] | None:
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


def get_certificate(scope: Mapping[str, Any], *, trust_forwarded: bool) -> str | None:
    """The certificate of a client, as PEM; None if it has shown none.

    forwarded: take the word of a proxy for it, which may have shown its own. One that is garbled
    is no word of a proxy's, and then nobody has shown any.
    """
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    if trust_forwarded and FORWARDED_EXTENSION in extensions:
        try:
            pem = _parse_header(extensions[FORWARDED_EXTENSION])
        except ValueError:
            return None
        if pem is not None:
            return pem
    of_tls: Mapping[str, Any] = extensions.get(TLS_EXTENSION) or {}
    if of_tls.get("client_cert_error") is None:
        for pem in of_tls.get("client_cert_chain") or ():
            return str(pem)
    return None


def store_forwarded_certificate(scope: MutableMapping[str, Any]) -> None:
    """Take over what a proxy says in `X-Forwarded-Client-Cert`; of several headers the last, which
    is that of the proxy that asks."""
    said = [value for name, value in scope["headers"] if name == CERTIFICATE_HEADER]
    if said:
        scope.setdefault("extensions", {})[FORWARDED_EXTENSION] = said[-1].decode("latin-1")


def _parse_header(header: str) -> str | None:
    """Return the certificate in a header; of several elements, in the last.

    It is a PEM, percent-encoded (nginx: `$ssl_client_escaped_cert`), or Envoy's `Cert=`.

    What a client sent may stand before what its proxy appends. So a header that is not well-formed
    to its end raises ValueError: a quote that the client opened would take in the proxy's words.
    """
    if len(header) > MAX_HEADER_CHARS:
        raise ValueError(f"{len(header)} characters")
    pems: list[str] = []
    at, mark = 0, ";"
    while mark:
        found = _ELEMENT_PATTERN.match(header, at)
        if found is None:
            raise ValueError(f"no element at {at}")
        name, quoted, plain, mark = found.groups()
        at = found.end()
        pems += _parse_pem(name, quoted) if plain is None else _parse_pem(*_split_element(plain))
        if mark == ",":
            pems.clear()
    return pems[0] if pems else None


def _split_element(element: str) -> tuple[str, str]:
    """Return name and text of an element without quotes; no name where it is a PEM itself."""
    name, equals, text = element.partition("=")
    return (name, text) if equals and name.lower() == "cert" else ("cert", element)


def _parse_pem(name: str, text: str) -> list[str]:
    pem = unquote(text) if name.lower() == "cert" else ""
    return [pem] if pem.startswith(_PEM_PREFIX) else []
