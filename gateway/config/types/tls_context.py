"""Build the SSL context of connections from a `tls` section."""

from __future__ import annotations

import ssl

from gateway.config.sections.security import Tls

from .address import create_trusting_context, describe_ssl_error


def create_client_context(tls: Tls) -> ssl.SSLContext:
    """Create the SSL context of a client.

    Raises:
        ValueError: A file cannot be read, or has other content. The message names it.
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
