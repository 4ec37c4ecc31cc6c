"""Decode resume tokens, for `gateway token decode`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.cli.output import format_table
from gateway.core.times import format_time
from gateway.errors import TokenCorrupt, TokenForeign

if TYPE_CHECKING:
    from gateway.config import Settings
    from gateway.core.token.resume_token import ResumeToken


def decode_resume_token(
    text: str, topics: Sequence[str], settings: Settings | None
) -> DecodedToken:
    from gateway.core.token.resume_token import parse_token

    try:
        parsed = parse_token(text)
    except TokenCorrupt:
        from gateway.core.token.token_parser import describe_damage

        raise TokenCorrupt(
            f"the resume token is damaged: {describe_damage(text)}; copy it again"
        ) from None
    return DecodedToken(
        parsed, _check_signature(parsed, settings), _find_names(parsed, topics, settings)
    )


@dataclass(frozen=True)
class DecodedToken:
    """A token as it is printed. Topics of unknown name are missing in `names`."""

    token: ResumeToken
    signature: str
    names: dict[int, str]

    def to_json(self) -> dict[str, Any]:
        return {
            "issued": self._format_issued(),
            "signature": self.signature,
            "view": self.token.view_digest.decode(),
            "cluster": self.token.cluster.decode(),
            "partitions": list(self._iter_partitions()),
        }

    def _format_issued(self) -> str:
        return format_time(self.token.issued * 1000, "seconds")

    def to_table(self) -> str:
        rows = [("TOPIC", "PARTITION", "NEXT OFFSET", "LEADER EPOCH")]
        for partition in self._iter_partitions():
            offset, epoch = partition["nextOffset"], partition["leaderEpoch"]
            known_epoch = "-" if epoch is None else str(epoch)
            rows.append(
                (
                    partition["topic"] or f"digest {partition['topicDigest']}",
                    str(partition["partition"]),
                    "pending" if offset is None else str(offset),
                    "earlier topic" if partition["isOfEarlierTopic"] else known_epoch,
                )
            )
        lines = [
            f"issued     {self._format_issued()}",
            f"signature  {self.signature}",
            f"view       digest {self.token.view_digest.decode()}",
            f"cluster    digest {self.token.cluster.decode()}",
            "",
            *format_table(rows),
        ]
        return "\n".join(lines)

    def _iter_partitions(self) -> Iterator[dict[str, Any]]:
        from gateway.core.log.record import NO_EPOCH, RETIRED_EPOCH

        for index, topic in enumerate(self.token.topics):
            for partition, (offset, epoch) in enumerate(
                zip(topic.offsets, topic.epochs, strict=True)
            ):
                yield {
                    "topic": self.names.get(index),
                    "topicDigest": topic.name.decode(),
                    "partition": partition,
                    "nextOffset": offset,
                    "leaderEpoch": epoch if epoch > NO_EPOCH else None,
                    "isOfEarlierTopic": epoch == RETIRED_EPOCH,
                }


def _check_signature(token: ResumeToken, settings: Settings | None) -> str:
    """Return `none`, `unchecked`, `valid` or `invalid`."""
    if not token.mac:
        return "none"
    if settings is None or not settings.tokens.secrets:
        return "unchecked"
    from gateway.core.token.signing import TokenSigner

    try:
        TokenSigner(settings.tokens.secrets).verify(token, issuer="")
    except TokenCorrupt:
        return "invalid"
    return "valid"  # by whichever route it was issued


def _find_names(
    token: ResumeToken, topics: Sequence[str], settings: Settings | None
) -> dict[int, str]:
    clusters = {} if settings is None else settings.clusters
    configured = [topic.name for kafka in clusters.values() for topic in kafka.topics]
    matched = token.match_topics(dict.fromkeys([*topics, *configured], ""))
    for name in topics:
        if name not in matched:
            raise TokenForeign(f"the resume token is not of a topic '{name}'; leave out --topic")
    # The very objects are compared: topics of a token can be equal.
    return {
        index: name
        for name, wanted in matched.items()
        for index, topic in enumerate(token.topics)
        if topic is wanted
    }
