"""Security of the local broker: who gets in, by which listener, and who does not."""

from __future__ import annotations

import base64
import json
import ssl
import time

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from support.admin import Admin
from support.certificates import Authority
from support.needs import absent
from support.records import produce

from gateway.errors import LocalBrokerError
from gateway.kafka.local import LocalKafka, Security

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(authority):
    """Every listener there is, and ACLs; alice may write topic `hers`."""
    security = Security(
        users={"alice": "in wonderland", "bob": "builder"},
        mechanisms=MECHANISMS,
        certificate=authority.signed("broker"),
        authority=authority.path,
        client_auth="requested",
        acl=True,
    )
    try:
        with LocalKafka(security=security) as kafka:
            admin = Admin(kafka.bootstrap)
            admin.create_topic("hers")
            allow(admin, "User:alice", "hers")
            allow(admin, "User:CN=alice", "hers")
            yield kafka
    except LocalBrokerError as error:
        absent(str(error))


def allow(admin, principal, topic):
    rule = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        principal,
        "*",
        AclOperation.ALL,
        AclPermissionType.ALLOW,
    )
    for future in admin.client.create_acls([rule]).values():
        future.result(20)


class Unsecured(AbstractTokenProvider):
    """An unsecured JWT (RFC 7519 6)."""

    def __init__(self, subject):
        self._subject = subject

    async def token(self):
        now = int(time.time())
        parts = {"alg": "none"}, {"sub": self._subject, "iat": now, "exp": now + 600}
        return (
            ".".join(
                base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
                for part in parts
            )
            + "."
        )


def sasl(mechanism, user="alice", password="in wonderland", protocol="SASL_PLAINTEXT"):
    options = {"security_protocol": protocol, "sasl_mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        return options | {"sasl_oauth_token_provider": Unsecured(user)}
    return options | {"sasl_plain_username": user, "sasl_plain_password": password}


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_every_mechanism_lets_its_user_write(secured, mechanism):
    assert await produce(secured.listener("SASL"), "hers", [b"x"], **sasl(mechanism))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_wrong_password_does_not_get_in(secured, mechanism):
    wrong = sasl(mechanism, password="wrong")
    with pytest.raises(KafkaConnectionError):
        await produce(secured.listener("SASL"), "hers", [b"x"], **wrong)


async def test_without_an_acl_a_topic_is_denied(secured):
    with pytest.raises(TopicAuthorizationFailedError):
        await produce(secured.listener("SASL"), "hers", [b"x"], **sasl("PLAIN", "bob", "builder"))


async def test_mechanisms_work_over_tls_too(secured, authority):
    options = sasl("SCRAM-SHA-256", protocol="SASL_SSL") | {"ssl_context": authority.context()}
    assert await produce(secured.listener("SASL_TLS"), "hers", [b"x"], **options)


async def test_a_client_certificate_names_its_owner(secured, authority):
    options = {"security_protocol": "SSL"}
    alice = authority.context(authority.signed("alice"))
    assert await produce(secured.listener("TLS"), "hers", [b"x"], ssl_context=alice, **options)
    bob = authority.context(authority.signed("bob"))
    with pytest.raises(TopicAuthorizationFailedError):
        await produce(secured.listener("TLS"), "hers", [b"x"], ssl_context=bob, **options)


async def test_an_authority_the_client_does_not_know_is_refused(secured):
    options = {"security_protocol": "SSL", "ssl_context": ssl.create_default_context()}
    producer = AIOKafkaProducer(bootstrap_servers=secured.listener("TLS"), **options)
    try:
        with pytest.raises(KafkaConnectionError):
            await producer.start()
    finally:
        await producer.stop()


async def test_plain_clients_may_do_anything(secured):
    assert await produce(secured.bootstrap, "hers", [b"x"])
