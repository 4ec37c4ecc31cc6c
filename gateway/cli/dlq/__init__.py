"""`gateway dlq`: list, print and resend the dead letters of a sidecar's groups."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.commands import EXIT_FAILURE
from gateway.cli.run import ConfigFileOption

if TYPE_CHECKING:
    from pathlib import Path

dlq = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Exit codes: 0 done, 1 failure or something failed again, 2 wrong usage, 78 wrong "
    "configuration, 130 by ^C.",
)

TopicArgument = Annotated[
    str, typer.Argument(show_default=False, help="Whose dead letters; `orders` or `orders.dlq`.")
]
GroupOption = Annotated[
    str | None,
    typer.Option("--group", "-g", metavar="GROUP", help="That gave them up; needed for several."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="A JSON object for each line.")]


class RetryTarget(StrEnum):
    TOPIC = "topic"
    BACKEND = "backend"


@dlq.callback()
def _dlq() -> None:
    """Records that a back end could not process: look at them, try them again, drop them.

    They lie in the topic `<topic>.dlq`, as they were, with the reason in their headers. How far a
    group is with them is committed in Kafka, as the group `<group>.dlq`: a letter that was retried
    or dropped is passed over from then on, and stays in the topic for as long as that keeps it.

    \b
    gateway dlq list -c gateway.yaml                      what there is, and why
    gateway dlq show orders -c gateway.yaml               the records and their reasons
    gateway dlq retry orders -c gateway.yaml              to the back end, once more
    gateway dlq drop orders -c gateway.yaml               give them up; asks first
    """


@dlq.command("list")
def list_(config: ConfigFileOption, group: GroupOption = None, as_json: JsonOption = False) -> None:
    """What dead letters there are: how many, since when, and the most frequent reason.

    WAITING are those that were neither retried nor dropped, TOTAL all that the topic still holds.
    """
    asyncio.run(_print_counts(config, group, as_json))


async def _print_counts(config: Path, group: str | None, as_json: bool) -> None:
    from gateway.sidecar.backends import get_dead_letter_ext
    from gateway.sidecar.deadletter.counts import count_dead_letters

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


@dlq.command()
def show(
    topic: TopicArgument,
    config: ConfigFileOption,
    group: GroupOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The most to show.")] = 20,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that were retried or dropped.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """The records, where they are from, and why they are here; oldest first in each partition.

    \b
    gateway dlq show orders -c gateway.yaml
    gateway dlq show orders -c gateway.yaml --json -n 1000 | jq .stacktrace
    """
    asyncio.run(_print_dead_letters(config, topic, group, limit, everything, as_json))


async def _print_dead_letters(
    config: Path, topic: str, group: str | None, limit: int, everything: bool, as_json: bool
) -> None:
    from gateway.core.log.record import TopicPartition
    from gateway.kafka.fetch.committed_read import fetch_log_bounds

    from .context import find_queue, open_context
    from .report import format_dead_letter, format_dead_letter_json

    async with open_context(config) as context:
        queue = await find_queue(context, topic, group)
        ranges = await queue.fetch_ranges()
        if everything:
            known = await context.get_topic(queue.topic)
            tps = [TopicPartition(queue.topic, each) for each in sorted(known.partitions)]
            ranges = await fetch_log_bounds(context.cluster, tps)
        left = limit
        async for letters, _ in queue.iter_letters(ranges):
            for each in letters[:left]:
                typer.echo(format_dead_letter_json(each) if as_json else format_dead_letter(each))
            left -= len(letters)
            if left <= 0:
                break
    if left == limit and not as_json:
        typer.echo(f"{queue.topic}: no dead letters of {queue.group} wait")


@dlq.command()
def retry(
    topic: TopicArgument,
    config: ConfigFileOption,
    to: Annotated[
        RetryTarget, typer.Option(help="The back end of the group, or the topic they are from.")
    ] = RetryTarget.BACKEND,
    group: GroupOption = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="The most to retry.")
    ] = None,
    last: Annotated[
        bool, typer.Option("--last", help="With the back end: what fails again is passed over.")
    ] = False,
) -> None:
    """Try dead letters again, each once: those that there are now.

    --to backend hands them to the back end, as the sidecar does; what fails again is a dead letter
    still, behind the others (exit code 1). --to topic writes each back to the partition it is from,
    exactly once, also when this is killed and started again; every group that reads the topic gets
    it once more.

    \b
    gateway dlq retry orders -c gateway.yaml
    gateway dlq retry orders -c gateway.yaml --to topic
    gateway dlq retry orders -c gateway.yaml --limit 1        # try one first
    """
    if last and to is RetryTarget.TOPIC:
        raise typer.BadParameter("is for --to backend", param_hint="--last")
    from .actions import retry_dead_letters

    asyncio.run(retry_dead_letters(config, topic, group, to is RetryTarget.BACKEND, limit, last))


@dlq.command()
def drop(
    topic: TopicArgument,
    config: ConfigFileOption,
    group: GroupOption = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Delete the records, of all groups; not to be undone.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Give dead letters up: they are passed over from now on. Asks first.

    Without --purge the topic keeps the records for its retention, and `show --all` shows them.
    """
    from .actions import drop_dead_letters

    if not asyncio.run(drop_dead_letters(config, topic, group, purge, yes)):
        raise typer.Exit(EXIT_FAILURE)
