"""Write a first configuration, with comments that say what to change, for `gateway init`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gateway.cli.quick_start import SCHEMA_HINT, SCHEMA_MODELINE, build_stream_path, format_text

GUARD_NAME = "login"


class SecurityPreset(StrEnum):
    NONE = "none"
    TLS = "tls"
    SASL_PLAIN = "sasl-plain"
    SCRAM_256 = "scram-256"
    SCRAM_512 = "scram-512"
    OAUTH = "oauth"
    MTLS = "mtls"


class GuardPreset(StrEnum):
    NONE = "none"
    JWT = "jwt"
    INLINE = "inline"


_MECHANISMS = {
    SecurityPreset.SASL_PLAIN: "plain",
    SecurityPreset.SCRAM_256: "scram-sha-256",
    SecurityPreset.SCRAM_512: "scram-sha-512",
}


@dataclass(frozen=True)
class StarterConfig:
    """A first configuration: each topic has a route. `servers` are separated by commas."""

    servers: str
    security: SecurityPreset = SecurityPreset.NONE
    topics: Sequence[str] = ()
    guard: GuardPreset = GuardPreset.NONE
    issuer: str = ""
    audience: str = ""
    origins: Sequence[str] = ()
    port: int = 8080

    @property
    def variables(self) -> Sequence[str]:
        """The environment variables that must be set; the `optional_variables` may be."""
        kafka = {
            SecurityPreset.NONE: (),
            SecurityPreset.TLS: (),
            SecurityPreset.OAUTH: ("KAFKA_TOKEN_URL", "KAFKA_CLIENT_ID", "KAFKA_CLIENT_SECRET"),
            SecurityPreset.MTLS: ("KAFKA_CERTIFICATE", "KAFKA_KEY"),
        }.get(self.security, ("KAFKA_USERNAME", "KAFKA_PASSWORD"))
        return (*kafka, *(("DEV_TOKEN",) if self.guard is GuardPreset.INLINE else ()))

    @property
    def optional_variables(self) -> Sequence[str]:
        return () if self.security is SecurityPreset.NONE else ("KAFKA_CA",)

    def to_yaml(self) -> str:
        lines = [
            SCHEMA_MODELINE,
            SCHEMA_HINT,
            "# Check it with `gateway check --cluster`, and start it with `gateway run`.",
            "",
            *self._iter_listen_lines(),
            "",
            *self._iter_kafka_lines(),
            *self._iter_guard_lines(),
            "",
            *self._iter_route_lines(),
        ]
        return "\n".join(lines) + "\n"

    def to_kafka_yaml(self) -> str:
        """Return the part that is needed to ask the cluster for its topics."""
        return "\n".join(self._iter_kafka_lines()) + "\n"

    def _iter_listen_lines(self) -> Iterator[str]:
        yield "listen:"
        yield "  host: 127.0.0.1    # 0.0.0.0 lets other machines connect, as in a container"
        yield f"  port: {self.port}"
        if self.origins:
            yield "  access-control:    # pages of these origins may connect"
            yield "    policy: cross-origin"
            yield "    allow:"
            yield f"      origins: [{', '.join(map(format_text, self.origins))}]"

    def _iter_kafka_lines(self) -> Iterator[str]:
        yield "kafka:"
        yield f"  servers: {format_text(self.servers)}"
        if self.security is not SecurityPreset.NONE:
            yield "  security:"
            yield "    tls:"
            yield "      ca: ${env.KAFKA_CA:}    # a PEM file, if the authority is not a public one"
        if self.security is SecurityPreset.MTLS:
            yield "      certificate: ${env.KAFKA_CERTIFICATE}    # PEM files"
            yield "      key: ${env.KAFKA_KEY}"
        elif self.security is SecurityPreset.OAUTH:
            yield "    sasl:"
            yield "      mechanism: oauthbearer"
            yield "      tokenUrl: ${env.KAFKA_TOKEN_URL}"
            yield "      clientId: ${env.KAFKA_CLIENT_ID}"
            yield "      clientSecret: ${env.KAFKA_CLIENT_SECRET}"
        elif self.security in _MECHANISMS:
            yield "    sasl:"
            yield f"      mechanism: {_MECHANISMS[self.security]}"
            yield "      username: ${env.KAFKA_USERNAME}"
            yield "      password: ${env.KAFKA_PASSWORD}"
        if self.topics:
            yield "  topics:    # what routes may read; add `value: {model: json}` to check values"
        for topic in self.topics:
            yield f"    - name: {format_text(topic)}"

    def _iter_guard_lines(self) -> Iterator[str]:
        if self.guard is GuardPreset.NONE:
            return
        yield ""
        yield "guards:"
        yield f"  {GUARD_NAME}:"
        if self.guard is GuardPreset.JWT:
            yield "    type: jwt"
            yield f"    issuer: {format_text(self.issuer)}    # its keys are discovered"
            yield f"    audience: {format_text(self.audience)}"
            return
        yield "    type: inline    # for development only; use jwt or http for users"
        yield "    users:"
        yield "      developer:"
        yield "        token: ${env.DEV_TOKEN}    # sent as Authorization: Bearer TOKEN"

    def _iter_route_lines(self) -> Iterator[str]:
        yield "routes:"
        for topic in self.topics:
            yield f"  - path: {format_text(build_stream_path(topic))}"
            yield f"    topic: {format_text(topic)}"
            if self.guard is not GuardPreset.NONE:
                yield f"    guarded: [{GUARD_NAME}]"
