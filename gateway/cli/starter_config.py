"""Write configurations for `gateway init`, and serve and write those of `gateway run --topic`."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from .options import DEFAULT_SERVERS

if TYPE_CHECKING:
    from gateway.config import Settings
    from gateway.config.types.section import Loc


SCHEMA_MODELINE = "# yaml-language-server: $schema=gateway.schema.json"
SCHEMA_HINT = "# For completion in editors: gateway check --schema > gateway.schema.json"

_BASE = {"kafka": {"servers": DEFAULT_SERVERS}}
_ORIGINS_LOC = ("listen", "access-control", "allow", "origins")


def build_stream_path(topic: str) -> str:
    return f"/events/{topic}"


def format_text(text: str) -> str:
    """Return a text as YAML, in which nothing of it has a meaning."""
    return json.dumps(text.replace("${", "${$}{"), ensure_ascii=False)


@dataclass(frozen=True)
class QuickStart:
    """The streams that `gateway run` serves without a file: one of each topic.

    Attributes:
        options: Values of the command line by the paths of options, such as `listen.port`; None for
            those that are not given.
    """

    topics: Sequence[str]
    options: Mapping[str, Any]

    def load(self, environ: Mapping[str, str] = os.environ) -> Settings:
        from gateway.config import loads

        return loads(
            json.dumps(_BASE),
            name="gateway run --topic",
            environ=environ,
            options=self._build_options(),
            with_variables=True,
        )

    def to_yaml(self, settings: Settings, environ: Mapping[str, str] = os.environ) -> str:
        """Return a file with all options that are not defaults; `load` takes the same `environ`."""
        from gateway.config.source.yaml_document import dump_values, format_values

        values = _select_values(dump_values(settings), self._list_changes(environ))
        kafka = values["kafka"]
        if isinstance(kafka["servers"], list):
            kafka["servers"] = ",".join(kafka["servers"])
        kafka["topics"] = list(self.topics)
        values["routes"] = self._build_routes()
        return f"{SCHEMA_MODELINE}\n{SCHEMA_HINT}\n{format_values(values)}"

    def to_command(self, settings: Settings, environ: Mapping[str, str] = os.environ) -> str:
        servers = settings.clusters[""].servers
        words = ["gateway", "run", "--servers"]
        words.append(servers if isinstance(servers, str) else ",".join(servers))
        for topic in self.topics:
            words += ["--topic", topic]
        changes = self._list_changes(environ)
        listen = settings.listen
        if _ORIGINS_LOC in changes and listen.access_control.policy == "cross-origin":
            for origin in listen.access_control.allow.origins:
                words += ["--origin", origin]
        for name in ("host", "port", "workers"):
            if ("listen", name) in changes:
                words += [f"--{name}", str(getattr(listen, name))]
        return f"{shlex.join([*words, '--print-config'])} > gateway.yaml"

    def iter_notes(self, settings: Settings) -> Iterator[str]:
        listen = settings.listen
        host = "localhost" if listen.host in ("0.0.0.0", "::") else listen.host
        address = f"[{host}]" if ":" in host else host
        scheme = "http" if listen.tls is None else "https"
        base = f"{scheme}://{address}:{listen.port}" if listen.port else ""
        paths = [route.when[0].path for route in settings.routes]
        for topic, path in zip(self.topics, paths, strict=True):
            yield f"topic {topic}: {base}{path}"
        if base:
            yield f"to see records: curl -N {base}{paths[0]}"
        yield f"to keep this as a file: {self.to_command(settings)}"

    def _build_options(self) -> dict[str, Any]:
        return {
            **{option: value for option, value in self.options.items() if value is not None},
            "kafka.topics": list(self.topics),
            "routes": self._build_routes(),
        }

    def _build_routes(self) -> list[dict[str, str]]:
        return [{"path": build_stream_path(topic), "topic": topic} for topic in self.topics]

    def _list_changes(self, environ: Mapping[str, str]) -> set[Loc]:
        from gateway.config import read_variables

        variables, _ = read_variables(environ, _BASE)
        options = {tuple(option.split(".")) for option in self._build_options()}
        return {*options, *(variable.loc for variable in variables), ("kafka", "servers")}


def _select_values(values: Mapping[Any, Any], locs: Collection[Loc]) -> dict[Any, Any]:
    """Return the values at some paths, in their order, without those that do not exist."""
    selected: dict[Any, Any] = {}
    for key, value in values.items():
        inner = [loc[1:] for loc in locs if loc[0] == key]
        if () in inner or not isinstance(value, Mapping):
            selected |= {key: value} if inner else {}
        elif found := _select_values(value, inner):
            selected[key] = found
    return selected


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
