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
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from support.admin import KafkaAdmin
from support.brokers import running_kafka
from support.certificates import CertificateAuthority
from support.waiting import block_until

from gateway.kafka.local import BrokerSecurity, LocalKafka

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PASSWORDS_BY_USER = {"alice": "in wonderland", "bob": "builder", "carol": "pw", "mallory": "pw"}


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def session_secured(authority: CertificateAuthority) -> Iterator[LocalKafka]:
    """Its plain listener lets anybody do anything. Each module grants what it tests, on a topic
    of its own."""
    security = BrokerSecurity(
        users=PASSWORDS_BY_USER,
        mechanisms=MECHANISMS,
        certificate=authority.issue_certificate("broker"),
        authority=authority.certificate_path,
        client_auth="requested",
        acl=True,
    )
    with running_kafka(LocalKafka(security=security)) as kafka:
        yield kafka


def grant_access(
    admin: KafkaAdmin,
    principal: str,
    name: str,
    *operations: AclOperation,
    resource_type: ResourceType = ResourceType.TOPIC,
) -> None:
    """Return once the broker lets a principal, e.g. User:carol, do that with the resource."""
    pattern = (resource_type, name, ResourcePatternType.LITERAL)
    rules = [
        AclBinding(*pattern, principal, "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]
    for granted in admin.client.create_acls(rules).values():
        granted.result(30)
    # The controller has them; the authorizer of the broker follows a little later.
    for operation in operations:
        wanted = _build_filter(principal, name, operation, resource_type)
        block_until(lambda wanted=wanted: _find_rules(admin, wanted), "rule in force", 30)


def revoke_access(
    admin: KafkaAdmin,
    principal: str,
    name: str,
    operation: AclOperation,
    resource_type: ResourceType = ResourceType.TOPIC,
) -> None:
    """Return once the broker no longer lets it."""
    unwanted = _build_filter(principal, name, operation, resource_type)
    for removed in admin.client.delete_acls([unwanted]).values():
        removed.result(30)
    block_until(lambda: not _find_rules(admin, unwanted), "rule out of force", 30)


def _build_filter(
    principal: str, name: str, operation: AclOperation, resource_type: ResourceType
) -> AclBindingFilter:
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return AclBindingFilter(resource_type, name, literal, principal, "*", operation, allow)


def _find_rules(admin: KafkaAdmin, wanted: AclBindingFilter) -> list[AclBinding]:
    return admin.client.describe_acls(wanted).result(30)


def build_unsecured_jwt(**claims: Any) -> str:
    """An unsecured one, RFC 7519 6; carol's, unless `sub` says otherwise."""
    claims = {"sub": "carol", "iat": time.time() - 10, "exp": time.time() + 600} | claims
    parts = (
        base64.urlsafe_b64encode(json.dumps(part).encode()) for part in ({"alg": "none"}, claims)
    )
    return ".".join(part.decode().rstrip("=") for part in parts) + "."
