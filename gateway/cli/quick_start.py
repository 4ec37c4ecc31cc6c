"""Load the configuration that `gateway run --topic` serves, print it, and say how to keep it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
