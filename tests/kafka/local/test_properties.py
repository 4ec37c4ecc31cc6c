"""Security of the local broker: who gets in, by which listener, and who does not."""

from __future__ import annotations

import ssl

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError
from confluent_kafka.admin import AclOperation
from support.admin import Admin
from support.records import produce
from support.secured import MECHANISMS, allow, jwt


@pytest.fixture(scope="module")
def secured(session_secured):
    """Alice may write topic `hers`."""
    admin = Admin(session_secured.bootstrap)
    admin.create_topic("hers")
    for principal in ("User:alice", "User:CN=alice"):
        allow(admin, principal, "hers", AclOperation.ALL)
    return session_secured


class Unsecured(AbstractTokenProvider):
    def __init__(self, subject):
        self._subject = subject

    async def token(self):
        return jwt(sub=self._subject)


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
