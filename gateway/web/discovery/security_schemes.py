"""Name the security schemes of all guards, for documents and terminals."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.config import Settings
from gateway.web.access.kinds import get_guard_class
from gateway.web.access.security_schemes import SecurityScheme


def build_security_schemes(settings: Settings) -> Mapping[str, Mapping[str, SecurityScheme]]:
    """Return the schemes by guard, under names that are unique and allowed in a document."""
    guard_names = {name for route in settings.routes for name in route.guarded}
    taken: set[str] = set()
    return {
        name: {
            _choose_unique_name(name, taken): scheme
            for scheme in get_guard_class(settings.guards[name]).describe(settings.guards[name])
        }
        for name in sorted(guard_names)
    }


def _choose_unique_name(name: str, taken: set[str]) -> str:
    slug = unique_name = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    number = 1
    while unique_name in taken:
        number += 1
        unique_name = f"{slug}-{number}"
    taken.add(unique_name)
    return unique_name
