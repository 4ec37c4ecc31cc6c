"""Decide which options a running gateway takes over from a changed configuration.

Routes, guards, topics, log levels and credentials at brokers are taken over. The options that the
process was built from (its address, the brokers) keep their old values until a restart, and are
reported. The result has to agree with itself, as the sections of one file have to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, cast

from pydantic.alias_generators import to_camel

from gateway.config.source.problems import format_loc
from gateway.config.types.section import Section
from gateway.errors import ConfigError

from .crosscheck import check_settings
from .kafka import Kafka
from .route import Admin
from .security import Security
from .settings import Settings

RELOADABLE_LISTEN_OPTIONS = frozenset({"access_control"})
RELOADABLE_KAFKA_OPTIONS = frozenset({"topics", "bootstrap", "reconnect"})
RELOADABLE_LOG_OPTIONS = frozenset({"level", "levels"})

SectionT = TypeVar("SectionT", bound=Section)


class ReloadedSettings(NamedTuple):
    """The settings to run with from now on, and the changed options that need a restart."""

    settings: Settings
    kept: tuple[str, ...]


def apply_reload(running: Settings, loaded: Settings) -> ReloadedSettings:
    """Combine the running settings with those that were loaded.

    Raises:
        ConfigError: A cluster is new, or loaded options disagree with kept ones.
    """
    kept: list[str] = []
    telemetry = running.telemetry
    logs = _reload_section(
        telemetry.logs, loaded.telemetry.logs, RELOADABLE_LOG_OPTIONS, "telemetry.logs.", kept
    )
    parts: Mapping[str, Any] = {
        "name": _keep_running(running.name, loaded.name, "name", kept),
        "admin": _reload_admin(running.admin, loaded.admin, kept),
        "sidecar": _keep_running(running.sidecar, loaded.sidecar, "sidecar", kept),
        "tokens": _keep_running(running.tokens, loaded.tokens, "tokens", kept),
        "listen": _reload_section(
            running.listen, loaded.listen, RELOADABLE_LISTEN_OPTIONS, "listen.", kept
        ),
        "kafka": _reload_clusters(running, loaded, kept),
        "telemetry": _reload_section(
            telemetry.model_copy(update={"logs": logs}),
            loaded.telemetry.model_copy(update={"logs": logs}),
            frozenset(),
            "telemetry.",
            kept,
        ),
    }
    settings = loaded.model_copy(update=dict(parts))
    if kept:
        check_combination(settings, f"until a restart as before: {', '.join(kept)}")
    return ReloadedSettings(settings, tuple(kept))


def check_combination(settings: Settings, reason: str) -> None:
    """Refuse options that are valid in their file, but not together with those from elsewhere.

    A new guard may need `listen.tls.ca`, which is new in the same file, and a sidecar that is gone
    from the file runs on with guards that are gone, too.
    """
    problems = list(check_settings(settings))
    if problems:
        raise ConfigError(
            [f"{format_loc(problem.loc)}: {problem.message} ({reason})" for problem in problems]
        )


def _reload_admin(running: Admin | None, loaded: Admin | None, kept: list[str]) -> Admin | None:
    """Return the new `admin` if its address is unchanged, else the running one.

    Its guards are checked together with its address, so they change together or not at all.
    """
    if running is None or loaded is None:
        return cast("Admin | None", _keep_running(running, loaded, "admin", kept))
    if (running.host, running.port) != (loaded.host, loaded.port):
        kept.append("admin")
        return running
    return loaded


def _reload_clusters(
    running: Settings, loaded: Settings, kept: list[str]
) -> Kafka | dict[str, Kafka]:
    """Return the clusters; refuse a new one. One that is gone is kept, without topics."""
    new = loaded.clusters.keys() - running.clusters.keys()
    if new:
        what = "it is new, and needs a restart"
        raise ConfigError([f"kafka{f'.{name}' if name else ''}: {what}" for name in sorted(new)])
    clusters: dict[str, Kafka] = {}
    for name, kafka in running.clusters.items():
        option = f"kafka.{name}" if name else "kafka"
        new_kafka = loaded.clusters.get(name)
        if new_kafka is not None:
            options = RELOADABLE_KAFKA_OPTIONS
            if _have_same_protocol(kafka.security, new_kafka.security):
                options |= {"security"}
            clusters[name] = _reload_section(kafka, new_kafka, options, f"{option}.", kept)
        else:
            kept.append(option)
            clusters[name] = kafka.model_copy(update={"topics": (), "bootstrap": ()})
    return clusters.get("", clusters)


def _have_same_protocol(running: Security | None, loaded: Security | None) -> bool:
    """Return whether brokers that are connected to in one way can be connected to in the other.

    Passwords and files may differ. For another protocol, brokers have another port.
    """
    if running is None or loaded is None:
        return running is loaded
    return (running.tls is None) == (loaded.tls is None) and (
        (running.sasl is None) == (loaded.sasl is None)
    )


def _reload_section(
    running: SectionT, loaded: SectionT, reloadable: frozenset[str], prefix: str, kept: list[str]
) -> SectionT:
    """Return the running section with the reloadable options as loaded.

    The names of other options that changed are appended to `kept`.
    """
    update = {}
    for name in type(running).model_fields:
        before, now = getattr(running, name), getattr(loaded, name)
        update[name] = (
            now if name in reloadable else _keep_running(before, now, prefix + to_camel(name), kept)
        )
    return running.model_copy(update=update)


def _keep_running(running: Any, loaded: Any, option: str, kept: list[str]) -> Any:
    if running != loaded:
        kept.append(option)
    return running
