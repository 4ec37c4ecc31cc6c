"""JSON taken apart without reading it: the members' own text, to the last digit."""

from __future__ import annotations

import json
import re

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


def split_members(text: str) -> dict[str, str]:
    """The members of an object, each as its text. ValueError if it is none."""
    found: dict[str, str] = {}
    at = _skip_whitespace(text, _skip_bracket(text, "{"))
    while text[at] != "}":
        name, end = _DECODER.raw_decode(text, at)
        at = _skip_whitespace(text, _skip_whitespace(text, end) + 1)  # the colon
        _, end = _DECODER.raw_decode(text, at)
        found[str(name)] = text[at:end]
        at = _skip_comma(text, end)
    return found


def split_elements(text: str) -> list[str]:
    """The elements of an array, each as its text. ValueError if it is none."""
    found: list[str] = []
    at = _skip_whitespace(text, _skip_bracket(text, "["))
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        found.append(text[at:end])
        at = _skip_comma(text, end)
    return found


def _skip_bracket(text: str, bracket: str) -> int:
    json.loads(text)  # what follows may rely on it
    at = _skip_whitespace(text, 0)
    if text[at] != bracket:
        raise ValueError(f"not what begins with {bracket}")
    return at + 1


def _skip_comma(text: str, end: int) -> int:
    at = _skip_whitespace(text, end)
    return _skip_whitespace(text, at + 1) if text[at] == "," else at


def _skip_whitespace(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None  # it matches the empty text, too
    return match.end()
