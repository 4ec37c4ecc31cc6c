"""Escape texts of the code for Markdown."""

from __future__ import annotations

_ENTITIES = str.maketrans({"<": "&lt;", "[": "&#91;", "*": "&#42;", "|": "&#124;"})


def escape_markdown(text: str) -> str:
    """Return a text whose `<`, `[`, `*` and `|` mean themselves; code in backticks stays code."""
    parts = text.split("`")
    return "`".join(
        part.replace("|", "\\|") if n % 2 else part.translate(_ENTITIES)
        for n, part in enumerate(parts)
    )
