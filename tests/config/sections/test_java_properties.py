"""What is suggested for the properties of Kafka's own clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import loads
from gateway.errors import ConfigError

LOGIN = "username: .., password: .."


def problem(line: str, section: str = "kafka") -> str:
    """Return what is said of one line within a section."""
    if section == "kafka":
        text = f"kafka:\n  servers: [a:1]\n  {line}\n"
    else:
        text = f"kafka:\n  servers: [a:1]\n  security:\n    {line}\n"
    with pytest.raises(ConfigError) as raised:
        loads(text)
    (said,) = raised.value.problems
    return said.partition("; ")[2]


@pytest.mark.parametrize(
    ("line", "suggested"),
    [
        ("bootstrap.servers: b:1", 'write servers: ["host:9092"]'),
        ("bootstrapServers: b:1", 'write servers: ["host:9092"]'),
        ("bootstrap-servers: b:1", 'write servers: ["host:9092"]'),
        ("security.protocol: SSL", "write security: {tls: {}}"),
        (
            "security.protocol: SASL_SSL",
            f"write security: {{tls: {{}}, sasl: {{mechanism: plain, {LOGIN}}}}}",
        ),
        ("security.protocol: PLAINTEXT", "remove it, plaintext is the default"),
        (
            "sasl.mechanism: SCRAM-SHA-512",
            f"write security: {{sasl: {{mechanism: scram-sha-512, {LOGIN}}}}}",
        ),
        (
            "sasl.mechanism: OAUTHBEARER",
            "write security: {sasl: {mechanism: oauthbearer, tokenUrl: .., clientId: .., "
            "clientSecret: ..}}",
        ),
        ("ssl.truststore.location: a.jks", "write security: {tls: {ca: FILE.pem}}"),
        (
            "ssl.keystore.location: a.jks",
            "write security: {tls: {certificate: FILE.pem, key: FILE.pem}}",
        ),
        ("topicz: []", "did you mean 'topics'?"),
    ],
)
def test_a_property_in_the_section_kafka_is_answered_with_our_option(line: str, suggested: str):
    """`bootstrap.servers` suggested `bootstrap`, which has topics that are read from the start."""
    assert problem(line) == suggested


@pytest.mark.parametrize(
    ("line", "suggested"),
    [
        ("protocol: SASL_PLAINTEXT", f"write sasl: {{mechanism: plain, {LOGIN}}}"),
        ("protocol: SSL", "write tls: {}"),
        ("sasl.mechanism: PLAIN", f"write sasl: {{mechanism: plain, {LOGIN}}}"),
        ("tsl: {}", "did you mean 'tls'?"),
    ],
)
def test_a_property_in_the_section_security_is_answered_with_our_option(line: str, suggested: str):
    assert problem(line, "security") == suggested


def test_extensions_of_a_login_module_are_answered_with_ours():
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    said = problem(f"sasl.jaas.config: '{module} required extension_logicalCluster=\"lkc-1\";'")
    assert said.endswith("clientSecret: .., extensions: {NAME: ..}}}")
    assert problem("sasl.oauthbearer.extensions: a=b").endswith("extensions: {NAME: ..}}}")


def test_the_password_of_a_login_module_is_not_shown():
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    said = problem(f'sasl.jaas.config: \'{module} required username="u" password="s3cret";\'')
    assert said == f"write security: {{sasl: {{mechanism: scram-sha-512, {LOGIN}}}}}"


def test_a_file_of_tls_that_is_missing_says_where_paths_begin(tmp_path: Path):
    """It said to start from another folder, which changes nothing."""
    said = problem("tls: {ca: none.pem}", "security")
    assert said == "paths are relative to this file"
