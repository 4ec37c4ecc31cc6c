"""List the works, their sizes, and the peers that take part in each."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from .feed import Wire
from .peers.gateway_peer import GatewayPeer
from .peers.others import Centrifugo, EachConsumer, Nchan, SharedConsumer
from .peers.peer import Participant, Peer, SparkPeer
from .peers.raw import CompiledLoop, RawLoop
from .peers.transfer_servers import TransferPeer
from .results import Cell

# The gateway is first: it sets the pace at which the bare loops go a second time.
STREAM_PEERS: Sequence[Peer] = (
    *map(GatewayPeer, Wire), *map(RawLoop, Wire), *map(CompiledLoop, Wire),
    EachConsumer(Wire.SSE), SharedConsumer(Wire.SSE), *map(Nchan, Wire), *map(Centrifugo, Wire),
)  # fmt: skip
PEERS: Sequence[Participant] = (*STREAM_PEERS, TransferPeer(), SparkPeer())


class Work(NamedTuple):
    """A module of `bench.works` with `run(kafka, peer, size)`, and what its `Size` is made with.

    peer: whose it is: those whose names begin so; every server of streams if empty.
    node_count: brokers that it has; 0 if it starts its own. is_named: it takes minutes, or is
    compared with nobody, so it is done only where it is named. is_pinned: server and clients have a
    core each.
    """

    module: str
    options: Mapping[str, Any] = {}
    peer: str = ""
    node_count: int = 1
    is_named: bool = False
    is_pinned: bool = True

    def run(
        self, kafka: Any, peer: Participant, **options: Any
    ) -> Coroutine[Any, Any, Cell] | Cell:
        """Only of Spark's jobs, which block, the cell itself. options: of this run."""
        module = import_module(f"{__package__}.works.{self.module}")
        found: Coroutine[Any, Any, Cell] | Cell
        found = module.run(kafka, peer, module.Size(**self.options), **options)
        return found


SATURATING = {"rate": 2000, "seconds": 1.2, "timed_every": 10, "repeats": 5}
OWN_KEYS = {"clients": 2000, "has_own_keys": True, "rate": 4000, "seconds": 1.2, "repeats": 5}
CURVE = {"clients": (10, 100, 1000, 5000, 10_000), "repeat_s": 1.0, "repeats": 1}
GATEWAY, ONE_WIRE = "gateway", "gateway-sse"

# Those with a goal are first: the time may be up before the end.
WORKS: Mapping[str, Work] = {
    "broadcast": Work("broadcast", {"repeat_s": 0.5}),
    "joined": Work("broadcast", {"batch_records": 10, "repeat_s": 0.4}),
    "lat": Work("pace", {"seconds": 1.5, "repeats": 5}),
    "sat": Work("pace", SATURATING),
    "keys": Work("pace", OWN_KEYS),
    "catchup": Work("catchup"),
    "storm": Work("storm"),
    "idle": Work("idle"),
    "partitions": Work("partitions", peer=GATEWAY),
    "loop": Work("loop", peer=GATEWAY),
    "sat-workers": Work("pace", {**SATURATING, "workers": 2}, GATEWAY),
    "keys-workers": Work("pace", {**OWN_KEYS, "workers": 2}, GATEWAY),
    "clients": Work("broadcast", CURVE),
    "deflate": Work("deflate", peer=GATEWAY),
    "sidecar-produce": Work("transfer", {"work": "produce"}, "sidecar"),
    "sidecar-consume": Work("transfer", {"work": "consume"}, "sidecar"),
    "crowd": Work("crowd", peer=GATEWAY, is_named=True),
    "overload": Work("overload", peer=GATEWAY, is_named=True),
    # Where there are no connections, nothing differs by the wire.
    "million": Work("million", peer=ONE_WIRE, is_named=True),
    "begin": Work("begin", {}, ONE_WIRE, 1, True, False),
    "begin-leaderless": Work("begin", {"is_leaderless": True}, ONE_WIRE, 3, True, False),
    "failover": Work("failover", {}, ONE_WIRE, 3, True, False),
    "rebalance": Work("rebalance", {}, "sidecar", 1, True, False),
    "rolling": Work("rolling", {}, ONE_WIRE, 1, True, False),
    "console": Work("console", {}, ONE_WIRE, 0, True, False),
    **{
        f"spark-{name}": Work("spark", {"measurement": name}, "spark", 0, True, False)
        for name in ("enrich", "exactly_once", "join", "latency", "restart", "sessions")
    },
}


def takes_part(peer: Participant, name: str) -> bool:
    """Whether a work is one of this peer's."""
    prefix = WORKS[name].peer
    is_asked = peer.name.startswith(prefix) if prefix else isinstance(peer, Peer)
    return is_asked and not peer.skips(name)
