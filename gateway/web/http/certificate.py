"""The TLS certificate of this gateway, reloaded when its files change, and those of clients.

The server keeps one SSL context for as long as it runs. In each handshake, OpenSSL calls the SNI
callback of that context, also for clients that send no server name, and the callback switches to
the context of the current files. Connections that are open stay as they are.

Files that cannot be used, such as a key of another certificate or half of a file, are refused, and
the certificate before them stays in use. It also stays while it is valid and the new one is expired
or not valid yet.

The certificate of a client is in one of two extensions of its ASGI scope:

    tls                    the ASGI extension of that name, if TLS ends in this process; the
                           certificate was verified in the handshake
    gateway.certificate    the header of a trusted proxy, if TLS ends there; it is parsed only
                           when a guard asks for the certificate
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
import time
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

from cryptography import x509

from gateway.config import ListenTls
from gateway.config.types.address import describe_ssl_error
from gateway.errors import GatewayError
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

log = logging.getLogger(__name__)


FileStamps: TypeAlias = Sequence[tuple[int, int, int] | None]
"""The modification time in ns, size and inode of each file; None for one that is not there."""


class TlsContext:
    """The SSL context of a process, and the certificate that it uses now.

    `reload` either takes over a new certificate as a whole or changes nothing. `context` stays the
    same object; `expires_at` is in seconds since 1970.
    """

    CHECK_INTERVAL_S = 2.0  # seconds from one check of the files to the next

    def __init__(self, settings: ListenTls) -> None:
        self._settings = settings
        self._file_stamps = read_file_stamps(settings)
        self.context = create_context(settings)
        self._current_context = self.context
        self._valid_from, self.expires_at = read_validity(settings.certificate)
        self.context.sni_callback = self._select_context

    def reload(self, settings: ListenTls | None = None) -> bool:
        """Use the certificate of the files, and return whether it is used; the log says why not."""
        new_settings = settings or self._settings
        # Taken before the files are read: a change that comes in between is found by `watch`.
        stamps = read_file_stamps(new_settings)
        try:
            context = create_context(new_settings)
            valid_from, expires_at = read_validity(new_settings.certificate)
            if not valid_from <= time.time() < expires_at and self._is_valid():
                problem = (
                    "is not valid yet" if time.time() < valid_from else "is not valid any more"
                )
                name = new_settings.certificate
                raise GatewayError(f"listen.tls: {name} {problem}; write one that is valid now")
        except GatewayError as exc:
            # The same files would fail again: they are tried once more when they change.
            self._file_stamps = stamps
            log.error("the certificate is not renewed, the one before stays: %s", exc)
            return False
        self._settings, self._file_stamps, self._current_context = new_settings, stamps, context
        self._valid_from, self.expires_at = valid_from, expires_at
        # A handshake takes this from the context that it begins with, before the SNI callback.
        self.context.verify_mode = context.verify_mode
        days = (expires_at - time.time()) / 86_400
        log_renewal = log.warning if days <= 0 else log.info
        log_renewal(
            "certificate renewed from %s; it is valid for %.1f days", new_settings.certificate, days
        )
        return True

    def _is_valid(self) -> bool:
        return self._valid_from <= time.time() < self.expires_at

    async def watch(self) -> None:
        """Reload whenever a file is replaced or changed, until cancelled."""
        while True:
            await asyncio.sleep(self.CHECK_INTERVAL_S)
            if await asyncio.to_thread(read_file_stamps, self._settings) != self._file_stamps:
                self.reload()

    def collect_metrics(self, figures: MetricSamples) -> None:
        figures.add(catalog.CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS, self.expires_at)

    def _select_context(
        self, ssl_object: ssl.SSLObject, server_name: str | None, initial_context: ssl.SSLContext
    ) -> None:
        """Switch a handshake to the current context. It is the SNI callback of OpenSSL."""
        if self._current_context is not initial_context:
            ssl_object.context = self._current_context


def create_context(settings: ListenTls) -> ssl.SSLContext:
    """Return an SSL context of the files, or raise a `GatewayError` if they cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION  # during which nothing can be written
    try:
        # Without a password callback, OpenSSL would ask for the password of an encrypted key at
        # the terminal, and block the event loop until somebody answers.
        context.load_cert_chain(settings.certificate, settings.key, password=lambda: "")
        if settings.ca is not None:
            context.load_verify_locations(settings.ca)
            is_required = settings.mutual == "required"
            context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    except (OSError, ValueError) as exc:
        files = [settings.certificate, settings.key, *([settings.ca] if settings.ca else [])]
        names = ", ".join(str(name) for name in dict.fromkeys(files))
        reason = describe_ssl_error(exc) if isinstance(exc, OSError) else exc
        problem = f"listen.tls: {names} cannot be used ({reason})"
        raise GatewayError(f"{problem}; give a chain, its own key without a password") from None
    return context


def read_validity(certificate: Path) -> tuple[float, float]:
    """Return the validity of a chain's first certificate, in seconds since 1970."""
    try:
        chain = x509.load_pem_x509_certificates(certificate.read_bytes())
    except (OSError, ValueError) as exc:
        raise GatewayError(f"listen.tls: {certificate} cannot be read ({exc}); write it") from None
    return chain[0].not_valid_before_utc.timestamp(), chain[0].not_valid_after_utc.timestamp()


def read_file_stamps(settings: ListenTls) -> FileStamps:
    return [_read_file_stamp(path) for path in (settings.certificate, settings.key, settings.ca)]


def _read_file_stamp(path: Path | None) -> tuple[int, int, int] | None:
    try:
        status = None if path is None else os.stat(path)
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)


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
