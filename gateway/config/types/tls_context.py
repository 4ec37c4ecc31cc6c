"""Build the SSL context of connections from a `tls` section."""

from __future__ import annotations

import ssl
from pathlib import Path

from gateway.config.sections.security import Tls


def create_client_context(tls: Tls) -> ssl.SSLContext:
    """Create the SSL context of a client.

    Raises:
        ValueError: A file cannot be read, or does not hold what it should. The message names it.
    """
    context = create_trusting_context(tls.ca)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.certificate and tls.key:
        password = tls.key_password.get_secret_value() if tls.key_password else None
        try:
            context.load_cert_chain(tls.certificate, tls.key, password)
        except OSError as exc:
            what = f"the certificate {tls.certificate} with the key {tls.key}"
            raise ValueError(f"{what} cannot be used: {describe_ssl_error(exc)}") from exc
    return context


def create_trusting_context(ca: Path | None) -> ssl.SSLContext:
    """Create the SSL context of a client that trusts the authorities of a file.

    Args:
        ca: The file, in PEM; None for the authorities of the system.

    Raises:
        ValueError: The file cannot be read or has no certificates. The message names it.
    """
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except OSError as exc:
        raise ValueError(f"{ca}: {describe_ssl_error(exc)}") from exc


def describe_ssl_error(exc: OSError) -> str:
    """Return why files of TLS cannot be loaded, without OpenSSL's names and places."""
    if not isinstance(exc, ssl.SSLError):
        return exc.strerror or str(exc)
    match exc.reason:
        case "NO_CERTIFICATE_OR_CRL_FOUND" | "NO_START_LINE":
            return "it has no certificates in PEM"
        case "KEY_VALUES_MISMATCH":
            return "the key is of another certificate"
        case "BAD_DECRYPT" | "BAD_PASSWORD_READ":
            return "the key needs another password"
        case None:
            return "it is not what it should be, in PEM"
        case reason:
            return reason.lower().replace("_", " ")
