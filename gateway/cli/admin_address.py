"""Find the admin API of this machine's gateway by its configuration, for `doctor` and `reload`."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from gateway.config import Settings
from gateway.errors import GatewayError


class AdminAddress(NamedTuple):
    """The URL of an admin API, and the argument `verify` of httpx for its certificate."""

    url: str
    verify: ssl.SSLContext | bool = True


def find_admin_address(settings: Settings) -> AdminAddress:
    """Return the admin API of a gateway with these settings, as it is reached from this machine.

    Its certificate is for the names that clients use, so it is compared with the file instead.
    """
    from gateway.web.admin.listener import uses_tls

    from .health import get_local_host

    admin = settings.admin
    if admin is None:
        raise GatewayError(
            "the configuration has no section admin; add `admin: {}`, restart the gateway, and "
            "try again"
        )
    if admin.port == 0:
        raise GatewayError(
            "the port is any free one (admin.port: 0); give the URL that the gateway logs as "
            "`admin on`"
        )
    address = f"{get_local_host(admin.host)}:{admin.port}"
    tls = settings.listen.tls
    if tls is None or not uses_tls(settings):
        return AdminAddress(f"http://{address}")
    return AdminAddress(f"https://{address}", _trust_only(tls.certificate))


def _trust_only(certificate: Path) -> ssl.SSLContext:
    """Return a context for the server that has this certificate, under any name."""
    from gateway.config.types.address import describe_ssl_error

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # Its issuer need not be there (RFC 4158 allows any certificate to be a trust anchor), and must
    # not be: whatever else it has issued would be trusted. The gateway's own certificate is the
    # first of its file.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        text = certificate.read_text("ascii", "replace")
        begin = text.find(ssl.PEM_HEADER)
        end = text.find(ssl.PEM_FOOTER, begin) + len(ssl.PEM_FOOTER)
        context.load_verify_locations(cadata=text[begin:end] if begin >= 0 else "none")
    except (OSError, ValueError) as exc:
        reason = describe_ssl_error(exc) if isinstance(exc, OSError) else str(exc)
        raise GatewayError(f"listen.tls.certificate: {certificate}: {reason}") from None
    return context
