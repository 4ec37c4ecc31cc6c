"""Configurations of the documentation: a part is completed, so that it can be loaded as a whole.

What is completed is what a reader has already, and what the part says about it: `kafka.servers`,
the topics that routes name, the guards and the catalogs that are named, and files and variables.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.certificates import CertificateAuthority

from gateway.config import Settings, iter_warnings, load

# Of files that a configuration names, which a test has to write.
_PATH = re.compile(r"[\w/.-]+(?:\.(?:pem|crt|key|cert)|/token)")
SECRET = "0123456789abcdef" * 3  # long enough for any key, also as base64


def load_yaml(text: str) -> Any:
    return YAML(typ="safe").load(text)


def dump_yaml(value: Any) -> str:
    stream = io.StringIO()
    YAML(typ="safe").dump(value, stream)
    return stream.getvalue()


def complete_config(text: str, at: str = "") -> dict[str, Any]:
    """A whole configuration of a part. at: where the part stands, such as kafka.topics[0]."""
    part = load_yaml(text)
    if not at and isinstance(part, list):
        at = "pipelines.jobs" if "type" in part[0] else "routes"
    for key in reversed(re.findall(r"[\w-]+", at)):
        if key.isdigit():
            named = "name" in part or not at.startswith("kafka.topics")
            part = [part if named else {"name": "orders", **part}]
        else:
            part = {key: part}
    if at.startswith("routes["):
        part["routes"][0].setdefault("when", [{"path": "/events/orders"}])
        part["routes"][0].setdefault("with", {"topic": "orders"}).setdefault("topic", "orders")
    assert isinstance(part, dict), "a configuration is a mapping; say where it stands by at="
    if "sections" in part:
        return part
    kafka = part.setdefault("kafka", {})
    if not any(isinstance(each, Mapping) for each in kafka.values()) or "servers" in kafka:
        kafka.setdefault("servers", ["localhost:9092"])
        _complete_topics(part, kafka)
    _complete_guards(part)
    for name in _find_values(part, "catalog"):
        registry = {"type": "schema-registry", "url": "https://registry.example.com"}
        part.setdefault("catalogs", {}).setdefault(name, registry)
    return part


def _complete_topics(part: dict[str, Any], kafka: dict[str, Any]) -> None:
    topics = kafka.get("topics", ())
    known = {each if isinstance(each, str) else each["name"] for each in topics}
    named: list[str] = []
    for route in part.get("routes", ()):
        target = route.get("with", route)  # options stand in a route of one path
        named += [target.get("topic", ""), *target.get("topics", ()), target.get("replyTo", "")]
    for name in dict.fromkeys(named):
        if re.fullmatch(r"[\w.-]+", name or "") and name not in known:
            kafka.setdefault("topics", []).append({"name": name})


def _complete_guards(part: dict[str, Any]) -> None:
    """Guards that are named: users with the roles that are asked for."""
    known = part.get("guards", {})
    for guarded in list(_find_values(part, "guarded")):
        roles_by_guard = guarded if isinstance(guarded, Mapping) else dict.fromkeys(guarded, ())
        for name, roles in roles_by_guard.items():
            if name not in known:
                users = {"ada": {"password": "${env.PASSWORD}", "roles": list(roles)}}
                guard = {"type": "inline", "users": users}
                made = part.setdefault("guards", {}).setdefault(name, guard)
                held = made["users"]["ada"]["roles"]
                held += [role for role in roles if role not in held]


def _find_values(value: Any, key: str) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for name, below in value.items():
            if name == key and below:
                yield below
            yield from _find_values(below, key)
    elif isinstance(value, list):
        for below in value:
            yield from _find_values(below, key)


def load_config(
    config: dict[str, Any], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Settings, list[str]]:
    """Its settings and the warnings about it, with every variable and file that it names."""
    text = dump_yaml(config)
    for name in re.findall(r"\$\{env\.(\w+)\}", text):
        monkeypatch.setenv(name, os.environ.get(name, SECRET))
    for name in re.findall(r"\$\{file:([^}]+)\}", text):
        _write_file(directory / name, SECRET)
    _write_certificates(config, directory)
    path = directory / "gateway.yaml"
    path.write_text(_move_absolute_paths(text, directory))
    settings = load(path)
    return settings, list(iter_warnings(settings))


def _write_certificates(config: dict[str, Any], directory: Path) -> None:
    names = {
        key: [name for name in _find_values(config, key) if _is_path(name)]
        for key in ("certificate", "key", "ca", "trust", "tokenFile")
    }
    if not any(names.values()):
        return
    authority = CertificateAuthority(directory)
    issued = authority.issue_certificate("gateway").read_text()
    for key, paths in names.items():
        text = authority.certificate_path.read_text() if key in ("ca", "trust") else issued
        for name in paths:
            _write_file(directory / name.lstrip("/"), text)


def _is_path(name: object) -> bool:
    return isinstance(name, str) and _PATH.fullmatch(name) is not None


def _move_absolute_paths(text: str, directory: Path) -> str:
    """Files like /etc/gateway/tls.crt are in the folder of the test."""
    return re.sub(rf"(?<=[ '\"])/{_PATH.pattern}(?=['\"]?[,}}\]\n])", rf"{directory}\g<0>", text)


def _write_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
