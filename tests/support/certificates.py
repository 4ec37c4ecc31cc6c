"""A certificate authority of its own for a test, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class CertificateAuthority:
    """Writes PEM files into `directory`; `path` is its own certificate. days: that it is valid."""

    def __init__(
        self, directory: Path, name: str = "test authority", valid_days: float = 1
    ) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _build_name(name)
        certificate = self._create_builder(self._subject, self._key, valid_days)
        certificate = certificate.add_extension(
            x509.BasicConstraints(ca=True, path_length=0), True
        ).add_extension(_SIGNS_CERTIFICATES, True)
        self._certificate = certificate.sign(self._key, hashes.SHA256())
        self.certificate_path = directory / f"{name.replace(' ', '-')}.pem"
        self.certificate_path.write_bytes(
            self._certificate.public_bytes(serialization.Encoding.PEM)
        )

    def issue_certificate(
        self,
        name: str,
        valid_days: float = 1,
        starts_in_days: float | None = None,
        hostname: str = "localhost",
    ) -> Path:
        """One file with a PKCS8 key and its certificate, for localhost and 127.0.0.1. days: that
        it is valid; below 0 for one that is expired. begins: days until it is. host: another one
        that it is for, and for no other."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(hostname)]
        if hostname == "localhost":
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        certificate = (
            self._create_builder(_build_name(name), key, valid_days, starts_in_days)
            .add_extension(x509.SubjectAlternativeName(names), False)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path = self._directory / f"{name}.pem"
        path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def create_client_context(self, certificate: Path | None = None) -> ssl.SSLContext:
        """For a client that trusts this authority, and shows `certificate` if asked."""
        made = ssl.create_default_context(cafile=str(self.certificate_path))
        if certificate is not None:
            made.load_cert_chain(certificate)
        return made

    def _create_builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        valid_days: float,
        starts_in_days: float | None = None,
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        before = datetime.timedelta(hours=1, days=max(0.0, -valid_days))
        since = (
            now - before
            if starts_in_days is None
            else now + datetime.timedelta(days=starts_in_days)
        )
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(since)
            .not_valid_after(now + datetime.timedelta(days=valid_days))
            # Python checks for these from 3.13 on.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
            )
        )


_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _build_name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
