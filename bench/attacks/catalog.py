"""List all attacks by their names."""

from __future__ import annotations

from collections.abc import Mapping

from . import floods, heads, sockets, tokens, values
from .attack import Attack

ATTACKS: Mapping[str, Attack] = {
    **tokens.ATTACKS,
    **heads.ATTACKS,
    **sockets.ATTACKS,
    **values.ATTACKS,
    **floods.ATTACKS,
}
