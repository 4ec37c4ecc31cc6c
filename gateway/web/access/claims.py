"""Read claims of a token, or of an application's response, as text for templates and roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def format_claim(value: Any) -> str | None:
    """Return a string, number or boolean as text; None for anything else and for empty text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, (str, int, float)):
        return None
    text = str(value)
    return text if text and _is_unicode(text) else None


def _is_unicode(text: str) -> bool:
    """Return whether text can be encoded: JSON can contain half a surrogate pair, which cannot."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def parse_roles(value: Any) -> frozenset[str]:
    """Return the roles of a list, of text with spaces (RFC 8693 4.2), or of an object by role.

    Of an object, such as `{"admin": {"org": "a"}}`, members that are false or null are no roles.
    """
    if isinstance(value, str):
        return frozenset(value.split())
    if isinstance(value, Mapping):
        value = [role for role, granted in value.items() if granted not in (False, None)]
    listed = value if isinstance(value, list) else ()
    return frozenset([role for role in listed if isinstance(role, str) and role])
