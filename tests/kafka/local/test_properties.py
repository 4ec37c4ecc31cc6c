"""Security of the local broker: who gets in, by which listener, and who does not."""

from __future__ import annotations

import ssl

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError
from confluent_kafka.admin import AclOperation
from support.admin import KafkaAdmin
from support.records import produce_records
from support.secure_kafka import MECHANISMS, build_unsecured_jwt, grant_access


@pytest.fixture(scope="module")
def secured(session_secured):
    """Alice may write topic `hers`."""
    admin = KafkaAdmin(session_secured.bootstrap)
    admin.create_topic("hers")
    for principal in ("User:alice", "User:CN=alice"):
        grant_access(admin, principal, "hers", AclOperation.ALL)
    return session_secured


class UnsignedTokenProvider(AbstractTokenProvider):
    def __init__(self, subject):
        self._subject = subject

    async def token(self):
        return build_unsecured_jwt(sub=self._subject)


def build_sasl_options(
    mechanism, user="alice", password="in wonderland", protocol="SASL_PLAINTEXT"
):
    options = {"security_protocol": protocol, "sasl_mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        return options | {"sasl_oauth_token_provider": UnsignedTokenProvider(user)}
    return options | {"sasl_plain_username": user, "sasl_plain_password": password}


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_every_mechanism_lets_its_user_write(secured, mechanism):
    assert await produce_records(
        secured.get_addresses("SASL"), "hers", [b"x"], **build_sasl_options(mechanism)
    )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_wrong_password_does_not_get_in(secured, mechanism):
    wrong = build_sasl_options(mechanism, password="wrong")
    with pytest.raises(KafkaConnectionError):
        await produce_records(secured.get_addresses("SASL"), "hers", [b"x"], **wrong)


async def test_without_an_acl_a_topic_is_denied(secured):
    with pytest.raises(TopicAuthorizationFailedError):
        await produce_records(
            secured.get_addresses("SASL"),
            "hers",
            [b"x"],
            **build_sasl_options("PLAIN", "bob", "builder"),
        )


async def test_mechanisms_work_over_tls_too(secured, authority):
    options = build_sasl_options("SCRAM-SHA-256", protocol="SASL_SSL") | {
        "ssl_context": authority.create_client_context()
    }
    assert await produce_records(secured.get_addresses("SASL_TLS"), "hers", [b"x"], **options)


async def test_a_client_certificate_names_its_owner(secured, authority):
    options = {"security_protocol": "SSL"}
    alice = authority.create_client_context(authority.issue_certificate("alice"))
    assert await produce_records(
        secured.get_addresses("TLS"), "hers", [b"x"], ssl_context=alice, **options
    )
    bob = authority.create_client_context(authority.issue_certificate("bob"))
    with pytest.raises(TopicAuthorizationFailedError):
        await produce_records(
            secured.get_addresses("TLS"), "hers", [b"x"], ssl_context=bob, **options
        )


async def test_an_authority_the_client_does_not_know_is_refused(secured):
    options = {"security_protocol": "SSL", "ssl_context": ssl.create_default_context()}
    producer = AIOKafkaProducer(bootstrap_servers=secured.get_addresses("TLS"), **options)
    try:
        with pytest.raises(KafkaConnectionError):
            await producer.start()
    finally:
        await producer.stop()


async def test_plain_clients_may_do_anything(secured):
    assert await produce_records(secured.bootstrap, "hers", [b"x"])
