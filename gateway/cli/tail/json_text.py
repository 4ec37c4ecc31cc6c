"""Split JSON into the texts of its members or elements.

The texts are those of the input, so that numbers keep all digits and strings their escapes.
"""

from __future__ import annotations

import json
import re

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


def split_members(text: str) -> dict[str, str]:
    """Return the members of an object as texts; raise ValueError for other JSON."""
    members: dict[str, str] = {}
    at = _skip_whitespace(text, _skip_bracket(text, "{"))
    while text[at] != "}":
        name, end = _DECODER.raw_decode(text, at)
        at = _skip_whitespace(text, _skip_whitespace(text, end) + 1)  # the colon
        _, end = _DECODER.raw_decode(text, at)
        members[str(name)] = text[at:end]
        at = _skip_comma(text, end)
    return members


def split_elements(text: str) -> list[str]:
    elements: list[str] = []
    at = _skip_whitespace(text, _skip_bracket(text, "["))
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        elements.append(text[at:end])
        at = _skip_comma(text, end)
    return elements


def _skip_bracket(text: str, bracket: str) -> int:
    json.loads(text)  # what follows relies on valid JSON
    at = _skip_whitespace(text, 0)
    if text[at] != bracket:
        raise ValueError(f"the text does not begin with {bracket}")
    return at + 1


def _skip_comma(text: str, end: int) -> int:
    at = _skip_whitespace(text, end)
    return _skip_whitespace(text, at + 1) if text[at] == "," else at


def _skip_whitespace(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None  # the pattern also matches the empty text
    return match.end()
