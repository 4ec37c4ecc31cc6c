"""Credentials against one broker with every listener, and what is said when they are wrong."""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from support.admin import Admin
from support.certificates import Authority
from support.secured import jwt
from support.until import until

from gateway.config.sections.security import Security
from gateway.errors import AccessDenied, AuthenticationFailed, KafkaError
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.client.security import credentials
from gateway.kafka.local import LocalKafka


@pytest.fixture(scope="module")
def secured(session_secured: LocalKafka) -> LocalKafka:
    Admin(session_secured.bootstrap).create_topic("secret")
    return session_secured


def configured(**raw: Any) -> Security:
    return Security.model_validate(raw)


async def outcome(servers: list[str], security: Security) -> KafkaError | None:
    """The error of the first attempt, None when Kafka was reached."""
    settings = ClusterSettings(servers, credentials=credentials(security))
    async with Cluster(settings) as cluster:
        await until(lambda: cluster.reachable or cluster.error)
        return cluster.error


async def test_a_refusal_is_still_told_as_one_while_it_waits_to_try_again(secured):
    sasl = {"mechanism": "plain", "username": "carol", "password": "not it"}
    settings = ClusterSettings(
        secured.listener("SASL"), credentials=credentials(configured(sasl=sasl))
    )
    async with Cluster(settings) as cluster:
        for _ in range(3):
            with pytest.raises(AuthenticationFailed, match="refused"):
                await cluster.metadata.refresh("test")


@pytest.mark.parametrize("mechanism", ["plain", "scram-sha-256", "scram-sha-512"])
async def test_passwords_open_the_listener_and_wrong_ones_are_told(secured, mechanism):
    sasl = {"mechanism": mechanism, "username": "carol", "password": "pw"}
    assert await outcome(secured.listener("SASL"), configured(sasl=sasl)) is None
    sasl["password"] = "not it"
    error = await outcome(secured.listener("SASL"), configured(sasl=sasl))
    assert isinstance(error, AuthenticationFailed)
    assert (error.retry_after or 0) > 4  # slowly: accounts get locked
    assert "not it" not in str(error)


async def test_a_bearer_token_opens_the_listener_and_an_expired_one_is_told(secured):
    sasl = {"mechanism": "oauthbearer", "token": jwt()}
    assert await outcome(secured.listener("SASL"), configured(sasl=sasl)) is None
    sasl["token"] = jwt(exp=time.time() - 600)
    error = await outcome(secured.listener("SASL"), configured(sasl=sasl))
    assert isinstance(error, AuthenticationFailed), error


async def test_tls_with_the_clusters_own_authority(secured, authority):
    tls = {"ca": str(authority.path)}
    assert await outcome(secured.listener("TLS"), configured(tls=tls)) is None


async def test_a_certificate_nobody_vouches_for_is_refused_unless_told_not_to_look(secured):
    error = await outcome(secured.listener("TLS"), configured(tls={}))
    assert isinstance(error, AuthenticationFailed)
    assert "certificate verify failed" in str(error)
    assert await outcome(secured.listener("TLS"), configured(tls={"verify": False})) is None


async def test_a_client_certificate_is_shown(secured, authority):
    mine = str(authority.signed("client"))
    tls = {"ca": str(authority.path), "certificate": mine, "key": mine}
    assert await outcome(secured.listener("TLS"), configured(tls=tls)) is None


async def test_a_client_certificate_of_strangers_is_told(secured, authority, tmp_path):
    mine = str(Authority(tmp_path, "strangers").signed("client"))
    tls = {"ca": str(authority.path), "certificate": mine, "key": mine}
    error = await outcome(secured.listener("TLS"), configured(tls=tls))
    assert isinstance(error, AuthenticationFailed)


async def test_a_password_through_tls(secured, authority):
    sasl = {"mechanism": "plain", "username": "carol", "password": "pw"}
    tls = {"ca": str(authority.path)}
    assert await outcome(secured.listener("SASL_TLS"), configured(sasl=sasl, tls=tls)) is None


async def test_a_topic_the_principal_may_not_read_is_denied(secured):
    sasl = {"mechanism": "plain", "username": "carol", "password": "pw"}
    settings = ClusterSettings(
        secured.listener("SASL"), credentials=credentials(configured(sasl=sasl))
    )
    async with Cluster(settings) as cluster:
        heard = []
        cluster.metadata.listen(heard.append)
        with pytest.raises(AccessDenied, match="secret"):
            await cluster.describe("secret")
        cluster.metadata.watch("secret")
        await until(lambda: heard)
        assert heard[0].denied


def test_without_settings_it_is_plain_text():
    assert credentials(None)() == {"security_protocol": "PLAINTEXT"}


def test_a_replaced_certificate_is_loaded_without_a_restart(authority, tmp_path):
    mine = tmp_path / "mine.pem"
    mine.write_bytes(authority.signed("first").read_bytes())
    tls = {"ca": str(authority.path), "certificate": str(mine), "key": str(mine)}
    made = credentials(configured(tls=tls))
    first = made()["ssl_context"]
    assert isinstance(first, ssl.SSLContext)
    assert made()["ssl_context"] is first
    mine.write_bytes(authority.signed("second").read_bytes())
    later(mine)
    assert made()["ssl_context"] is not first


def test_a_file_that_is_no_certificate_is_told_with_its_name(authority, tmp_path):
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("not a certificate")
    with pytest.raises(AuthenticationFailed, match=r"wrong\.pem"):
        credentials(configured(tls={"ca": str(wrong)}))()


def later(path: Path) -> None:
    import os

    stamp = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(stamp, stamp))
