"""List how the class of each kind of guard is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.config import X509, GuardSection, Http, Inline, Jwt

from .guard import Guard


# A module is imported when its kind is used: cryptography takes a tenth of a second.
def _load_jwt() -> type[Guard[Any]]:
    from .jwt import JwtGuard

    return JwtGuard


def _load_http() -> type[Guard[Any]]:
    from .http import HttpGuard

    return HttpGuard


def _load_x509() -> type[Guard[Any]]:
    from .x509 import X509Guard

    return X509Guard


def _load_inline() -> type[Guard[Any]]:
    from .inline import InlineGuard

    return InlineGuard


GUARD_LOADERS: dict[type[GuardSection], Callable[[], type[Guard[Any]]]] = {
    Jwt: _load_jwt,
    Http: _load_http,
    X509: _load_x509,
    Inline: _load_inline,
}
"""Functions that import the class of a kind of guard and return it, by its section."""


def get_guard_class(section: GuardSection) -> type[Guard[Any]]:
    return GUARD_LOADERS[type(section)]()
