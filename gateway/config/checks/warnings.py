"""Find settings that are valid, but perhaps not as meant."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from gateway.config.sections.guard import Guard, Http
from gateway.config.sections.jwt import Jwt
from gateway.config.sections.kafka import Kafka
from gateway.config.sections.listen import Allow, Expose
from gateway.config.sections.settings import Settings
from gateway.config.types.fields import Secret
from gateway.config.types.section import Section
from gateway.config.types.units import format_size

from .guards import is_loopback


def iter_warnings(settings: Settings) -> Iterator[str]:
    """Yield one line for each doubtful setting: `option: what is wrong; what to do`."""
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
        yield from _check_guard(f"guards.{name}", guard)
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


def _check_guard(prefix: str, guard: Guard) -> Iterator[str]:
    url = guard.keys if isinstance(guard, Jwt) else guard.url if isinstance(guard, Http) else ""
    if isinstance(url, str) and url.startswith("http:") and not is_loopback(urlsplit(url).hostname):
        option = "keys" if isinstance(guard, Jwt) else "url"
        yield f"{prefix}.{option}: whoever is on the way there lets in whom he likes; use https"
    if not isinstance(guard, Jwt):
        return
    keys = () if isinstance(guard.keys, str) else guard.keys
    if guard.audience is None and not (keys and all(key.kty == "oct" for key in keys)):
        yield f"{prefix}: tokens of the issuer for other services are taken, too; set audience"
    for index, key in enumerate(keys):
        least = 2048 if key.kty == "RSA" else 256  # RFC 7518 3.2, 3.3
        if key.kty in ("RSA", "oct") and key.key_bits < least:
            what = f"a key of {key.key_bits} bits can be found out; use {least} or more"
            yield f"{prefix}.keys[{index}]: {what}"


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
