"""Build the SSL context of connections from a `tls` section."""

from __future__ import annotations

import ssl

from gateway.config.sections.security import Tls


def create_client_context(tls: Tls) -> ssl.SSLContext:
    """Create the SSL context of a client.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If a file does not hold what it should.
    """
    context = ssl.create_default_context(cafile=str(tls.ca) if tls.ca else None)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.certificate and tls.key:
        password = tls.key_password.get_secret_value() if tls.key_password else None
        context.load_cert_chain(tls.certificate, tls.key, password)
    return context
