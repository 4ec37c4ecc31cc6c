"""Which works there are, in which size, and which peers take part in them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from .feed import Wire
from .peers.by_hand import ByHand
from .peers.carriers import Carriers
from .peers.centrifugo import Centrifugo
from .peers.nchan import Nchan
from .peers.ours import Ours
from .peers.peer import Partaker, Peer
from .peers.raw import Raw
from .works import (
    broadcast,
    carrying,
    catchup,
    deflate,
    first,
    idle,
    loop,
    pace,
    partitions,
    storm,
    telemetry,
)
from .works.work import Cell

Work: TypeAlias = Callable[..., Coroutine[Any, Any, Cell]]  # of a Kafka and a peer

# The gateway is first: it sets the pace at which the bare loops go a second time.
STREAMS: Sequence[Peer] = (
    Ours(Wire.SSE),
    Ours(Wire.WS),
    Raw(Wire.SSE),
    Raw(Wire.WS),
    Raw(Wire.SSE, compiled=True),
    Raw(Wire.WS, compiled=True),
    ByHand("each"),
    ByHand("shared"),
    Nchan(Wire.SSE),
    Nchan(Wire.WS),
    Centrifugo(Wire.SSE),
    Centrifugo(Wire.WS),
)
PEERS: Sequence[Partaker] = (*STREAMS, Carriers())

# Those with a goal are first: the time may be up before the end.
WORKS: Mapping[str, Work] = {
    "broadcast": partial(broadcast.run, size=broadcast.Size(seconds=0.5)),
    "joined": partial(broadcast.run, size=broadcast.Size(joined=10, seconds=0.4)),
    "lat": partial(pace.run, size=pace.Size(seconds=1.5, repeats=5)),
    "sat": partial(pace.run, size=pace.Size(rate=2000, seconds=1.2, timed=10, repeats=5)),
    "keys": partial(
        pace.run, size=pace.Size(clients=2000, keys=True, rate=4000, seconds=1.2, repeats=5)
    ),
    "catchup": partial(catchup.run, size=catchup.Size()),
    "storm": partial(storm.run, size=storm.Size()),
    "idle": partial(idle.run, size=idle.Size()),
    "first": partial(first.run, size=first.Size()),
    "partitions": partial(partitions.run, size=partitions.Size()),
    "loop": partial(loop.run, size=loop.Size()),
    "telemetry": partial(telemetry.run, size=telemetry.Size()),
    "clients": partial(
        broadcast.run,
        size=broadcast.Size(clients=(10, 100, 1000, 5000, 10_000), seconds=1.0, repeats=1),
    ),
    "deflate": partial(deflate.run, size=deflate.Size()),
    "sidecar-produce": partial(carrying.run, size=carrying.Size("produce", by_hand=2000)),
    "sidecar-consume": partial(carrying.run, size=carrying.Size("consume")),
}


def takes_part(peer: Partaker, work: str) -> bool:
    """Streams are for who serves them."""
    return work not in peer.skips and work.startswith("sidecar-") == isinstance(peer, Carriers)


def work_of(name: str, peer: Partaker, pace: Mapping[str, float]) -> Work:
    """A work as this peer does it. pace: rounds a second by case, for who has no Kafka before it
    that would set one."""
    paced = name in ("broadcast", "joined") and isinstance(peer, Raw)
    return partial(WORKS[name], pace=pace) if paced else WORKS[name]
