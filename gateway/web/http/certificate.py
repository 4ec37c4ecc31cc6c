"""The certificate of this gateway, read anew when its files change.

The server keeps one context for as long as it runs; each handshake is led from there to the context
of what the files hold by now (OpenSSL asks for it with the name that a client wants, also where it
wants none). Streams that run are not touched. What cannot be used, a key of another certificate or
half of a file, is refused, and the one before stays; so it does while it is valid and the new one
is not, or not yet.
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
from gateway.errors import GatewayError
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 2.0  # seconds from one look at the files to the next

FileStamps: TypeAlias = Sequence[tuple[int, int, int] | None]


class TlsContext:
    """See the module.

    context: for the server, whatever is reloaded.
    expires: when the certificate is over, in seconds since 1970.
    Raises GatewayError for files that cannot be used.
    """

    def __init__(self, settings: ListenTls) -> None:
        self._settings = settings
        self._file_stamps = read_file_stamps(settings)
        self.context = create_context(settings)
        self._current_context = self.context
        self._valid_from, self.expires_at = read_validity(settings.certificate)
        self.context.sni_callback = self._select_context

    def reload(self, settings: ListenTls | None = None) -> bool:
        """Take what is in the files by now; of these settings, if they are others. False if that
        cannot be used; the log says why, and all stays as it was."""
        wanted = settings or self._settings
        seen = read_file_stamps(wanted)
        try:
            made, (begins, expires) = create_context(wanted), read_validity(wanted.certificate)
            if not begins <= time.time() < expires and self._is_valid():
                what = "is not valid yet" if time.time() < begins else "is not valid any more"
                name = wanted.certificate
                raise GatewayError(f"listen.tls: {name} {what}; write one that is valid now")
        except GatewayError as exc:
            self._file_stamps = seen
            log.error("the certificate is not renewed, the one before stays: %s", exc)
            return False
        self._settings, self._file_stamps, self._current_context = wanted, seen, made
        self._valid_from, self.expires_at = begins, expires
        self.context.verify_mode = made.verify_mode  # what it is that a handshake begins with
        left = (expires - time.time()) / 86_400
        how = log.warning if left <= 0 else log.info
        how("certificate renewed from %s; it is valid for %.1f days", wanted.certificate, left)
        return True

    def _is_valid(self) -> bool:
        return self._valid_from <= time.time() < self.expires_at

    async def watch(self) -> None:
        """Reload when a file is another one, or has changed, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            if await asyncio.to_thread(read_file_stamps, self._settings) != self._file_stamps:
                self.reload()

    def collect_metrics(self, figures: MetricSamples) -> None:
        figures.add(catalog.CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS, self.expires_at)

    def _select_context(
        self, ssl_object: ssl.SSLObject, server_name: str | None, initial_context: ssl.SSLContext
    ) -> None:
        if self._current_context is not initial_context:
            ssl_object.context = self._current_context


def create_context(settings: ListenTls) -> ssl.SSLContext:
    """Raises GatewayError for files that cannot be used."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # a key with a password would be asked for at the terminal, while everybody waits
        made.load_cert_chain(settings.certificate, settings.key, password=lambda: "")
        if settings.trust is not None:
            made.load_verify_locations(settings.trust)
            required = settings.mutual == "required"
            made.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    except (OSError, ValueError) as exc:
        files = [settings.certificate, settings.key, *([settings.trust] if settings.trust else [])]
        names = ", ".join(str(name) for name in dict.fromkeys(files))
        reason = getattr(exc, "reason", None) or exc
        what = f"listen.tls: {names} cannot be used ({reason})"
        raise GatewayError(f"{what}; give a chain, its own key without a password") from None
    return made


def read_validity(certificate: Path) -> tuple[float, float]:
    """Return from when and until when the first one of a chain is valid, in seconds since 1970.

    Raises:
        GatewayError: The file cannot be read.
    """
    try:
        read = x509.load_pem_x509_certificates(certificate.read_bytes())
    except (OSError, ValueError) as exc:
        raise GatewayError(f"listen.tls: {certificate} cannot be read ({exc}); write it") from None
    return read[0].not_valid_before_utc.timestamp(), read[0].not_valid_after_utc.timestamp()


def read_file_stamps(settings: ListenTls) -> FileStamps:
    """What tells that a file is another one, or has changed. A link is what it leads to."""
    return [_read_file_stamp(path) for path in (settings.certificate, settings.key, settings.trust)]


def _read_file_stamp(path: Path | None) -> tuple[int, int, int] | None:
    try:
        found = None if path is None else os.stat(path)
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)
