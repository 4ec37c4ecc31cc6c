"""Match topic names with patterns in which `*` stands for any text and all else for itself.

It does not use `fnmatch`: as a regular expression, a client's `*a*a*a*...` takes longer with every
star.
"""

from __future__ import annotations


def is_glob(text: str) -> bool:
    return "*" in text


def matches_glob(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a whole name, in time linear in the name's length."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, last = rest
    start, end = len(first), len(name) - len(last)
    if start > end or not name.startswith(first) or not name.endswith(last):
        return False
    for part in middle:  # the leftmost match of each part leaves the most for the next ones
        start = name.find(part, start, end)
        if start < 0:
            return False
        start += len(part)
    return True
