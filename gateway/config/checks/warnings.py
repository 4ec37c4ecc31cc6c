"""Find settings that are valid, but perhaps not as meant."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config.sections.kafka import Kafka
from gateway.config.sections.listen import Allow, Expose
from gateway.config.sections.settings import Settings
from gateway.config.source.problems import format_loc
from gateway.config.types.fields import Secret
from gateway.config.types.section import Section
from gateway.config.types.units import format_size


def iter_warnings(settings: Settings) -> Iterator[str]:
    """Yield one line for each doubtful setting: `option: problem; remedy`."""
    clusters = settings.clusters
    caches = sum(topic.cache.bytes for kafka in clusters.values() for topic in kafka.topics)
    if caches > settings.memory:
        bound, total = format_size(settings.memory), format_size(caches)
        yield f"memory: {bound} is less than all caches, {total}; raise it or lower them"
    for name, kafka in clusters.items():
        yield from _check_kafka(f"kafka.{name}" if name else "kafka", kafka)
    route_access = (
        (f"routes[{n}]", route.access_control) for n, route in enumerate(settings.routes)
    )
    for prefix, access in (("listen", settings.listen.access_control), *route_access):
        is_same_origin = access is not None and access.policy == "same-origin"
        if is_same_origin and access and (access.allow, access.expose) != (Allow(), Expose()):
            yield f"{prefix}.access-control: allow and expose need policy: cross-origin; set it"
    for name, guard in settings.guards.items():
        for problem in guard.iter_warnings():
            yield f"{format_loc(('guards', name, *problem.loc))}: {problem.message}"
    for option in iter_literal_secrets(settings):
        yield f"{option}: a secret stands in the file; use ${{env.NAME}} or ${{file:path}}"


def _check_kafka(prefix: str, kafka: Kafka) -> Iterator[str]:
    tls, sasl = kafka.security.tls, kafka.security.sasl
    if tls and not tls.verify:
        yield f"{prefix}.security.tls.verify: anyone may pose as the broker; use it for tests only"
    if sasl and not tls:
        yield f"{prefix}.security.sasl: credentials travel unencrypted; add {prefix}.security.tls"
    if kafka.servers == "embedded" and (tls or sasl):
        yield f"{prefix}.security: the embedded broker has none; remove it"


def iter_literal_secrets(section: Section, prefix: str = "") -> Iterator[str]:
    """Yield the options whose secret stands in the file itself."""
    for name, field in type(section).model_fields.items():
        yield from _iter_secrets_of_value(
            getattr(section, name), f"{prefix}.{field.alias or name}".lstrip(".")
        )


def _iter_secrets_of_value(value: object, option: str) -> Iterator[str]:
    if isinstance(value, Secret) and value.source is None:
        yield option
    elif isinstance(value, Section):
        yield from iter_literal_secrets(value, option)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _iter_secrets_of_value(item, f"{option}[{index}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _iter_secrets_of_value(item, f"{option}.{name}")
