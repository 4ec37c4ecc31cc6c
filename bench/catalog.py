"""List the works, their sizes, and the peers that take part in each."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from . import backoff, begin, codec, failover, rebalance, retention, slow
from .feed import Wire
from .peers.by_hand import HandWrittenPeer
from .peers.centrifugo import Centrifugo
from .peers.gateway_peer import GatewayPeer
from .peers.nchan import Nchan
from .peers.peer import Participant, Peer
from .peers.raw import RawLoop
from .peers.transfer_servers import TransferPeer
from .works import (
    alone,
    broadcast,
    catchup,
    crowd,
    deflate,
    first,
    idle,
    loop,
    million,
    overload,
    pace,
    partitions,
    storm,
    telemetry,
    transfer,
)
from .works.work import Cell

Work: TypeAlias = Callable[..., Coroutine[Any, Any, Cell]]  # of a Kafka and a peer

# The gateway is first: it sets the pace at which the bare loops go a second time.
STREAM_PEERS: Sequence[Peer] = (
    GatewayPeer(Wire.SSE),
    GatewayPeer(Wire.WS),
    RawLoop(Wire.SSE),
    RawLoop(Wire.WS),
    RawLoop(Wire.SSE, is_compiled=True),
    RawLoop(Wire.WS, is_compiled=True),
    HandWrittenPeer("each"),
    HandWrittenPeer("shared"),
    Nchan(Wire.SSE),
    Nchan(Wire.WS),
    Centrifugo(Wire.SSE),
    Centrifugo(Wire.WS),
)
PEERS: Sequence[Participant] = (*STREAM_PEERS, TransferPeer())

SATURATING = pace.Size(rate=2000, seconds=1.2, timed_every=10, repeats=5)
OWN_KEYS = pace.Size(clients=2000, has_own_keys=True, rate=4000, seconds=1.2, repeats=5)

# Of this gateway alone, and on how many brokers.
ALONE: Mapping[str, tuple[int, alone.Measurement]] = {
    "codec": (1, codec.measure),
    "begin": (1, begin.measure),
    "begin-leaderless": (3, begin.measure_leaderless),
    "slow": (1, slow.measure),
    "retention": (1, retention.measure),
    "long-retention": (1, partial(retention.measure, size=retention.STORM)),
    "backoff": (1, backoff.measure),
    "rebalance": (1, rebalance.measure),
    "failover": (3, failover.measure),
}

# Those with a goal are first: the time may be up before the end.
WORKS: Mapping[str, Work] = {
    "broadcast": partial(broadcast.run, size=broadcast.Size(repeat_s=0.5)),
    "joined": partial(broadcast.run, size=broadcast.Size(batch_records=10, repeat_s=0.4)),
    "lat": partial(pace.run, size=pace.Size(seconds=1.5, repeats=5)),
    "sat": partial(pace.run, size=SATURATING),
    "keys": partial(pace.run, size=OWN_KEYS),
    "catchup": partial(catchup.run, size=catchup.Size()),
    "storm": partial(storm.run, size=storm.Size()),
    "idle": partial(idle.run, size=idle.Size()),
    "first": partial(first.run, size=first.Size()),
    "partitions": partial(partitions.run, size=partitions.Size()),
    "loop": partial(loop.run, size=loop.Size()),
    "sat-workers": partial(pace.run, size=replace(SATURATING, workers=2)),
    "keys-workers": partial(pace.run, size=replace(OWN_KEYS, workers=2)),
    "telemetry": partial(telemetry.run, size=telemetry.Size()),
    "clients": partial(
        broadcast.run,
        size=broadcast.Size(clients=(10, 100, 1000, 5000, 10_000), repeat_s=1.0, repeats=1),
    ),
    "deflate": partial(deflate.run, size=deflate.Size()),
    "sidecar-produce": partial(transfer.run, size=transfer.Size("produce", bridge_records=2000)),
    "sidecar-consume": partial(transfer.run, size=transfer.Size("consume")),
    "crowd": partial(crowd.run, size=crowd.Size()),
    "million": partial(million.run, size=million.Size()),
    "overload": partial(overload.run, size=overload.Size()),
    **{name: partial(alone.run, measure=measure) for name, (_, measure) in ALONE.items()},
}
# Minutes each, or nothing to be compared with a peer's: only done where they are named.
NAMED_WORKS = frozenset({"crowd", "million", "overload", *ALONE})


def takes_part(peer: Participant, work: str) -> bool:
    """Streams are for who serves them."""
    if work in ALONE:
        return peer == STREAM_PEERS[0]
    return work not in peer.skipped_works and work.startswith("sidecar-") == isinstance(
        peer, TransferPeer
    )


def get_work(name: str, peer: Participant, round_rates: Mapping[str, float]) -> Work:
    """A work as this peer does it. pace: rounds a second by case, for who has no Kafka before it
    that would set one."""
    paced = name in ("broadcast", "joined") and isinstance(peer, RawLoop)
    return partial(WORKS[name], round_rates=round_rates) if paced else WORKS[name]
