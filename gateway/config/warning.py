"""What works, but perhaps not as meant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .fields import Secret
from .listen import Allow, Expose
from .section import Section
from .units import show_size

if TYPE_CHECKING:
    from .settings import Settings


def warnings(settings: Settings) -> Iterator[str]:
    """One line each: `option: what; what to do`."""
    kafka = settings.kafka
    caches = sum(topic.cache.bytes for topic in kafka.topics)
    if caches > settings.memory:
        bound, want = show_size(settings.memory), show_size(caches)
        yield f"memory: {bound} is less than all caches, {want}; raise it or lower them"
    tls, sasl = kafka.security.tls, kafka.security.sasl
    if tls and not tls.verify:
        yield "kafka.security.tls.verify: anyone may pose as the broker; use it for tests only"
    if sasl and not tls:
        yield "kafka.security.sasl: credentials travel unencrypted; add kafka.security.tls"
    if kafka.servers == "embedded" and (tls or sasl):
        yield "kafka.security: the embedded broker has none; remove it"
    access = settings.listen.access_control
    if access.policy == "same-origin" and (access.allow, access.expose) != (Allow(), Expose()):
        yield "listen.access-control: allow and expose need policy: cross-origin; set it"
    for option in literal_secrets(settings):
        yield f"{option}: a secret stands in the file; use ${{env.NAME}} or ${{file:path}}"


def literal_secrets(section: Section, way: str = "") -> Iterator[str]:
    """The options whose secret is written out."""
    for name, field in type(section).model_fields.items():
        yield from _literal(getattr(section, name), f"{way}.{field.alias or name}".lstrip("."))


def _literal(value: object, way: str) -> Iterator[str]:
    if isinstance(value, Secret) and value.source is None:
        yield way
    elif isinstance(value, Section):
        yield from literal_secrets(value, way)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _literal(item, f"{way}[{index}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _literal(item, f"{way}.{name}")
