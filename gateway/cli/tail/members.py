"""JSON taken apart without reading it: the members' own text, to the last digit."""

from __future__ import annotations

import json
import re

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


def members(text: str) -> dict[str, str]:
    """The members of an object, each as its text. ValueError if it is none."""
    found: dict[str, str] = {}
    at = _skip(text, _opened(text, "{"))
    while text[at] != "}":
        name, end = _DECODER.raw_decode(text, at)
        at = _skip(text, _skip(text, end) + 1)  # the colon
        _, end = _DECODER.raw_decode(text, at)
        found[str(name)] = text[at:end]
        at = _next(text, end)
    return found


def elements(text: str) -> list[str]:
    """The elements of an array, each as its text. ValueError if it is none."""
    found: list[str] = []
    at = _skip(text, _opened(text, "["))
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        found.append(text[at:end])
        at = _next(text, end)
    return found


def _opened(text: str, bracket: str) -> int:
    json.loads(text)  # what follows may rely on it
    at = _skip(text, 0)
    if text[at] != bracket:
        raise ValueError(f"not what begins with {bracket}")
    return at + 1


def _next(text: str, end: int) -> int:
    at = _skip(text, end)
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None  # it matches the empty text, too
    return match.end()
