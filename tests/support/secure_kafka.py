"""One broker with every listener there is and ACLs, for the session; and who may what there."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
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
from support.local_kafka import RiggedKafka
from support.waiting import block_until

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PASSWORDS_BY_USER = {"alice": "in wonderland", "bob": "builder", "carol": "pw", "mallory": "pw"}
_LOGIN_MODULE_PACKAGE = "org.apache.kafka.common.security"
_SECURITY_PROTOCOLS = {"SASL": "SASL_PLAINTEXT", "TLS": "SSL", "SASL_TLS": "SASL_SSL"}


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """Secure listeners beside the plain one, which always stays and whose clients may do anything.

    Attributes:
        users: The password of each user, for every mechanism but OAUTHBEARER.
        mechanisms: Any of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER, for the listener
            SASL. OAUTHBEARER accepts unsecured JWTs (RFC 7519 6, alg none) and is for tests only.
        certificate: A PEM file with a PKCS8 key and its certificate for localhost or 127.0.0.1. It
            opens the listener TLS, and with mechanisms SASL_TLS too.
        authority: A PEM file of the certificate authority that verifies client certificates.
        client_auth: Whether clients have to show a certificate: none, requested or required.
        acl: Whether the standard authorizer denies everything that no ACL allows.
    """

    users: Mapping[str, str] = field(default_factory=dict)
    mechanisms: tuple[str, ...] = ()
    certificate: Path | None = None
    authority: Path | None = None
    client_auth: str = "none"
    acl: bool = False

    @property
    def listeners(self) -> tuple[str, ...]:
        sasl = ("SASL",) if self.mechanisms else ()
        tls = ("TLS",) if self.certificate else ()
        both = ("SASL_TLS",) if sasl and tls else ()
        return sasl + tls + both

    def create_kafka(
        self, *, properties: Mapping[str, str] | None = None, **options: Any
    ) -> RiggedKafka:
        """A cluster with these listeners, which is not started; the options are those of
        `RiggedKafka`."""
        return RiggedKafka(
            properties=self.build_properties() | dict(properties or {}),
            listeners={name: _SECURITY_PROTOCOLS[name] for name in self.listeners},
            scram_users=self.scram_users,
            **options,
        )

    @property
    def scram_users(self) -> tuple[str, ...]:
        return tuple(
            f"{mechanism}=[name={user},password={password}]"
            for mechanism in self.mechanisms
            if mechanism.startswith("SCRAM")
            for user, password in self.users.items()
        )

    def build_properties(self) -> dict[str, str]:
        properties: dict[str, str] = {}
        for listener in self.listeners:
            if "SASL" in listener:
                properties |= self._build_sasl_properties(f"listener.name.{listener.lower()}.")
            if "TLS" in listener:
                properties |= self._build_tls_properties(f"listener.name.{listener.lower()}.")
        if self.mechanisms:
            properties["sasl.enabled.mechanisms"] = ",".join(self.mechanisms)
        if self.acl:
            authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
            properties["authorizer.class.name"] = authorizer
            # Clients of the plain listener, and the brokers among themselves.
            properties["super.users"] = "User:ANONYMOUS"
        return properties

    def _build_sasl_properties(self, prefix: str) -> dict[str, str]:
        users = " ".join(f'user_{user}="{password}"' for user, password in self.users.items())
        modules = {
            "PLAIN": f"{_LOGIN_MODULE_PACKAGE}.plain.PlainLoginModule required {users};",
            "OAUTHBEARER": f"{_LOGIN_MODULE_PACKAGE}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";',
        }
        scram = f"{_LOGIN_MODULE_PACKAGE}.scram.ScramLoginModule required;"
        return {
            f"{prefix}{name.lower()}.sasl.jaas.config": modules.get(name, scram)
            for name in self.mechanisms
        }

    def _build_tls_properties(self, prefix: str) -> dict[str, str]:
        properties = {
            f"{prefix}ssl.keystore.type": "PEM",
            f"{prefix}ssl.keystore.location": str(self.certificate),
            f"{prefix}ssl.client.auth": self.client_auth,
        }
        if self.authority:
            properties[f"{prefix}ssl.truststore.type"] = "PEM"
            properties[f"{prefix}ssl.truststore.location"] = str(self.authority)
        return properties


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def session_secured(authority: CertificateAuthority) -> Iterator[RiggedKafka]:
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
    with running_kafka(security.create_kafka()) as kafka:
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
