"""Translate the settings of a Kafka cluster for the two clients of jobs: Java's and librdkafka.

Spark reads and writes by Java's client, and the parts in Python use librdkafka. Certificates and
keys are passed as text instead of paths, because an executor on another machine does not have the
files. Java's client reads private keys as PKCS #8 only, so keys are converted, and passwords are
removed. The functions raise PipelineError if a file cannot be used.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from gateway.config import Kafka
from gateway.config.sections.security import Sasl, Tls
from gateway.errors import PipelineError

_SECURITY_PACKAGE = "org.apache.kafka.common.security"
_LOGIN_MODULES = {
    "plain": f"{_SECURITY_PACKAGE}.plain.PlainLoginModule",
    "scram-sha-256": f"{_SECURITY_PACKAGE}.scram.ScramLoginModule",
    "scram-sha-512": f"{_SECURITY_PACKAGE}.scram.ScramLoginModule",
    "oauthbearer": f"{_SECURITY_PACKAGE}.oauthbearer.OAuthBearerLoginModule",
}
_CERTIFICATE_PATTERN = re.compile(r"-+BEGIN CERTIFICATE-+.*?-+END CERTIFICATE-+", re.DOTALL)
_TOKEN_LIFETIME_S = 300.0  # after which librdkafka asks for a token again


def build_spark_options(kafka: Kafka) -> dict[str, str]:
    """Return the options of Spark's Kafka source and sink, whose names begin with `kafka.`."""
    options = {
        "bootstrap.servers": format_bootstrap_servers(kafka),
        "security.protocol": _get_security_protocol(kafka),
    }
    if kafka.security.tls is not None:
        options |= _build_java_tls(kafka.security.tls)
    if kafka.security.sasl is not None:
        options |= _build_java_sasl(kafka.security.sasl)
    return {f"kafka.{name}": value for name, value in options.items()}


def build_client_config(kafka: Kafka) -> dict[str, object]:
    """Return the settings of confluent-kafka's clients. They can be pickled for workers."""
    options: dict[str, object] = {
        "bootstrap.servers": format_bootstrap_servers(kafka),
        "security.protocol": _get_security_protocol(kafka),
        "client.id": kafka.client_id or "gateway-pipeline",
        # Critical errors only. While no broker answers, every client would write a line for each
        # attempt to connect, 40 a second; what fails by that raises an exception anyway.
        "log_level": 2,
    }
    if kafka.security.tls is not None:
        options |= _build_librdkafka_tls(kafka.security.tls)
    if kafka.security.sasl is not None:
        options |= _build_librdkafka_sasl(kafka.security.sasl)
    return options


def format_bootstrap_servers(kafka: Kafka) -> str:
    """Return the bootstrap servers of a cluster as `host:port`, separated by commas."""
    if isinstance(kafka.servers, str):
        raise PipelineError(
            "jobs cannot use this Kafka, because it is embedded in the gateway; "
            "`gateway broker` starts one"
        )
    return ",".join(kafka.servers)


def _get_security_protocol(kafka: Kafka) -> str:
    security = kafka.security
    return ("SASL_" if security.sasl else "") + ("SSL" if security.tls else "PLAINTEXT")


def _build_java_tls(tls: Tls) -> dict[str, str]:
    options: dict[str, str] = {}
    if tls.ca:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _read_text(tls.ca)}
    elif not tls.verify:
        raise PipelineError(
            "Spark's Kafka client always checks who signed a broker's certificate; "
            "set kafka.security.tls.ca to the certificate of its authority"
        )
    if not tls.verify:
        options["ssl.endpoint.identification.algorithm"] = ""  # do not check the host name
    if tls.certificate and tls.key:
        options |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _read_certificate_chain(tls.certificate),
            "ssl.keystore.key": _load_pkcs8(Path(tls.key), _get_secret(tls.key_password)),
        }
    return options


def _build_librdkafka_tls(tls: Tls) -> dict[str, object]:
    options: dict[str, object] = {}
    if tls.ca:
        options["ssl.ca.pem"] = _read_text(tls.ca)
    if not tls.verify:
        options["enable.ssl.certificate.verification"] = False
    if tls.certificate and tls.key:
        options["ssl.certificate.pem"] = _read_certificate_chain(tls.certificate)
        options["ssl.key.pem"] = _load_pkcs8(Path(tls.key), _get_secret(tls.key_password))
    return options


def _build_java_sasl(sasl: Sasl) -> dict[str, str]:
    options = {"sasl.mechanism": sasl.mechanism.upper()}
    login: dict[str, str | None]
    if sasl.mechanism == "oauthbearer":
        handler = f"{_SECURITY_PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler"
        options["sasl.login.callback.handler.class"] = handler
        options["sasl.oauthbearer.token.endpoint.url"] = (
            sasl.token_url or _get_token_file(sasl).as_uri()
        )
        secret = _get_secret(sasl.client_secret)
        if sasl.token_parameters:
            what = "Java's client sends no tokenParameters; use tokenFile"
            raise PipelineError(f"{what} in kafka.security.sasl")
        login = {"clientId": sasl.client_id, "clientSecret": secret, "scope": sasl.scope}
        login |= {f"extension_{name}": value for name, value in sasl.extensions.items()}
    else:
        login = {"username": sasl.username, "password": _get_secret(sasl.password)}
    jaas_options = "".join(f" {name}={_quote(value)}" for name, value in login.items() if value)
    options["sasl.jaas.config"] = f"{_LOGIN_MODULES[sasl.mechanism]} required{jaas_options};"
    return options


def _build_librdkafka_sasl(sasl: Sasl) -> dict[str, object]:
    options: dict[str, object] = {"sasl.mechanisms": sasl.mechanism.upper()}
    if sasl.mechanism != "oauthbearer":
        return options | {
            "sasl.username": sasl.username,
            "sasl.password": _get_secret(sasl.password),
        }
    if not sasl.token_url:
        provider = TokenProvider(_get_secret(sasl.token), sasl.token_file, sasl.extensions)
        return options | {"oauth_cb": provider}
    options |= {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": sasl.token_url,
        "sasl.oauthbearer.client.id": sasl.client_id,
        "sasl.oauthbearer.client.secret": _get_secret(sasl.client_secret),
    }
    if sasl.extensions:
        listed = ",".join(f"{name}={value}" for name, value in sasl.extensions.items())
        options["sasl.oauthbearer.extensions"] = listed
    return options | ({"sasl.oauthbearer.scope": sasl.scope} if sasl.scope else {})


@dataclass(frozen=True, slots=True)
class TokenProvider:
    """A callback that gives librdkafka the token; a class, so that it can be pickled."""

    token: str | None
    file: str | os.PathLike[str] | None
    extensions: Mapping[str, str] = field(hash=False)

    def __call__(self, _: object) -> tuple[str, float, str, Mapping[str, str]]:
        """Return the token, its end of life (in s since 1970), no principal, and the extensions."""
        text = self.token if self.file is None else Path(self.file).read_text().strip()
        return text or "", time.time() + _TOKEN_LIFETIME_S, "", self.extensions


_token_files: dict[str, Path] = {}  # by token: each is written once per process


def _get_token_file(sasl: Sasl) -> Path:
    """Return the path of a file with the token, because Java's client only reads files.

    A token of the settings is written to a temporary file that only this user may read.
    """
    if sasl.token_file:
        return Path(sasl.token_file).resolve()
    text = _get_secret(sasl.token) or ""
    if text not in _token_files:
        handle, name = tempfile.mkstemp(prefix="gateway-token-")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        _token_files[text] = Path(name)
    return _token_files[text]


def _load_pkcs8(path: Path, password: str | None) -> str:
    """Return a private key as PEM with PKCS #8 (RFC 5208), without a password."""
    from cryptography.hazmat.primitives import serialization as pem

    try:
        secret = password.encode() if password else None
        key = pem.load_pem_private_key(path.read_bytes(), secret)
    except (OSError, ValueError, TypeError) as error:
        raise PipelineError(
            f"the key {path} cannot be used: {error}; correct kafka.security.tls"
        ) from error
    encoding = (pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
    return key.private_bytes(*encoding).decode()


def _read_certificate_chain(path: str | os.PathLike[str]) -> str:
    """Return the certificates of a file, without a private key that may be in the same file."""
    return "\n".join(_CERTIFICATE_PATTERN.findall(_read_text(path)))


def _read_text(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text()
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"{path} cannot be read: {error}; correct kafka.security.tls"
        ) from error


def _quote(value: str) -> str:
    """Return a value in the syntax of JAAS: quoted, with backslashes and quotes escaped."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _get_secret(value: SecretStr | None) -> str | None:
    return value.get_secret_value() if value is not None else None


def find_cluster(clusters: Mapping[str, Kafka], name: str | None) -> Kafka:
    """Return the cluster that an input or output names, or the only one if it names none."""
    if name is not None and name in clusters:
        return clusters[name]
    if name is None and len(clusters) == 1:
        return next(iter(clusters.values()))
    choices = " or ".join(f"kafka: {each}" for each in clusters)
    raise PipelineError(f"there is no cluster '{name or ''}'; write {choices}")
