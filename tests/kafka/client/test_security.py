"""Credentials against one broker with every listener, and what is said when they are wrong."""

from __future__ import annotations

import shutil
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from support.admin import KafkaAdmin
from support.certificates import CertificateAuthority
from support.local_kafka import RiggedKafka
from support.secure_kafka import build_unsecured_jwt
from support.waiting import wait_until

from gateway.config.sections.security import Security
from gateway.errors import AccessDenied, AuthenticationFailed, KafkaError
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.client.security import create_credentials


@pytest.fixture(scope="module")
def secured(session_secured: RiggedKafka) -> RiggedKafka:
    KafkaAdmin(session_secured.bootstrap).create_topic("secret")
    return session_secured


def parse_security(**raw: Any) -> Security:
    return Security.model_validate(raw)


async def attempt_connection(servers: list[str], security: Security) -> KafkaError | None:
    """The error of the first attempt, None when Kafka was reached."""
    settings = ClusterSettings(servers, credentials=create_credentials(security))
    async with Cluster(settings) as cluster:
        await wait_until(lambda: cluster.is_reachable or cluster.error)
        return cluster.error


async def test_a_refusal_is_still_told_as_one_while_it_waits_to_try_again(secured):
    sasl = {"mechanism": "plain", "username": "carol", "password": "not it"}
    settings = ClusterSettings(
        secured.get_addresses("SASL"), credentials=create_credentials(parse_security(sasl=sasl))
    )
    async with Cluster(settings) as cluster:
        for _ in range(3):
            with pytest.raises(AuthenticationFailed, match="refuses the login"):
                await cluster.metadata.refresh("test")


@pytest.mark.parametrize("mechanism", ["plain", "scram-sha-256", "scram-sha-512"])
async def test_passwords_open_the_listener_and_wrong_ones_are_told(secured, mechanism):
    sasl = {"mechanism": mechanism, "username": "carol", "password": "pw"}
    assert (
        await attempt_connection(secured.get_addresses("SASL"), parse_security(sasl=sasl)) is None
    )
    sasl["password"] = "not it"
    error = await attempt_connection(secured.get_addresses("SASL"), parse_security(sasl=sasl))
    assert isinstance(error, AuthenticationFailed)
    assert (error.retry_after or 0) > 4  # slowly: accounts get locked
    assert "not it" not in str(error)


async def test_a_bearer_token_opens_the_listener_and_an_expired_one_is_told(secured):
    sasl = {"mechanism": "oauthbearer", "token": build_unsecured_jwt()}
    assert (
        await attempt_connection(secured.get_addresses("SASL"), parse_security(sasl=sasl)) is None
    )
    sasl["token"] = build_unsecured_jwt(exp=time.time() - 600)
    error = await attempt_connection(secured.get_addresses("SASL"), parse_security(sasl=sasl))
    assert isinstance(error, AuthenticationFailed), error


async def test_tls_with_the_clusters_own_authority(secured, authority):
    tls = {"ca": str(authority.certificate_path)}
    assert await attempt_connection(secured.get_addresses("TLS"), parse_security(tls=tls)) is None


async def test_a_certificate_nobody_vouches_for_is_refused_unless_told_not_to_look(secured):
    error = await attempt_connection(secured.get_addresses("TLS"), parse_security(tls={}))
    assert isinstance(error, AuthenticationFailed)
    assert "authority that the gateway does not trust" in str(error)
    assert (
        await attempt_connection(
            secured.get_addresses("TLS"), parse_security(tls={"verify": False})
        )
        is None
    )


async def test_a_client_certificate_is_shown(secured, authority):
    mine = str(authority.issue_certificate("client"))
    tls = {"ca": str(authority.certificate_path), "certificate": mine, "key": mine}
    assert await attempt_connection(secured.get_addresses("TLS"), parse_security(tls=tls)) is None


async def test_a_client_certificate_of_strangers_is_told(secured, authority, tmp_path):
    mine = str(CertificateAuthority(tmp_path, "strangers").issue_certificate("client"))
    tls = {"ca": str(authority.certificate_path), "certificate": mine, "key": mine}
    error = await attempt_connection(secured.get_addresses("TLS"), parse_security(tls=tls))
    assert isinstance(error, AuthenticationFailed)


async def test_a_password_through_tls(secured, authority):
    sasl = {"mechanism": "plain", "username": "carol", "password": "pw"}
    tls = {"ca": str(authority.certificate_path)}
    assert (
        await attempt_connection(
            secured.get_addresses("SASL_TLS"), parse_security(sasl=sasl, tls=tls)
        )
        is None
    )


async def test_a_topic_the_principal_may_not_read_is_denied(secured):
    sasl = {"mechanism": "plain", "username": "carol", "password": "pw"}
    settings = ClusterSettings(
        secured.get_addresses("SASL"), credentials=create_credentials(parse_security(sasl=sasl))
    )
    async with Cluster(settings) as cluster:
        heard = []
        cluster.metadata.add_listener(heard.append)
        with pytest.raises(AccessDenied, match="secret"):
            await cluster.describe_topic("secret")
        cluster.metadata.watch("secret")
        await wait_until(lambda: heard)
        assert heard[0].is_denied


LOGIN = {"clientId": "me", "clientSecret": "s3cret"}


async def test_tokens_come_from_where_the_configuration_says(tmp_path):
    file = tmp_path / "token"
    file.write_text("of the file\n")
    sasl: dict[str, Any] = {"mechanism": "oauthbearer", "tokenFile": str(file)}
    credentials = create_credentials(parse_security(sasl=sasl))
    assert await credentials()["sasl_oauth_token_provider"].token() == "of the file"
    extensions = {"logicalCluster": "lkc-1", "identityPoolId": "pool-1"}
    for source in ({"token": "t"}, {"tokenFile": str(file)}, {"tokenUrl": "http://t", **LOGIN}):
        sasl = {"mechanism": "oauthbearer", **source, "extensions": extensions}
        provider = create_credentials(parse_security(sasl=sasl))()["sasl_oauth_token_provider"]
        assert provider.extensions() == extensions
    client = {"tokenUrl": "http://localhost/token", "clientId": "gateway", "clientSecret": "s3cret"}
    sasl = {"mechanism": "oauthbearer", "scope": "kafka", **client}
    issued = create_credentials(parse_security(sasl=sasl))()["sasl_oauth_token_provider"]
    told = (issued.url, issued.client_id, issued.client_secret, issued.scope)
    assert told == ("http://localhost/token", "gateway", "s3cret", "kafka")


def test_without_settings_it_is_plain_text():
    assert create_credentials(None)() == {"security_protocol": "PLAINTEXT"}


def test_a_replaced_certificate_is_loaded_without_a_restart(authority, tmp_path):
    mine = tmp_path / "mine.pem"
    mine.write_bytes(authority.issue_certificate("first").read_bytes())
    tls = {"ca": str(authority.certificate_path), "certificate": str(mine), "key": str(mine)}
    made = create_credentials(parse_security(tls=tls))
    first = made()["ssl_context"]
    assert isinstance(first, ssl.SSLContext)
    assert made()["ssl_context"] is first
    mine.write_bytes(authority.issue_certificate("second").read_bytes())
    touch_later(mine)
    assert made()["ssl_context"] is not first


def test_a_file_that_is_no_certificate_any_more_is_told_with_its_name(authority, tmp_path):
    file = tmp_path / "wrong.pem"
    shutil.copy(authority.certificate_path, file)
    credentials = create_credentials(parse_security(tls={"ca": str(file)}))
    file.write_text("not a certificate")
    with pytest.raises(AuthenticationFailed, match=r"wrong\.pem"):
        credentials()


def touch_later(path: Path) -> None:
    import os

    stamp = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(stamp, stamp))
