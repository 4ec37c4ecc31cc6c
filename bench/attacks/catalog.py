"""All attacks, by name."""

from __future__ import annotations

from collections.abc import Mapping

from . import crowds, forged, heads, sockets, values
from .attack import Attack

ATTACKS: Mapping[str, Attack] = {
    **forged.ATTACKS,
    **heads.ATTACKS,
    **sockets.ATTACKS,
    **values.ATTACKS,
    **crowds.ATTACKS,
}
