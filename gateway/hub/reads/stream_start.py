"""From what a client brings along to where it stands: tokens, starts and ends.

A token grants nothing and is never believed blindly (`Resumption` in `claims`): its cluster must
be ours, its topics the view's; each place is held against the log before it is used (see `Lacks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from gateway.core.log.partition_reader import EARLIEST, TimestampStart
from gateway.core.log.position import (
    NO_EPOCH,
    RETIRED_EPOCH,
    UNVERIFIED_LINEAGE,
    PartitionPosition,
    Position,
)
from gateway.core.log.record import TopicPartition
from gateway.core.log.tail import Tail
from gateway.core.token.resume_token import ResumeToken, digest_text
from gateway.errors import TokenForeign


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where a client wants to begin and end.

    token:  decoded resume token; beats `origin`.
    origin: `live`, `earliest`, or a time in milliseconds of the epoch.
    until:  `latest` or a time in milliseconds; None for no end.
    count:  records after which to end.
    credit: records that may be sent before more are granted; None for any number.
    snapshot: first the latest of each key; from the beginning, or of what was missed.
    reach:  seconds that its route lets it go back; None for any number.
    """

    token: ResumeToken | None = None
    origin: Literal["live", "earliest"] | int = "live"
    until: Literal["latest"] | int | None = None
    max_records: int | None = None
    credit: int | None = None
    snapshot: bool = False
    max_age: float | None = None

    @property
    def since(self) -> TimestampStart | None:
        """`origin`, if that is where it begins and it is not where the tail stands."""
        if self.token is None and self.snapshot:
            return TimestampStart(EARLIEST)
        if self.token is not None or self.origin == "live":
            return None
        return TimestampStart(EARLIEST if self.origin == "earliest" else self.origin)


def check_token(
    token: ResumeToken, cluster: str, topics: Iterable[str] | Mapping[str, str]
) -> None:
    """Raises TokenForeign if the token is not of this cluster, or of none of the topics; or if it
    is not clear of which, by their ids where they are given."""
    if token.cluster not in (digest_text(cluster), digest_text("")) and cluster:
        raise TokenForeign(
            "the resume token is of another cluster; connect without Last-Event-ID or with ?from="
        )
    if not token.match_topics(topics):
        raise TokenForeign(
            f"the resume token belongs to another stream (here: {', '.join(topics)}); "
            "connect without Last-Event-ID or with ?from="
        )


def build_position(token: ResumeToken, tail: Tail) -> Position:
    """What the token says of each partition, unverified; RETIRED if it is of an earlier topic
    of the name. Partitions it does not speak of came into being after it: they start at 0;
    topics it does not speak of were added to the route: they start with the tail. Partitions
    that only the token knows keep their places until metadata has come to know them: they are few,
    and this client's alone (`Resumption`)."""
    known = token.match_topics(tail.topic_ids)
    own: Position = {
        tp: PartitionPosition(0, NO_EPOCH, UNVERIFIED_LINEAGE)
        for tp in tail.logs
        if tp.topic in known
    }
    for name, topic in known.items():
        ours = topic.matches_id(tail.topic_ids[name])
        for p, (offset, epoch) in enumerate(zip(topic.offsets, topic.epochs, strict=True)):
            place = PartitionPosition(offset, epoch if ours else RETIRED_EPOCH, UNVERIFIED_LINEAGE)
            own[TopicPartition(name, p)] = place
    return own


def has_recreated_topic(token: ResumeToken, tail: Tail) -> bool:
    """Is it of an earlier topic of one of the names?"""
    return any(
        not t.matches_id(tail.topic_ids[name])
        for name, t in token.match_topics(tail.topic_ids).items()
    )


def count_partitions(tps: Mapping[TopicPartition, object]) -> dict[str, int]:
    """How many partitions each topic has."""
    counts: dict[str, int] = {}
    for tp in tps:
        counts[tp.topic] = max(counts.get(tp.topic, 0), tp.partition + 1)
    return counts
