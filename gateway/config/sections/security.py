"""Define how servers are connected to: `kafka.security`, `catalogs`; and `tokens` of clients.

Many users have a `client.properties` of Kafka's Java client or of librdkafka, and write its keys
into the section `kafka`. Similar words would mislead them: `bootstrap.servers` is closest to
`bootstrap`, which has topics. So the gateway's options are suggested for these.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from gateway.config.types.address import (
    AuthorityFile,
    Url,
    Urls,
    create_trusting_context,
    describe_ssl_error,
)
from gateway.config.types.fields import Duration, File, Flag, Secret, SecretText, Text, in_range
from gateway.config.types.section import Problem, Section, create_value_error

_LOGIN = "username: .., password: .."
# By the key in lower case, without dots, dashes and underscores.
_OPTIONS = {
    "bootstrapservers": 'servers: ["host:9092"]',
    "bootstrapserver": 'servers: ["host:9092"]',
    "metadatabrokerlist": 'servers: ["host:9092"]',
    "brokers": 'servers: ["host:9092"]',
    "clientrack": "rack: ..",
    "requesttimeoutms": "requestTimeout: 5s",
    "sockettimeoutms": "requestTimeout: 5s",
    "metadatamaxagems": "metadataMaxAge: 2s",
    "reconnectbackoffms": "reconnect: {initial: 50ms}",
    "reconnectbackoffmaxms": "reconnect: {max: 1s}",
}
_TLS_OPTIONS = (
    ("ssltruststore", "tls: {ca: FILE.pem}"),
    ("sslca", "tls: {ca: FILE.pem}"),
    ("sslkey", "tls: {certificate: FILE.pem, key: FILE.pem}"),
    ("sslcertificate", "tls: {certificate: FILE.pem, key: FILE.pem}"),
    ("sslendpoint", "tls: {verify: false}"),
    ("enablesslcertificateverification", "tls: {verify: false}"),
)


def suggest_cluster_option(key: str, value: object) -> str | None:
    """Return the option for a property, whose value may be a secret and is not shown."""
    word = re.sub(r"[._-]", "", key.lower())
    if word in _OPTIONS:
        return f"write {_OPTIONS[word]}"
    options = _find_security_options(word, value)
    if options is None:
        return None
    return f"write security: {{{options}}}" if options else "remove it, plaintext is the default"


def suggest_security_option(key: str, value: object) -> str | None:
    word = re.sub(r"[._-]", "", key.lower())
    options = _find_security_options(word, value)
    if options is None:
        options = _find_security_options(f"security{word}", value)
    if options is None:
        return None
    return f"write {options}" if options else "remove it, plaintext is the default"


def _find_security_options(word: str, value: object) -> str | None:
    text = value.lower().replace("_", "-") if isinstance(value, str) else ""
    if word == "securityprotocol":
        tls = "tls: {}" if text.endswith("ssl") else ""
        sasl = f"sasl: {{mechanism: plain, {_LOGIN}}}" if text.startswith("sasl") else ""
        return ", ".join(filter(None, (tls, sasl)))
    if word.startswith("sasl"):
        # The value may be a login module with a password, of which only the name is looked at.
        if "oauth" in word or "oauth" in text:
            more = ", extensions: {NAME: ..}" if "extension" in word + text else ""
            login = "tokenUrl: .., clientId: .., clientSecret: .."
            return f"sasl: {{mechanism: oauthbearer, {login}{more}}}"
        found = re.search(r"scram(-sha-(256|512))?", text)
        mechanism = "plain" if found is None else f"scram{found[1] or '-sha-512'}"
        return f"sasl: {{mechanism: {mechanism}, {_LOGIN}}}"
    return next((option for start, option in _TLS_OPTIONS if word.startswith(start)), None)


Mechanism = Literal["plain", "scram-sha-256", "scram-sha-512", "oauthbearer"]
"""A SASL mechanism, in lower case; `oauthbearer` is that of KIP-255 and KIP-768."""


class Tls(Section):
    """TLS of connections to a server: a broker or a schema registry."""

    old_names: ClassVar[Mapping[str, str]] = {"trust": "ca"}

    ca: AuthorityFile | None = Field(
        default=None,
        description="PEM file of the authorities to trust; default the system's.",
    )
    certificate: File | None = Field(
        default=None, description="PEM file of the client certificate chain, for mutual TLS."
    )
    key: File | None = Field(default=None, description="PEM file of its private key.")
    key_password: SecretText | None = Field(default=None, description="Password of `key`.")
    verify: Flag = Field(
        default=True,
        description="Verify the server's certificate and host name; false only in tests.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        requirements = (("certificate", "key"), ("key", "certificate"), ("keyPassword", "key"))
        for name, required in requirements:
            if name in raw and required not in raw:
                yield Problem((name,), f"'{name}' needs '{required}' too; add it", is_key=True)


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


_TOKEN_URL_OPTIONS = {"clientId", "clientSecret", "scope", "tokenParameters"}


class Sasl(Section):
    """How the gateway authenticates to the brokers."""

    mechanism: Mechanism = Field(description="The mechanism, as a listener of the brokers has it.")
    username: Text | None = Field(default=None, description="User name, for plain and scram.")
    password: SecretText | None = Field(default=None, description="Password of `username`.")
    token: SecretText | None = Field(
        default=None, description="A token that never changes, for oauthbearer in tests."
    )
    token_file: File | None = Field(
        default=None, description="File with the token, read for every connect, for oauthbearer."
    )
    token_url: Url | None = Field(
        default=None,
        description="URL that issues tokens for `clientId` and `clientSecret` (RFC 6749 4.4), "
        "for oauthbearer.",
    )
    client_id: Text | None = Field(default=None, description="Client id for `tokenUrl`.")
    client_secret: SecretText | None = Field(
        default=None, description="Client secret for `tokenUrl`."
    )
    scope: Text | None = Field(default=None, description="Scope to request at `tokenUrl`.")
    token_parameters: dict[Text, Text] = Field(
        default={},
        description="Further parameters of the request to `tokenUrl`, such as `audience`.",
    )
    extensions: dict[Text, Text] = Field(
        default={},
        description="SASL extensions (KIP-342) that the brokers need, such as `logicalCluster`, "
        "for oauthbearer.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        mechanism = raw.get("mechanism")
        names = {"username", "password"}
        oauth = {"token", "tokenFile", "tokenUrl", "extensions", *_TOKEN_URL_OPTIONS}
        if mechanism == "oauthbearer":
            yield from _check_unused(raw, names, "oauthbearer")
            yield from _check_oauth(raw)
        elif mechanism in get_args(Mechanism):
            yield from _check_unused(raw, oauth, str(mechanism))
            for name in sorted(names - raw.keys()):
                yield Problem((), f"'{name}' is missing, {mechanism} needs it; add it", is_key=True)


def _check_unused(raw: Mapping[str, Any], names: set[str], mechanism: str) -> Iterable[Problem]:
    for name in sorted(names & raw.keys()):
        yield Problem((name,), f"'{name}' is not used by {mechanism}; remove it", is_key=True)


def _check_oauth(raw: Mapping[str, Any]) -> Iterable[Problem]:
    sources = [name for name in ("token", "tokenFile", "tokenUrl") if name in raw]
    if not sources:
        yield Problem((), "oauthbearer has no token; add tokenUrl, tokenFile or token", is_key=True)
    for name in sources[1:]:
        yield Problem((name,), f"'{name}' excludes '{sources[0]}'; keep one", is_key=True)
    if "tokenUrl" in raw:
        for name in sorted({"clientId", "clientSecret"} - raw.keys()):
            yield Problem((), f"'{name}' is missing, tokenUrl needs it; add it", is_key=True)
    elif sources:
        for name in sorted(_TOKEN_URL_OPTIONS & raw.keys()):
            yield Problem((name,), f"'{name}' is used with tokenUrl only; remove it", is_key=True)


class Security(Section):
    """TLS and SASL between the gateway and the brokers. By default there is neither."""

    tls: Tls | None = Field(
        default=None, description="TLS to the brokers; `{}` trusts the authorities of the system."
    )
    sasl: Sasl | None = Field(default=None, description="Authentication at the brokers.")

    @classmethod
    def suggest_option(cls, key: str, value: object) -> str | None:
        return suggest_security_option(key, value)


MIN_SECRET_CHARS = 32  # characters: 192 bits in base64


def _validate_secrets(value: object) -> object:
    """Return several secrets for one or a list.

    The length of a single one is checked here, so that its problem is reported at `secret` and not
    at `secret[0]`, which the file does not have.
    """
    if isinstance(value, str):
        _refuse_short_secret(value)
    return (value,) if isinstance(value, str | Secret) else value


def _validate_secret(secret: Secret) -> Secret:
    _refuse_short_secret(secret.get_secret_value())
    return secret


def _refuse_short_secret(secret: str) -> None:
    if len(secret) < MIN_SECRET_CHARS:
        raise create_value_error(
            f"has fewer than {MIN_SECRET_CHARS} characters, which can be guessed; use the output "
            "of `openssl rand -base64 32`"
        )


def _require_non_empty(secrets: tuple[Secret, ...]) -> tuple[Secret, ...]:
    if not secrets:
        raise create_value_error("is empty; add at least one secret, or leave it out")
    return secrets


_SECRET_SCHEMA = {"type": "string", "minLength": MIN_SECRET_CHARS, "writeOnly": True}
Secrets: TypeAlias = Annotated[
    tuple[Annotated[SecretText, AfterValidator(_validate_secret)], ...],
    BeforeValidator(_validate_secrets),
    AfterValidator(_require_non_empty),
    WithJsonSchema(
        {"anyOf": [_SECRET_SCHEMA, {"type": "array", "items": _SECRET_SCHEMA, "minItems": 1}]}
    ),
]


class Tokens(Section):
    """When resume tokens, the ids of events, are trusted."""

    secret: Secrets | None = Field(
        default=None,
        description="Secret that signs resume tokens against forgery: at least 32 characters, "
        "the same for all replicas. Of a list the first signs and all are accepted.",
    )
    resume: Annotated[Duration, in_range(1, 30 * 86_400)] = Field(
        default=3600.0,
        description="How much longer than a route's `history` a client may be away and still "
        "resume, if no secret proves its position.",
    )

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets in plain text; the first one signs."""
        return tuple(secret.get_secret_value() for secret in self.secret or ())


class SchemaRegistry(Section):
    """A schema registry with the REST API of Confluent's."""

    type: Literal["schema-registry"] = Field(description="The kind of catalog.")
    url: Urls = Field(description="Base URL, or several that are tried in order.")
    username: Text | None = Field(default=None, description="User name of Basic authentication.")
    password: SecretText | None = Field(default=None, description="Password of `username`.")
    token: SecretText | None = Field(
        default=None, description="A bearer token, instead of `username` and `password`."
    )
    tls: Tls | None = Field(
        default=None, description="Certificate authorities and a client certificate."
    )
    timeout: Annotated[Duration, in_range(0.1, 60)] = Field(
        default=5.0, description="How long a registry may take."
    )
    max_age: Annotated[Duration, in_range(0, 86_400)] = Field(
        default=60.0,
        description="How long the latest schema of a subject is used.",
    )
    auto_register: Flag = Field(
        default=True,
        description="Register the schemas that producers send; false if they must exist.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        for name, required in (("username", "password"), ("password", "username")):
            if name in raw and required not in raw:
                yield Problem((name,), f"'{name}' needs '{required}' too; add it", is_key=True)
        if "token" in raw and "username" in raw:
            yield Problem(("token",), "'token' excludes 'username'; keep one", is_key=True)
