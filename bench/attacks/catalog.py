"""List all attacks by their names, in the order of their modules."""

from __future__ import annotations

from . import floods, heads, sockets, tokens, values  # noqa: F401  (they list theirs)
from .attack import ATTACKS

__all__ = ["ATTACKS"]
