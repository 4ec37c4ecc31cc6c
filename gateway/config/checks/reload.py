"""What a gateway that runs takes over of a configuration that was written anew.

Routes, guards, topics and levels of logs are taken over. What a process is made of (its address,
its connections to Kafka) stays until it is started again, and is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, cast

from pydantic.alias_generators import to_camel

from gateway.config.sections.admin import Admin
from gateway.config.sections.kafka import Kafka
from gateway.config.sections.settings import Settings
from gateway.config.types.section import Section
from gateway.errors import ConfigError

LISTEN = frozenset({"access_control"})
KAFKA = frozenset({"topics", "bootstrap", "reconnect"})
LOGS = frozenset({"level", "levels"})

S = TypeVar("S", bound=Section)


class Reloaded(NamedTuple):
    """settings: those to run with from now on. kept: the options that need a restart, as in the
    file."""

    settings: Settings
    kept: tuple[str, ...]


def reloaded(running: Settings, written: Settings) -> Reloaded:
    """What of `written` a gateway with the settings `running` takes over. Raises ConfigError for a
    cluster that is new."""
    kept: list[str] = []
    telemetry = running.telemetry
    logs = _taken(telemetry.logs, written.telemetry.logs, LOGS, "telemetry.logs.", kept)
    parts: Mapping[str, Any] = {
        "name": _kept(running.name, written.name, "name", kept),
        "admin": _admin(running.admin, written.admin, kept),
        "sidecar": _kept(running.sidecar, written.sidecar, "sidecar", kept),
        "tokens": _kept(running.tokens, written.tokens, "tokens", kept),
        "listen": _taken(running.listen, written.listen, LISTEN, "listen.", kept),
        "kafka": _clusters(running, written, kept),
        "telemetry": _taken(
            telemetry.model_copy(update={"logs": logs}),
            written.telemetry.model_copy(update={"logs": logs}),
            frozenset(),
            "telemetry.",
            kept,
        ),
    }
    return Reloaded(written.model_copy(update=dict(parts)), tuple(kept))


def _admin(running: Admin | None, written: Admin | None, kept: list[str]) -> Admin | None:
    """Its guards with its address or not at all: they are what that one needs."""
    if running is None or written is None:
        return cast("Admin | None", _kept(running, written, "admin", kept))
    if (running.host, running.port) != (written.host, written.port):
        kept.append("admin")
        return running
    return written


def _clusters(running: Settings, written: Settings, kept: list[str]) -> Kafka | dict[str, Kafka]:
    """One that is gone is kept, without topics. Raises ConfigError for one that is new."""
    new = written.clusters.keys() - running.clusters.keys()
    if new:
        what = "it is new, and needs a restart"
        raise ConfigError([f"kafka{f'.{name}' if name else ''}: {what}" for name in sorted(new)])
    made: dict[str, Kafka] = {}
    for name, kafka in running.clusters.items():
        way = f"kafka.{name}" if name else "kafka"
        if name in written.clusters:
            made[name] = _taken(kafka, written.clusters[name], KAFKA, f"{way}.", kept)
        else:
            kept.append(way)
            made[name] = kafka.model_copy(update={"topics": (), "bootstrap": ()})
    return made.get("", made)


def _taken(running: S, written: S, taken: frozenset[str], way: str, kept: list[str]) -> S:
    """With the options `taken` as written, and all others as they were."""
    update = {}
    for name in type(running).model_fields:
        before, now = getattr(running, name), getattr(written, name)
        update[name] = now if name in taken else _kept(before, now, way + to_camel(name), kept)
    return running.model_copy(update=update)


def _kept(before: Any, now: Any, way: str, kept: list[str]) -> Any:
    if before != now:
        kept.append(way)
    return before
