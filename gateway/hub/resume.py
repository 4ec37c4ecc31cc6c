"""From what a client brings along to where it stands: tokens, starts and ends.

A token grants nothing and is never believed blindly: its cluster must be ours, its topics
the view's; each place is held against the log before it is used (see `Client`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..core.position import NO_EPOCH, UNVERIFIED, Place, Position
from ..core.record import Gap, Reason, TopicPartition
from ..core.tail import Tail
from ..core.token import Token, digest
from ..errors import TokenForeign


@dataclass(frozen=True, slots=True)
class Start:
    """Where a client wants to begin and end.

    token:  decoded resume token; beats `origin`.
    origin: `live`, `earliest`, or a time in milliseconds of the epoch.
    until:  `latest` or a time in milliseconds; None for no end.
    count:  records after which to end.
    """

    token: Token | None = None
    origin: Literal["live", "earliest"] | int = "live"
    until: Literal["latest"] | int | None = None
    count: int | None = None


def check(token: Token, cluster: str, topics: tuple[str, ...]) -> None:
    """Raises TokenForeign if the token is not of this cluster, or of none of the topics."""
    if token.cluster not in (digest(cluster), digest("")) and cluster:
        raise TokenForeign(
            "the resume token is of another cluster; connect without Last-Event-ID or with ?from="
        )
    if not token.among(topics):
        raise TokenForeign(
            f"the resume token belongs to another stream (here: {', '.join(topics)}); "
            "connect without Last-Event-ID or with ?from="
        )


def places(token: Token, tail: Tail) -> tuple[Position, list[tuple[TopicPartition, Place, Gap]]]:
    """What the token says of each partition, unverified, and gaps to tell: topics created
    anew. Partitions it does not speak of came into being after it: they start at 0; topics
    it does not speak of were added to the route: they start with the tail."""
    own: Position = {}
    gaps: list[tuple[TopicPartition, Place, Gap]] = []
    known = token.among(tail.ids)
    for tp, log in tail.logs.items():
        topic = known.get(tp.topic)
        if topic is None:
            continue
        if tp.partition >= len(topic.offsets):
            own[tp] = Place(0, NO_EPOCH, UNVERIFIED)
            continue
        offset, epoch = topic.offsets[tp.partition], topic.epochs[tp.partition]
        own[tp] = Place(offset, epoch, UNVERIFIED)
        if not topic.is_topic(tail.ids[tp.topic]):
            at = offset or 0
            gap = Gap(tp, at, 0, NO_EPOCH, Reason.RECREATED)
            gaps.append((tp, Place(0, NO_EPOCH, log.lineage), gap))
    return own, gaps


def named(tps: Mapping[TopicPartition, object]) -> dict[str, int]:
    """How many partitions each topic has."""
    counts: dict[str, int] = {}
    for tp in tps:
        counts[tp.topic] = max(counts.get(tp.topic, 0), tp.partition + 1)
    return counts
