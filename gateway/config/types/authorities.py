"""Define `AuthorityFile`, and create the SSL contexts that trust its authorities."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from .fields import File
from .section import create_value_error


def create_trusting_context(ca: Path | None) -> ssl.SSLContext:
    """Create a client's context that trusts the authorities of a PEM file, or of the system.

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


def _require_authorities(file: Path) -> Path:
    """Return the file, which is loaded so that `check` finds the problems of a start."""
    try:
        create_trusting_context(file)
    except ValueError as exc:
        raise create_value_error(f"file {exc}; name a PEM file of certificates") from None
    return file


AuthorityFile: TypeAlias = Annotated[File, AfterValidator(_require_authorities)]
"""A PEM file of certificate authorities."""
