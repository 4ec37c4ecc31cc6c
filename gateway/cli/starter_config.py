"""Write configurations for `gateway init`, and serve and write those of `gateway run --topic`."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from .options import DEFAULT_CONFIG_FILE, DEFAULT_SERVERS

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
        if DEFAULT_CONFIG_FILE.is_file():
            yield f"{DEFAULT_CONFIG_FILE} of this folder is not used, because of --topic"
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


_TLS = """\
  security:
    tls:
      ca: ${env.KAFKA_CA:}    # a PEM file, if the authority is not a public one
"""
_LOGIN = f"""{_TLS}\
    sasl:
      mechanism: MECHANISM
      username: ${{env.KAFKA_USERNAME}}
      password: ${{env.KAFKA_PASSWORD}}
"""
_SECURITY = {
    SecurityPreset.NONE: "",
    SecurityPreset.TLS: _TLS,
    SecurityPreset.SASL_PLAIN: _LOGIN.replace("MECHANISM", "plain"),
    SecurityPreset.SCRAM_256: _LOGIN.replace("MECHANISM", "scram-sha-256"),
    SecurityPreset.SCRAM_512: _LOGIN.replace("MECHANISM", "scram-sha-512"),
    SecurityPreset.OAUTH: f"""{_TLS}\
    sasl:
      mechanism: oauthbearer
      tokenUrl: ${{env.KAFKA_TOKEN_URL}}
      clientId: ${{env.KAFKA_CLIENT_ID}}
      clientSecret: ${{env.KAFKA_CLIENT_SECRET}}
""",
    SecurityPreset.MTLS: f"""{_TLS}\
      certificate: ${{env.KAFKA_CERTIFICATE}}    # PEM files
      key: ${{env.KAFKA_KEY}}
""",
}
_INLINE_GUARD = """\
    type: inline    # for development only; use jwt or http for users
    users:
      developer:
        token: ${env.DEV_TOKEN}    # sent as Authorization: Bearer TOKEN
"""


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
        return re.findall(r"\$\{env\.(\w+)\}", self.to_yaml())

    @property
    def optional_variables(self) -> Sequence[str]:
        return re.findall(r"\$\{env\.(\w+):\}", self.to_yaml())

    def to_yaml(self) -> str:
        origins = f"""\
  access-control:    # pages of these origins may connect
    policy: cross-origin
    allow:
      origins: [{", ".join(map(format_text, self.origins))}]
"""
        return f"""\
{SCHEMA_MODELINE}
{SCHEMA_HINT}
# Check it with `gateway check --cluster`, and start it with `gateway run`.

listen:
  host: 127.0.0.1    # 0.0.0.0 lets other machines connect, as in a container
  port: {self.port}
{origins if self.origins else ""}
{self.to_kafka_yaml()}{self._format_guard()}
routes:
{"".join(map(self._format_route, self.topics))}"""

    def to_kafka_yaml(self) -> str:
        names = "".join(f"    - name: {format_text(topic)}\n" for topic in self.topics)
        head = "  topics:    # what routes may read; add `value: {model: json}` to check values\n"
        return (
            f"kafka:\n  servers: {format_text(self.servers)}\n{_SECURITY[self.security]}"
            f"{head if names else ''}{names}"
        )

    def _format_guard(self) -> str:
        if self.guard is GuardPreset.NONE:
            return ""
        jwt = f"""\
    type: jwt
    issuer: {format_text(self.issuer)}    # its keys are discovered
    audience: {format_text(self.audience)}
"""
        options = jwt if self.guard is GuardPreset.JWT else _INLINE_GUARD
        return f"\nguards:\n  {GUARD_NAME}:\n{options}"

    def _format_route(self, topic: str) -> str:
        path = format_text(build_stream_path(topic))
        guarded = "" if self.guard is GuardPreset.NONE else f"    guarded: [{GUARD_NAME}]\n"
        return f"  - path: {path}\n    topic: {format_text(topic)}\n{guarded}"
