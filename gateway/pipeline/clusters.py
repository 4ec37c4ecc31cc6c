"""Reach the Kafka clusters of jobs: settings of two clients, and topics.

Spark reads and writes by Java's client, and the parts in Python use librdkafka. Certificates and
keys are passed as text instead of paths, because an executor on another machine does not have the
files. Java's client reads private keys as PKCS #8 only, so keys are converted, and passwords are
removed. Functions that translate settings raise PipelineError if a file cannot be used.

The functions of topics wait for Kafka, and none of them keeps a connection. They raise
PipelineUnavailable if Kafka does not answer now, and another PipelineError if it refuses.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import SecretStr

from gateway.config import Kafka
from gateway.config.sections.security import Sasl, Tls
from gateway.errors import PipelineError, PipelineUnavailable

from .failures import build_kafka_error, explain_kafka_errors

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
        url = sasl.token_url
        if not url:  # Java's client only reads files
            file = sasl.token_file or _write_token_file(_get_secret(sasl.token))
            url = Path(file).resolve().as_uri()
        options["sasl.oauthbearer.token.endpoint.url"] = url
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


@cache
def _write_token_file(token: str | None) -> Path:
    """Write a token to a temporary file that only this user may read, and return its path."""
    handle, name = tempfile.mkstemp(prefix="gateway-token-")
    with os.fdopen(handle, "w") as file:
        file.write(token or "")
    return Path(name)


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


log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = REQUEST_TIMEOUT_S + 5.0  # librdkafka says first that there is none


class TopicDescription(NamedTuple):
    """A topic; its `id` (KIP-516) changes if it is deleted and recreated."""

    name: str
    id: str
    partitions: int = 0


NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What brokers without topic ids (before Kafka 2.8, Redpanda) answer: a UUID of zeros."""


def is_other_topic(old_id: str, new_id: str) -> bool:
    return old_id != new_id and NO_TOPIC_ID not in (old_id, new_id)


class TopicMissing(PipelineUnavailable):
    """A topic that a job reads does not exist (yet)."""


DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default for `max.message.bytes`."""


def list_topics(kafka: Kafka, timeout_s: float = REQUEST_TIMEOUT_S) -> dict[str, int]:
    """Return the number of partitions of each topic of a cluster."""
    with explain_kafka_errors(f"Kafka at {format_bootstrap_servers(kafka)} does not answer"):
        metadata = create_admin_client(build_client_config(kafka)).list_topics(timeout=timeout_s)
    return {
        name: len(topic.partitions) for name, topic in metadata.topics.items() if not topic.error
    }


def fetch_cluster_id(options: Mapping[str, Any]) -> str:
    """Return what names a cluster however its servers are written, and on whatever machine."""
    admin = create_admin_client(options)  # a variable, as in `create_topic`
    with explain_kafka_errors("the cluster cannot be described"):
        answer = admin.describe_cluster(request_timeout=REQUEST_TIMEOUT_S)
        return str(answer.result(ANSWER_TIMEOUT_S).cluster_id)


def create_topic(
    options: Mapping[str, Any],
    name: str,
    partitions: int | None = None,
    config: Mapping[str, str] | None = None,
) -> None:
    """Create a topic, unless it exists; the default number of partitions is the cluster's."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # the types lack it

    new_topic = NewTopic(
        name, num_partitions=partitions or -1, replication_factor=-1, config=dict(config or {})
    )
    # A variable, because a client without references is closed and drops its requests.
    admin = create_admin_client(options)
    # First, because Kafka refuses a user who may not create topics even if the topic exists.
    with suppress(TopicMissing):
        await_topic(request_topic(admin, name), name)
        return
    try:
        admin.create_topics([new_topic], request_timeout=REQUEST_TIMEOUT_S)[name].result(
            ANSWER_TIMEOUT_S
        )
        log.info("topic %s created", name)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise build_kafka_error(f"topic {name} cannot be created", error) from error


def describe_topic(options: Mapping[str, Any], name: str) -> TopicDescription:
    """Return the description of a topic, or raise TopicMissing."""
    admin = create_admin_client(options)  # a variable, as in `create_topic`
    return await_topic(request_topic(admin, name), name)


def request_topic(admin: Any, name: str) -> Future[Any]:
    """Send a request for the description of a topic; `await_topic` waits for the answer.

    The caller must keep a reference to `admin` until the answer has arrived.
    """
    from confluent_kafka import TopicCollection

    futures = admin.describe_topics(TopicCollection([name]), request_timeout=REQUEST_TIMEOUT_S)
    answer: Future[Any] = futures[name]
    return answer


def await_topic(answer: Future[Any], name: str) -> TopicDescription:
    """Wait for the answer to `request_topic`; raise TopicMissing if there is no topic."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        description = answer.result(ANSWER_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TopicMissing(f"topic {name} does not exist") from error
        raise build_kafka_error(f"topic {name} cannot be described", error) from error
    return TopicDescription(name, str(description.topic_id), len(description.partitions))


def fetch_max_message_bytes(options: Mapping[str, Any], name: str) -> int:
    """Return a topic's `max.message.bytes`, or Kafka's default if the user may not read it.

    It is 1e9 at most: librdkafka refuses to send messages that are larger.
    """
    found = int(fetch_config(options, name, "max.message.bytes") or DEFAULT_MAX_MESSAGE_BYTES)
    return min(found, 1_000_000_000)


def fetch_config(options: Mapping[str, Any], name: str, key: str) -> str | None:
    """Return a setting of a topic, or None if the user may not read it."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

    admin = create_admin_client(options)
    resource = ConfigResource(ResourceType.TOPIC, name)
    try:
        futures = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
        return str(futures[resource].result(ANSWER_TIMEOUT_S)[key].value)
    except KafkaException as error:
        problem = build_kafka_error(f"the settings of topic {name} cannot be read", error)
        if isinstance(problem, PipelineUnavailable):
            raise problem from error
        return None


def create_admin_client(options: Mapping[str, Any]) -> Any:
    """Return an AdminClient of librdkafka that logs by Python's logging."""
    from confluent_kafka.admin import AdminClient

    merged: dict[str, Any] = {**options, "logger": logging.getLogger(f"{__name__}.librdkafka")}
    return AdminClient(merged)
