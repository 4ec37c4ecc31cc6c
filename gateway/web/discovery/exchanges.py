"""Describe requests that have one response: documents, writes of records, and their replies."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gateway.config import Route, Settings
from gateway.web.access.security_schemes import SecurityScheme
from gateway.web.exchange.kinds import get_exchange

from .messages import build_security_schemes


class ExchangeDescription(NamedTuple):
    """One method of one path. Created by `list_exchanges`; it never changes."""

    method: str
    path: str
    route: Route
    security_schemes: tuple[Mapping[str, SecurityScheme], ...] = ()

    @property
    def action(self) -> str:
        return get_exchange(self.route.with_).describe(self.route.with_)

    def format_line(self, base_url: str) -> str:
        """Return a line for a terminal, with the names of path parameters as values to replace."""
        schemes = [next(iter(guard_schemes.values())) for guard_schemes in self.security_schemes]
        query = "&".join([scheme.query for scheme in schemes if scheme.query])
        url = shlex.quote(base_url + self.path + (f"?{query}" if query else ""))
        options = "" if self.method == "GET" else f" -X {self.method}"
        body = " -H 'Content-Type: application/json' -d '{}'"
        options += body if self.method in ("POST", "PUT", "PATCH") else ""
        options += "".join([f" {scheme.curl}" for scheme in schemes if scheme.curl])
        return f"curl{options} {url}"

    def to_json(self, base_url: str) -> dict[str, Any]:
        with_ = self.route.with_
        members = {"method": self.method, "path": self.path, "capability": with_.capability}
        template = with_.reply_location
        location = {} if template is None else {"location": str(template)}
        return {
            **members,
            "topics": tuple(str(source) for source in with_.topic_templates),
            "replies": with_.reply_topic is not None,
            **location,
            "guarded": tuple(self.route.guarded),
            "line": self.format_line(base_url),
        }


def list_exchanges(settings: Settings) -> tuple[ExchangeDescription, ...]:
    return tuple(_iter_exchanges(settings))


def _iter_exchanges(settings: Settings) -> Iterator[ExchangeDescription]:
    schemes_by_guard = build_security_schemes(settings)
    for route in settings.routes:
        if not route.is_stream:
            schemes = tuple(schemes_by_guard[name] for name in route.guarded)
            for when in route.when:
                yield ExchangeDescription(route.get_method(when), when.path, route, schemes)
