"""Patterns of topic names: `*` stands for any text, everything else for itself.

Not `fnmatch`: as a regular expression, a client's `*a*a*a*...` takes longer with every star.
"""

from __future__ import annotations


def is_glob(text: str) -> bool:
    return "*" in text


def matches_glob(pattern: str, name: str) -> bool:
    """Whether the whole name is what the pattern says, in a time linear in its length."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, last = rest
    at, end = len(first), len(name) - len(last)
    if at > end or not name.startswith(first) or not name.endswith(last):
        return False
    for part in middle:  # the leftmost place of each leaves the most for those after it
        at = name.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True
