"""`gateway dlq`: list, show, retry and drop the dead letters of a sidecar's groups.

This module has the commands. `actions` retries and drops, `context` opens the sidecar's cluster and
finds the queue of a group, and `report` formats the output. Start reading with `context`; the queue
itself is `gateway.sidecar.dead_letter_retry.queue`.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.commands import EXIT_FAILURE, format_exit_codes
from gateway.cli.options import ConfigFileOption

if TYPE_CHECKING:
    from pathlib import Path

dlq = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=format_exit_codes("failure or a record that failed again"),
)

TopicArgument = Annotated[
    str,
    typer.Argument(
        show_default=False, help="The topic, or that of its dead letters: orders or orders.dlq."
    ),
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        metavar="GROUP",
        help="The group that gave them up; required if there are several.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


class RetryTarget(StrEnum):
    """The destination of a retried record: its back end, or the topic that it is from."""

    TOPIC = "topic"
    BACKEND = "backend"


@dlq.callback()
def _dlq() -> None:
    """Show, retry and drop records that a back end could not process.

    These dead letters are in the topic `<topic>.dlq`, unchanged, with the reason in their headers.
    The position of a group among them is committed in Kafka, as the group `<group>.dlq`: a dead
    letter that was retried or dropped is skipped from then on, and stays in the topic for its
    retention.

    \b
    gateway dlq list -c gateway.yaml            count them, by topic and group
    gateway dlq show orders -c gateway.yaml     print the records and the reasons
    gateway dlq retry orders -c gateway.yaml    send them to the back end again
    gateway dlq drop orders -c gateway.yaml     give them up; asks first
    """


@dlq.command("list", epilog=format_exit_codes())
def list_(config: ConfigFileOption, group: GroupOption = None, as_json: JsonOption = False) -> None:
    """Count the dead letters of each topic and group.

    WAITING counts those that were neither retried nor dropped, TOTAL all that the topic still has.
    REASON is the most frequent one.

    \b
    gateway dlq list -c gateway.yaml
    gateway dlq list -c gateway.yaml --json | jq 'select(.waiting > 0)'
    """
    asyncio.run(_print_counts(config, group, as_json))


async def _print_counts(config: Path, group: str | None, as_json: bool) -> None:
    from gateway.sidecar.backends import get_dead_letter_ext
    from gateway.sidecar.dead_letter_retry.queue import count_dead_letters

    from .context import open_context
    from .report import format_count_json, format_table

    async with open_context(config) as context:
        ext = get_dead_letter_ext(context.section, group)
        names = sorted(each for each in await context.cluster.list_topics() if each.endswith(ext))
        counts = []
        for name in names:
            await context.get_topic(name)
            counts += await count_dead_letters(context.cluster, name, ext, [group] if group else [])
    if as_json:
        for each in counts:
            typer.echo(format_count_json(each))
    else:
        typer.echo(format_table(counts) if counts else "no dead letters")


@dlq.command(epilog=format_exit_codes())
def show(
    topic: TopicArgument,
    config: ConfigFileOption,
    group: GroupOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Print at most so many.")] = 20,
    everything: Annotated[
        bool, typer.Option("--all", help="Include those that were retried or dropped.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print dead letters: where they are from, and why they failed.

    The order is that of each partition: the oldest first.

    \b
    gateway dlq show orders -c gateway.yaml
    gateway dlq show orders -c gateway.yaml --json -n 1000 | jq .stacktrace
    """
    asyncio.run(_print_dead_letters(config, topic, group, limit, everything, as_json))


async def _print_dead_letters(
    config: Path, topic: str, group: str | None, limit: int, everything: bool, as_json: bool
) -> None:
    from gateway.core.log.record import TopicPartition
    from gateway.kafka.fetch.bounded_read import fetch_log_bounds

    from .context import find_queue, open_context
    from .report import format_dead_letter, format_dead_letter_json

    async with open_context(config) as context:
        queue = await find_queue(context, topic, group)
        ranges = await queue.fetch_ranges()
        if everything:
            topic_metadata = await context.get_topic(queue.topic)
            tps = [TopicPartition(queue.topic, each) for each in sorted(topic_metadata.partitions)]
            ranges = await fetch_log_bounds(context.cluster, tps)
        remaining = limit
        async for letters, _ in queue.iter_dead_letters(ranges):
            for each in letters[:remaining]:
                typer.echo(format_dead_letter_json(each) if as_json else format_dead_letter(each))
            remaining -= len(letters)
            if remaining <= 0:
                break
    if remaining == limit and not as_json:
        typer.echo(f"{queue.topic}: no dead letters of {queue.group} wait")


@dlq.command(epilog=format_exit_codes("failure or a record that failed again"))
def retry(
    topic: TopicArgument,
    config: ConfigFileOption,
    to: Annotated[
        RetryTarget,
        typer.Option(help="Send to the back end of the group, or to the topic they are from."),
    ] = RetryTarget.BACKEND,
    group: GroupOption = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Retry at most so many.")
    ] = None,
    last: Annotated[
        bool, typer.Option("--last", help="With --to backend: skip what fails again.")
    ] = False,
) -> None:
    """Try the dead letters that are waiting now again, each once.

    --to backend sends them to the back end, as the sidecar does. A record that fails again stays a
    dead letter, behind the others. --to topic writes each record to the partition it is from,
    exactly once, even if this command is killed and started again. Every group that reads the topic
    gets it again.

    \b
    gateway dlq retry orders -c gateway.yaml
    gateway dlq retry orders -c gateway.yaml --to topic
    gateway dlq retry orders -c gateway.yaml --limit 1        # try one first
    """
    if last and to is RetryTarget.TOPIC:
        raise typer.BadParameter("is for --to backend", param_hint="--last")
    from .actions import retry_dead_letters

    asyncio.run(retry_dead_letters(config, topic, group, to is RetryTarget.BACKEND, limit, last))


@dlq.command(epilog=format_exit_codes("failure or not confirmed"))
def drop(
    topic: TopicArgument,
    config: ConfigFileOption,
    group: GroupOption = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Delete the records, of all groups. Cannot be undone.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Give up the dead letters that are waiting now. Asks first.

    They are skipped from then on. Without --purge the topic keeps the records for its retention,
    and `gateway dlq show --all` prints them.

    \b
    gateway dlq drop orders -c gateway.yaml
    gateway dlq drop orders -c gateway.yaml --purge --yes
    """
    from .actions import drop_dead_letters

    if not asyncio.run(drop_dead_letters(config, topic, group, purge, yes)):
        raise typer.Exit(EXIT_FAILURE)
