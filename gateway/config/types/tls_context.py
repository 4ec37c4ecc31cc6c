"""A `tls` section as what connections take."""

from __future__ import annotations

import ssl

from gateway.config.sections.security import Tls


def create_client_context(tls: Tls) -> ssl.SSLContext:
    """Of a client. Raises OSError and ValueError for a file that cannot be used."""
    made = ssl.create_default_context(cafile=str(tls.ca) if tls.ca else None)
    if not tls.verify:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if tls.certificate and tls.key:
        password = tls.key_password.get_secret_value() if tls.key_password else None
        made.load_cert_chain(tls.certificate, tls.key, password)
    return made
