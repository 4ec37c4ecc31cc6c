"""What stands in a token, or in an application's answer, as text for templates and roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def get_claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name; where there is none of it, its dots lead into objects. None if there
    is nothing."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for step in name.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def format_claim(value: Any) -> str | None:
    """Text, a number or a truth value as text; None for anything else, and for no text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, (str, int, float)):
        return None
    text = str(value)
    return text if text and _is_unicode(text) else None


def _is_unicode(text: str) -> bool:
    """JSON can write half a surrogate pair, which nothing can encode."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def parse_roles(value: Any) -> frozenset[str]:
    """A list of them, or a text with spaces (RFC 8693 4.2); none in anything else."""
    if isinstance(value, str):
        return frozenset(value.split())
    listed = value if isinstance(value, list) else ()
    return frozenset([each for each in listed if isinstance(each, str) and each])
