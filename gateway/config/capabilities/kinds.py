"""List the capabilities of routes."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from gateway.config.types.forms import Kinds

from .fetch import FetchWith
from .options import With
from .produce import ProduceWith
from .stream import StreamWith

WITH_KINDS: Kinds[With] = Kinds(
    "route",
    {"stream": StreamWith, "fetch": FetchWith, "produce": ProduceWith},
    option="capability",
    default="stream",
)
"""The options of all capabilities, by their `capability`."""

AnyWith: TypeAlias = Annotated[With, WITH_KINDS]
