"""The TLS certificate of this gateway, reloaded when its files change.

The server keeps one SSL context for as long as it runs. In each handshake, OpenSSL calls the SNI
callback of that context, also for clients that send no server name, and the callback switches to
the context of the current files. Connections that are open stay as they are.

Files that cannot be used, such as a key of another certificate or half of a file, are refused, and
the certificate before them stays in use. It also stays while it is valid and the new one is expired
or not valid yet.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

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
