"""Check that the files of TLS can be read and will not expire soon."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from gateway.config import Settings, Tls
from gateway.config.types.address import describe_ssl_error

from .finding import Finding, failure, ok, warning

EXPIRY_WARNING_PERIOD = timedelta(days=14)


def check_certificates(settings: Settings, now: datetime | None = None) -> Iterator[Finding]:
    now = now or datetime.now(UTC)
    listen = settings.listen.tls
    if listen is not None:
        yield check_key_pair("listen.tls.certificate", listen.certificate, listen.key, None, now)
        if listen.ca is not None:
            yield check_authorities("listen.tls.ca", listen.ca, now)
    for name, kafka in settings.clusters.items():
        if kafka.security.tls is not None:
            option = f"kafka.{name}" if name else "kafka"
            yield from _check_client_tls(f"{option}.security.tls", kafka.security.tls, now)


def _check_client_tls(option: str, tls: Tls, now: datetime) -> Iterator[Finding]:
    if tls.certificate is not None and tls.key is not None:
        password = None if tls.key_password is None else tls.key_password.get_secret_value()
        yield check_key_pair(f"{option}.certificate", tls.certificate, tls.key, password, now)
    if tls.ca is not None:
        yield check_authorities(f"{option}.ca", tls.ca, now)


def check_key_pair(
    option: str, certificate: Path, key: Path, password: str | None, now: datetime
) -> Finding:
    """Check a certificate chain, and that the key belongs to its first certificate."""
    subject = f"{option} {certificate}"
    try:
        # Without a callback for the password, OpenSSL would ask for it on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            certificate, key, password=lambda: password or ""
        )
        chain = _read_certificates(certificate)
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            return failure(
                subject, f"{key} is the key of another certificate; name the key of this one"
            )
        return failure(subject, f"it cannot be used with the key {key}: {describe_ssl_error(exc)}")
    except (OSError, ValueError) as exc:
        return failure(subject, f"it or its key {key} cannot be read: {_describe_error(exc)}")
    for each in chain:
        if each.not_valid_before_utc > now:
            return failure(
                subject,
                f"{_format_subject(each)} is valid from {_format_day(each.not_valid_before_utc)}",
            )
        if each.not_valid_after_utc <= now:
            return failure(
                subject,
                f"{_format_subject(each)} expired on {_format_expiry(each)}; renew it",
            )
    first = min(chain, key=lambda each: each.not_valid_after_utc)
    if first.not_valid_after_utc - now < EXPIRY_WARNING_PERIOD:
        return warning(
            subject, f"{_format_subject(first)} expires on {_format_expiry(first)}; renew it"
        )
    return ok(subject, f"valid until {_format_expiry(first)}, and the key belongs to it")


def check_authorities(option: str, file: Path, now: datetime) -> Finding:
    """Check a file of authorities. It fails only if all of them expired."""
    subject = f"{option} {file}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
        authorities = _read_certificates(file)
    except ssl.SSLError as exc:
        return failure(subject, describe_ssl_error(exc))
    except (OSError, ValueError) as exc:
        return failure(subject, f"it cannot be read: {_describe_error(exc)}")
    expired = [each for each in authorities if each.not_valid_after_utc <= now]
    if len(expired) == len(authorities):
        return failure(subject, f"all of its authorities expired ({_format_subjects(expired)})")
    if expired:
        return warning(
            subject, f"{len(expired)} of {len(authorities)} expired: {_format_subjects(expired)}"
        )
    first = min(authorities, key=lambda each: each.not_valid_after_utc)
    count = f"{len(authorities)} authorit{'y' if len(authorities) == 1 else 'ies'}"
    if first.not_valid_after_utc - now < EXPIRY_WARNING_PERIOD:
        return warning(subject, f"{_format_subject(first)} expires on {_format_expiry(first)}")
    return ok(subject, f"{count}, valid until {_format_expiry(first)}")


def _read_certificates(file: Path) -> Sequence[x509.Certificate]:
    return x509.load_pem_x509_certificates(file.read_bytes())


def _describe_error(exc: OSError | ValueError) -> str:
    return getattr(exc, "strerror", None) or str(exc)


def _format_subject(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string() or "it"  # a subject may be empty


def _format_subjects(certificates: Iterable[x509.Certificate]) -> str:
    return "; ".join(_format_subject(each) for each in list(certificates)[:5])


def _format_expiry(certificate: x509.Certificate) -> str:
    return _format_day(certificate.not_valid_after_utc)


def _format_day(at: datetime) -> str:
    return at.strftime("%Y-%m-%d")
