"""Which works there are, in which size, and which peers take part in them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from .feed import Wire
from .kafka import Kafka
from .peers.ours import Ours
from .peers.peer import Peer
from .peers.raw import Raw
from .works import broadcast, pace
from .works.work import Cell

Work: TypeAlias = Callable[[Kafka, Peer], Awaitable[Cell]]

PEERS: Sequence[Peer] = (
    Raw(Wire.SSE),
    Raw(Wire.WS),
    Raw(Wire.SSE, compiled=True),
    Raw(Wire.WS, compiled=True),
    Ours(Wire.SSE),
    Ours(Wire.WS),
)

WORKS: Mapping[str, Work] = {
    "broadcast": partial(broadcast.run, size=broadcast.Size()),
    "joined": partial(broadcast.run, size=broadcast.Size(joined=10)),
    "lat": partial(pace.run, size=pace.Size(repeats=2)),
    "sat": partial(pace.run, size=pace.Size(rate=2000, timed=10, repeats=2)),
}
