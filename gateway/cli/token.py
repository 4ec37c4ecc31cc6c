"""`gateway token`: show what a resume token holds."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.errors import TokenCorrupt, TokenForeign

from .commands import format_exit_codes
from .options import build_config_option

if TYPE_CHECKING:
    from gateway.config import Settings
    from gateway.core.token.resume_token import ResumeToken, TokenTopic

STDIN_ARGUMENT = "-"
MAX_INPUT_BYTES = 128 * 1024  # bytes read from standard input, twice the longest token
EXIT_CODES = format_exit_codes("the token cannot be read")

token = typer.Typer(no_args_is_help=True, rich_markup_mode=None, epilog=EXIT_CODES)


@token.callback()
def _token() -> None:
    """Show what a resume token holds.

    A resume token is the `id:` of an event, which a client sends back as `Last-Event-ID`.

    \b
    gateway token decode 1g0QzhBrAOj3y3KyFB1azr6lyQpZoHtMCABFFGFGFFFFFFFD389wp
    """


class SignatureState(StrEnum):
    """What is known about the signature of a token."""

    NONE = "none"
    UNCHECKED = "unchecked"
    VALID = "valid"
    INVALID = "invalid"


@token.command(epilog=EXIT_CODES)
def decode(
    text: Annotated[
        str,
        typer.Argument(
            metavar="TOKEN", show_default=False, help="The token, or - to read standard input."
        ),
    ],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="A topic that the token may be of, so that its name is shown; repeatable.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        build_config_option(
            "Take names of topics, and the secrets of signed tokens, from a configuration."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the position that a resume token holds.

    For each partition this is the next offset to fetch, or `pending` if it was not known yet. A
    token has digests of the names of its topics, and not the names: give them with --topic or
    --config. Without them the digest is shown.

    \b
    gateway token decode 1g0QzhBrAOj3y3KyFB1azr6lyQpZoHtMCABFFGFGFFFFFFFD389wp --topic orders
    gateway token decode "$LAST_EVENT_ID" -c gateway.yaml
    grep '^id:' events.txt | tail -n 1 | gateway token decode - --json | jq .partitions
    """
    from gateway.core.token.resume_token import parse_token

    if text == STDIN_ARGUMENT:
        text = sys.stdin.buffer.read(MAX_INPUT_BYTES).decode(errors="replace")
    text = _extract_token(text)
    if not text:
        raise typer.BadParameter("is empty", param_hint="TOKEN")
    try:
        parsed = parse_token(text)
    except TokenCorrupt:
        from gateway.core.token.damage import describe_damage

        raise TokenCorrupt(
            f"the resume token is damaged: {describe_damage(text)}; copy it again"
        ) from None
    settings = None if config is None else _load_settings(config)
    decoded = DecodedToken(
        parsed, _check_signature(parsed, settings), _find_names(parsed, topics or [], settings)
    )
    typer.echo(json.dumps(decoded.to_json()) if as_json else decoded.to_table())


@dataclass(frozen=True)
class DecodedToken:
    """A token as it is printed.

    Attributes:
        token: The token.
        signature: What is known about its signature.
        names: The names of its topics, by their index; topics of unknown name are missing.
    """

    token: ResumeToken
    signature: SignatureState
    names: dict[int, str]

    def to_json(self) -> dict[str, Any]:
        """Return the token as a JSON object."""
        return {
            "issued": _format_time(self.token.issued),
            "signature": self.signature,
            "view": self.token.view_digest.decode(),
            "cluster": self.token.cluster.decode(),
            "partitions": list(self._iter_partitions()),
        }

    def to_table(self) -> str:
        """Return the token as lines for a terminal."""
        rows = [("TOPIC", "PARTITION", "NEXT OFFSET", "LEADER EPOCH")]
        for partition in self._iter_partitions():
            offset, epoch = partition["nextOffset"], partition["leaderEpoch"]
            rows.append(
                (
                    partition["topic"] or f"digest {partition['topicDigest']}",
                    str(partition["partition"]),
                    "pending" if offset is None else str(offset),
                    "earlier topic"
                    if partition["isOfEarlierTopic"]
                    else "-"
                    if epoch is None
                    else str(epoch),
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            f"issued     {_format_time(self.token.issued)}",
            f"signature  {self.signature}",
            f"view       digest {self.token.view_digest.decode()}",
            f"cluster    digest {self.token.cluster.decode()}",
            "",
            *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows),
        ]
        return "\n".join(lines)

    def _iter_partitions(self) -> Iterator[dict[str, Any]]:
        """Yield every partition as a JSON object."""
        from gateway.core.log.position import NO_EPOCH, RETIRED_EPOCH

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


def _load_settings(config: Path) -> Settings:
    from gateway.config import load

    return load(config)


def _extract_token(text: str) -> str:
    """Return the token of a text, which may be a line `id: TOKEN` of a stream."""
    return text.strip().removeprefix("id:").strip()


def _check_signature(token: ResumeToken, settings: Settings | None) -> SignatureState:
    """Return whether one of the configuration's secrets signed a token."""
    if not token.mac:
        return SignatureState.NONE
    if settings is None or not settings.tokens.secrets:
        return SignatureState.UNCHECKED
    from gateway.core.token.signing import TokenSigner

    try:
        TokenSigner(settings.tokens.secrets).verify(token, issuer="")
    except TokenCorrupt:
        return SignatureState.INVALID
    return SignatureState.VALID  # by whichever route it was issued


def _find_names(
    token: ResumeToken, topics: Sequence[str], settings: Settings | None
) -> dict[int, str]:
    """Return the names of a token's topics by their index.

    Args:
        token: The token.
        topics: Names that were given; each must be a topic of the token.
        settings: A configuration, whose topics may be in the token.

    Raises:
        TokenForeign: The token does not have a topic that was given.
    """
    configured = (
        [topic.name for kafka in settings.clusters.values() for topic in kafka.topics]
        if settings is not None
        else []
    )
    matched = token.match_topics(dict.fromkeys([*topics, *configured], ""))
    for name in topics:
        if name not in matched:
            raise TokenForeign(f"the resume token is not of a topic '{name}'; leave out --topic")
    return {_find_index(token.topics, topic): name for name, topic in matched.items()}


def _find_index(topics: Sequence[TokenTopic], wanted: TokenTopic) -> int:
    """Return the index of the very object: topics of a token can be equal."""
    return next(index for index, topic in enumerate(topics) if topic is wanted)


def _format_time(seconds: int) -> str:
    """Return a time in seconds since 1970 as RFC 3339 text."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
