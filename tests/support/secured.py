"""One broker with every listener there is and ACLs, for the session; and who may what there."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from support.admin import Admin
from support.brokers import started
from support.certificates import Authority

from gateway.kafka.local import LocalKafka, Security

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
USERS = {"alice": "in wonderland", "bob": "builder", "carol": "pw", "mallory": "pw"}


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def session_secured(authority: Authority) -> Iterator[LocalKafka]:
    """Its plain listener lets anybody do anything. Each module grants what it tests, on a topic
    of its own."""
    security = Security(
        users=USERS,
        mechanisms=MECHANISMS,
        certificate=authority.signed("broker"),
        authority=authority.path,
        client_auth="requested",
        acl=True,
    )
    with started(LocalKafka(security=security)) as kafka:
        yield kafka


def allow(
    admin: Admin,
    principal: str,
    name: str,
    *operations: AclOperation,
    kind: ResourceType = ResourceType.TOPIC,
) -> None:
    """principal: User:carol, User:CN=client. name: of the topic, or what `kind` says."""
    pattern = (kind, name, ResourcePatternType.LITERAL)
    rules = [
        AclBinding(*pattern, principal, "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]
    for granted in admin.client.create_acls(rules).values():
        granted.result(30)


def jwt(**claims: Any) -> str:
    """An unsecured one, RFC 7519 6; carol's, unless `sub` says otherwise."""
    claims = {"sub": "carol", "iat": time.time() - 10, "exp": time.time() + 600} | claims
    parts = (
        base64.urlsafe_b64encode(json.dumps(part).encode()) for part in ({"alg": "none"}, claims)
    )
    return ".".join(part.decode().rstrip("=") for part in parts) + "."
