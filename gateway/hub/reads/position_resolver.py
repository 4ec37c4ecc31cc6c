"""Turn a resume token, or another start, into the position of a client.

A token grants nothing and is never trusted blindly (`TokenVerifier`): its cluster must be ours and
its topics those of the view, and each position is verified against the log before it is used
(`Backfill`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from gateway.core.log.partition_reader import EARLIEST, TimestampStart
from gateway.core.log.record import (
    NO_EPOCH,
    RETIRED_EPOCH,
    UNVERIFIED_LINEAGE,
    PartitionPosition,
    Position,
    TopicPartition,
)
from gateway.core.log.tail import Tail
from gateway.core.token.resume_token import ResumeToken, digest_text
from gateway.core.token.token_parser import TokenTopic
from gateway.errors import TokenForeign


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where a client wants to begin and end.

    Attributes:
        token: The resume token; it takes precedence over `origin`.
        origin: `live`, `earliest`, or a time in milliseconds since 1970.
        until: `latest`, or a time in milliseconds since 1970; None for no end.
        credit: The number of records that may be sent before more are granted; None for any number.
        snapshot: Send the latest record of each key first: of the whole topic, or of what was
            missed since the token.
        max_age: Seconds that the route lets the client go back; None for any number.
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
        """Return `origin` as a start by time; None if the client resumes or begins live."""
        if self.token is None and self.snapshot:
            return TimestampStart(EARLIEST)
        if self.token is not None or self.origin == "live":
            return None
        return TimestampStart(EARLIEST if self.origin == "earliest" else self.origin)


def check_token(
    token: ResumeToken, cluster: str, topics: Iterable[str] | Mapping[str, str]
) -> dict[str, TokenTopic]:
    """Return the topics of a token that are among those of the client, by name.

    Raises:
        TokenForeign: It is of another cluster or of other topics, or it is not clear of which
            topics.
    """
    # Either side may not have known the id of its cluster.
    if token.cluster not in (digest_text(cluster), digest_text("")) and cluster:
        raise TokenForeign(
            "the resume token is of another cluster; connect without Last-Event-ID or with ?from="
        )
    matched = token.match_topics(topics)
    if not matched:
        raise TokenForeign(
            f"the resume token belongs to another stream (here: {', '.join(topics)}); "
            "connect without Last-Event-ID or with ?from="
        )
    return matched


def build_position(token: ResumeToken, tail: Tail) -> Position:
    """Return what a token says of each partition, unverified.

    Positions of an earlier topic of the same name have the epoch `RETIRED_EPOCH`. Partitions of the
    token's topics that it does not mention were added after it was issued: they start at 0. Topics
    that it does not mention were added to the route: they start with the tail. Partitions that only
    the token knows keep their positions until metadata knows them, too (`TokenVerifier`).
    """
    token_topics = token.match_topics(tail.topic_ids)
    position: Position = {}
    for name, topic in token_topics.items():
        position |= _build_topic_position(name, topic, topic.matches_id(tail.topic_ids[name]))
    for tp in tail.logs:
        if tp not in position and tp.topic in token_topics:
            position[tp] = PartitionPosition(0, NO_EPOCH, UNVERIFIED_LINEAGE)
    return position


@lru_cache(32)  # after a deploy thousands come back from one position: 15 us each
def _build_topic_position(
    name: str, topic: TokenTopic, is_same_topic: bool
) -> Mapping[TopicPartition, PartitionPosition]:
    return {
        TopicPartition(name, partition): PartitionPosition(
            offset, epoch if is_same_topic else RETIRED_EPOCH, UNVERIFIED_LINEAGE
        )
        for partition, (offset, epoch) in enumerate(zip(topic.offsets, topic.epochs, strict=True))
    }


def has_recreated_topic(token: ResumeToken, tail: Tail) -> bool:
    """Return whether the token is of an earlier topic of one of the names."""
    return any(
        not topic.matches_id(tail.topic_ids[name])
        for name, topic in token.match_topics(tail.topic_ids).items()
    )


def count_partitions(tps: Mapping[TopicPartition, object]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for tp in tps:
        counts[tp.topic] = max(counts.get(tp.topic, 0), tp.partition + 1)
    return counts
