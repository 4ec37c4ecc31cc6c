"""Define broker properties that keep a local cluster small and fast, and optionally secure.

The lean properties reduce the memory of a default broker from 310 MB to 190 MB. The two fast sets
turn minutes of Kafka's defaults into seconds, so that tests can observe retention and failover.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

LEAN_PROPERTIES = {
    "num.network.threads": "1",
    "num.io.threads": "2",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.coordinator.threads": "1",
    "group.initial.rebalance.delay.ms": "0",
}

SINGLE_NODE_PROPERTIES = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}

# A killed leader is replaced after 2-5 s; Kafka's defaults take 11 s.
FAST_FAILOVER_PROPERTIES = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
    "replica.lag.time.max.ms": "2000",
}

# With retention.ms=1000 and segment.ms=500 on a topic, its log start offset moves after 1.6 s. By
# default Kafka checks every 5 min, for the first time after 30 s.
FAST_RETENTION_PROPERTIES = {
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "300",
    "log.cleaner.backoff.ms": "200",
    "log.segment.delete.delay.ms": "0",
}

_LOGIN_MODULE_PACKAGE = "org.apache.kafka.common.security"
# The security protocol of each listener.
_SECURITY_PROTOCOLS = {
    "PLAINTEXT": "PLAINTEXT",
    "CONTROLLER": "PLAINTEXT",
    "VIA": "PLAINTEXT",
    "SASL": "SASL_PLAINTEXT",
    "TLS": "SSL",
    "SASL_TLS": "SASL_SSL",
}


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


def build_listener_properties(
    ports: Mapping[str, int], via: tuple[str, int] | None, voters: str
) -> dict[str, str]:
    """Build the broker properties of a node's listeners, which are all on 127.0.0.1.

    Args:
        via: Host and port that the listener VIA advertises in place of its own; None without VIA.
        voters: The controllers, as `controller.quorum.voters` lists them.
    """
    bound = {name: f"{name}://127.0.0.1:{port}" for name, port in ports.items()}
    # Clients have no use for the controllers' listener.
    advertised = {name: address for name, address in bound.items() if name != "CONTROLLER"}
    if via is not None:
        advertised["VIA"] = f"VIA://{via[0]}:{via[1]}"
    return {
        "process.roles": "broker,controller",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.quorum.voters": voters,
        "listeners": ",".join(bound.values()),
        "advertised.listeners": ",".join(advertised.values()),
        "listener.security.protocol.map": ",".join(
            f"{name}:{_SECURITY_PROTOCOLS[name]}" for name in ports
        ),
    }


def format_properties(properties: Mapping[str, str]) -> str:
    # A backslash begins an escape there.
    escaped = ((key, value.replace("\\", "\\\\")) for key, value in properties.items())
    return "".join(f"{key}={value}\n" for key, value in escaped)
