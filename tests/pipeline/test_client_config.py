"""A cluster of the settings, in the words of Java's client and of librdkafka."""

from __future__ import annotations

import pickle
import socket

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AclOperation
from support.admin import KafkaAdmin
from support.secure_kafka import grant_access

from gateway.config import Kafka
from gateway.core.log.record import TopicPartition
from gateway.errors import PipelineError
from gateway.pipeline.clusters import (
    build_client_config,
    build_spark_options,
    find_cluster,
)
from gateway.pipeline.inputs.source import read_raw_range

SCRAM = {"mechanism": "scram-sha-512", "username": "alice", "password": 'in "wonder\\land'}


def kafka(**security):
    return Kafka.model_validate({"servers": ["one:9092", "two:9093"], "security": security})


def java(**security):
    found = build_spark_options(kafka(**security))
    assert all(name.startswith("kafka.") for name in found)
    return {name.removeprefix("kafka."): value for name, value in found.items()}


def test_plain_text_needs_servers_only():
    assert java() == {"bootstrap.servers": "one:9092,two:9093", "security.protocol": "PLAINTEXT"}
    assert build_client_config(kafka())["bootstrap.servers"] == "one:9092,two:9093"


def test_a_client_writes_no_line_for_each_attempt_to_connect(capfd):
    """While no broker answered, a job's clients wrote 40 lines a second."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
    consumer = Consumer(build_client_config(Kafka(servers=[address])) | {"group.id": "any"})
    with pytest.raises(KafkaException):
        consumer.list_topics(timeout=1.0)
    consumer.close()
    assert capfd.readouterr().err == ""


def test_passwords_are_quoted_as_jaas_has_it():
    found = java(sasl=SCRAM)
    assert (found["security.protocol"], found["sasl.mechanism"]) == (
        "SASL_PLAINTEXT",
        "SCRAM-SHA-512",
    )
    assert found["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="alice" password="in \\"wonder\\\\land";'
    )
    other = build_client_config(kafka(sasl=SCRAM))
    assert (other["sasl.mechanisms"], other["sasl.password"]) == (
        "SCRAM-SHA-512",
        'in "wonder\\land',
    )


def test_certificates_and_keys_go_as_text_keys_without_their_password(authority, tmp_path):
    from cryptography.hazmat.primitives import serialization as pem

    both = authority.issue_certificate("client")
    key = pem.load_pem_private_key(both.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    form = (pem.Encoding.PEM, pem.PrivateFormat.TraditionalOpenSSL)
    locked.write_bytes(key.private_bytes(*form, pem.BestAvailableEncryption(b"secret")))
    tls = {
        **{"ca": str(authority.certificate_path), "certificate": str(both)},
        **{"key": str(locked), "keyPassword": "secret"},
    }
    found = java(tls=tls)
    assert found["security.protocol"] == "SSL"
    assert found["ssl.truststore.certificates"] == authority.certificate_path.read_text()
    assert "PRIVATE" not in found["ssl.keystore.certificate.chain"]
    assert found["ssl.keystore.key"].startswith("-----BEGIN PRIVATE KEY")
    assert build_client_config(kafka(tls=tls))["ssl.key.pem"] == found["ssl.keystore.key"]


def test_a_name_need_not_be_right_where_that_is_said_but_the_signer_must(authority):
    found = java(tls={"ca": str(authority.certificate_path), "verify": False})
    assert found["ssl.endpoint.identification.algorithm"] == ""
    with pytest.raises(PipelineError, match=r"always checks who signed .*tls.ca"):
        java(tls={"verify": False})
    assert (
        build_client_config(kafka(tls={"verify": False}))["enable.ssl.certificate.verification"]
        is False
    )


def test_tokens_are_issued_or_read_from_a_file(tmp_path):
    issued = {
        **{"mechanism": "oauthbearer", "tokenUrl": "http://issuer/token"},
        **{"clientId": "me", "clientSecret": "s3", "scope": "kafka"},
    }
    found = java(sasl=issued)
    assert found["sasl.oauthbearer.token.endpoint.url"] == "http://issuer/token"
    assert 'clientId="me" clientSecret="s3" scope="kafka";' in found["sasl.jaas.config"]
    assert build_client_config(kafka(sasl=issued))["sasl.oauthbearer.client.id"] == "me"
    issued["extensions"] = {"logicalCluster": "lkc-1", "identityPoolId": "p"}
    assert 'extension_logicalCluster="lkc-1"' in java(sasl=issued)["sasl.jaas.config"]
    sent = build_client_config(kafka(sasl=issued))
    assert sent["sasl.oauthbearer.extensions"] == "logicalCluster=lkc-1,identityPoolId=p"
    with pytest.raises(PipelineError, match="use tokenFile"):
        java(sasl={**issued, "tokenParameters": {"audience": "k"}})
    (tmp_path / "token").write_text("t0k\n")
    filed = {"mechanism": "oauthbearer", "tokenFile": str(tmp_path / "token")}
    filed["extensions"] = {"a": "b"}
    assert java(sasl=filed)["sasl.oauthbearer.token.endpoint.url"].startswith("file:///")
    sent = pickle.loads(pickle.dumps(build_client_config(kafka(sasl=filed))))
    token, _, principal, extensions = sent["oauth_cb"]("")
    assert (token, principal, extensions) == ("t0k", "", {"a": "b"})


def test_a_fixed_token_gets_a_file_that_nobody_else_may_read():
    from pathlib import Path
    from urllib.parse import urlsplit

    fixed = {"mechanism": "oauthbearer", "token": "abc"}
    url = java(sasl=fixed)["sasl.oauthbearer.token.endpoint.url"]
    path = Path(urlsplit(url).path)
    assert (path.read_text(), path.stat().st_mode & 0o077) == ("abc", 0)
    assert java(sasl=fixed)["sasl.oauthbearer.token.endpoint.url"] == url
    assert build_client_config(kafka(sasl=fixed))["oauth_cb"]("")[0] == "abc"


def test_what_cannot_be_used_is_told(tmp_path):
    (tmp_path / "no.pem").write_text("no key")
    paths = {"certificate": str(tmp_path / "no.pem"), "key": str(tmp_path / "no.pem")}
    with pytest.raises(PipelineError, match=r"the key .*no.pem cannot be used"):
        java(tls=paths)
    with pytest.raises(PipelineError, match="is embedded in the gateway; `gateway broker`"):
        build_spark_options(Kafka(servers="embedded"))
    with pytest.raises(PipelineError, match="no cluster 'b'; write kafka: a"):
        find_cluster({"a": kafka(), "c": kafka()}, "b")
    assert find_cluster({"": kafka()}, None) == kafka()


def test_both_clients_come_through_tls_with_a_password(session_secured, authority, spark):
    admin = KafkaAdmin(session_secured.bootstrap)
    topic = "pipeline-secured"
    admin.create_topic(topic)
    grant_access(
        admin, "User:alice", topic, AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
    )
    secured = Kafka.model_validate(
        {
            "servers": session_secured.get_addresses("SASL_TLS"),
            "security": {
                "tls": {"ca": str(authority.certificate_path)},
                "sasl": {**SCRAM, "password": "in wonderland"},
            },
        }
    )
    producer = Producer(build_client_config(secured))
    producer.produce(topic, b"hidden", headers={"h": b"v"})
    assert producer.flush(30) == 0
    (row,) = read_raw_range(spark, secured, {TopicPartition(topic, 0): (0, 1)}).collect()
    assert (bytes(row.value), row.offset, row.headers[0].key) == (b"hidden", 0, "h")


@pytest.mark.parametrize("extensions", [{}, {"logicalCluster": "lkc-1"}])
def test_properties_with_a_token_can_be_compared_as_a_set(extensions):
    """Workers keep a client for each set of properties: every batch ended with a TypeError."""
    sasl = {"mechanism": "oauthbearer", "token": "abc", "extensions": extensions}
    config = build_client_config(kafka(sasl=sasl))
    assert frozenset(config.items()) == frozenset(build_client_config(kafka(sasl=sasl)).items())
