"""Suggest the gateway's options for the properties of Kafka's own clients.

Many users have a `client.properties` of Kafka's Java client or of librdkafka, and write its keys
into the section `kafka`. Similar words would mislead them: `bootstrap.servers` is closest to
`bootstrap`, which has topics.
"""

from __future__ import annotations

import re

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
