"""Make text safe for a terminal, and colour it.

Anyone may have written a record. Control characters can make a terminal hide text, send input or
change its title, and bidirectional marks reorder text. Both are replaced by JSON's escapes, so that
JSON stays JSON.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import IO, Any

_CONTROL_CHARACTERS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_JSON_TOKEN = re.compile(
    r'(?P<key>"(?:\\.|[^"\\])*")(?=\s*:)|(?P<text>"(?:\\.|[^"\\])*")'
    r"|(?P<number>-?\d[\d.eE+-]*)|(?P<word>true|false|null)"
)

Colours = Mapping[str, str]
"""The SGR parameters of ECMA-48, by tone."""

COLOURS: Colours = {
    "key": "34",
    "text": "32",
    "number": "36",
    "word": "35",
    "time": "2",
    "place": "33",
    "dim": "2",
    "good": "32",
    "warn": "33",
    "bad": "31",
}
NO_COLOURS: Colours = {}


def escape_controls(text: str, allowed: str = "") -> str:
    return _CONTROL_CHARACTERS.sub(
        lambda m: m[0] if m[0] in allowed else f"\\u{ord(m[0]):04x}", text
    )


def paint(text: str, tone: str, colours: Colours) -> str:
    code = colours.get(tone)
    return f"\x1b[{code}m{text}\x1b[0m" if code and text else text


def paint_json(text: str, colours: Colours) -> str:
    """Return JSON whose names, strings, numbers and words have colours. It must be escaped."""
    if not colours:
        return text
    return _JSON_TOKEN.sub(lambda m: paint(m[0], m.lastgroup or "", colours), text)


def select_colours(stream: IO[Any], environ: Mapping[str, str] = os.environ) -> Colours:
    """Return the colours of an output; none without a terminal, or with NO_COLOR (no-color.org)."""
    wanted = stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    return COLOURS if wanted else NO_COLOURS
