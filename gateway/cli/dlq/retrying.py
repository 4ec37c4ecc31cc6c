"""Dead letters that are tried again, or given up."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gateway.cli.commands import FAILURE
from gateway.errors import Fenced, GatewayError

from .opened import opened, queue_of
from .shown import progress

if TYPE_CHECKING:
    from gateway.core.log.record import TopicPartition
    from gateway.kafka.produce.transactions import Transactions
    from gateway.sidecar.context import Context
    from gateway.sidecar.deadletter.again import Result
    from gateway.sidecar.deadletter.queue import Queue

BATCH = 500
SIZE = 1 << 20  # bytes of keys and values


async def retried(
    file: Path, topic: str, group: str | None, backend: bool, limit: int | None, last: bool
) -> None:
    """Raises typer.Exit 1 where something failed again, GatewayError where it could not go on."""
    from gateway.sidecar.deadletter.again import transactions_of

    async with opened(file) as context:
        queue = await queue_of(context, topic, group)
        transactions = transactions_of(context.cluster, queue)
        await transactions.start()
        try:
            counts = await (_to_backend if backend else _to_topic)(
                context, queue, transactions, limit, last
            )
        except Fenced:
            what = "is retried or dropped by another one just now; try again when it is through"
            raise GatewayError(f"{queue.topic} {what}") from None
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    typer.echo(f"{queue.topic}: {told or 'no dead letters wait'}")
    if counts["returned"] or counts["parked"]:
        raise typer.Exit(FAILURE)


async def _to_topic(
    context: Context, queue: Queue, transactions: Transactions, limit: int | None, last: bool
) -> Counter[str]:
    from gateway.sidecar.deadletter.again import Copies

    copies = Copies(queue, context)
    counts = Counter[str]()
    until = {tp: left.stop for tp, left in (await queue.ranges()).items()}
    with progress(limit or await _waiting(queue)) as advance:
        while limit is None or counts.total() < limit:
            most = BATCH if limit is None else min(BATCH, limit - counts.total())
            some, points = await queue.some(most, SIZE, until=until)
            counts += (await copies.batch(transactions, some, points)).counts
            advance(len(some))
            if not some:
                break
    return counts


async def _to_backend(
    context: Context, queue: Queue, transactions: Transactions, limit: int | None, last: bool
) -> Counter[str]:
    import httpx

    from gateway.sidecar.backends import group_named
    from gateway.sidecar.deadletter.again import Again
    from gateway.sidecar.reactive.backend import BackEnd
    from gateway.sidecar.reactive.written import Writer

    settings = group_named(context.section, queue.group)
    counts = Counter[str]()
    until = {tp: left.stop for tp, left in (await queue.ranges()).items()}
    async with httpx.AsyncClient(trust_env=False, timeout=None) as client:
        back_end = BackEnd(client, settings.backend, accept_empty=settings.accept_empty)
        writer = Writer(context.codecs, context.section, settings)
        again = Again(queue, back_end, writer, context.audit)
        with progress(limit or await _waiting(queue)) as advance:
            while limit is None or counts.total() < limit:
                most = settings.max_poll_records
                most = most if limit is None else min(most, limit - counts.total())
                some, points = await queue.some(most, settings.request_max_bytes, until=until)
                result = await again.batch(transactions, some, points, last=last)
                counts += result.counts
                advance(len(result.told))
                if not some:
                    break
                _not_away(queue, result, counts)
    return counts


def _not_away(queue: Queue, result: Result, counts: Counter[str]) -> None:
    if result.away:
        done = f"{counts.total()} were tried before" if counts else "nothing was changed"
        raise GatewayError(f"{queue.topic}: the back end is away: {result.away}; {done}")


async def dropped(file: Path, topic: str, group: str | None, purge: bool, yes: bool) -> bool:
    """False: not after all."""
    from gateway.kafka.admin.delete_records import delete_records
    from gateway.sidecar.deadletter.again import transactions_of

    async with opened(file) as context:
        queue = await queue_of(context, topic, group)
        ranges = await queue.ranges()
        count = await _waiting(queue)
        if not count and not purge:
            typer.echo(f"{queue.topic}: no dead letters of {queue.group} wait")
            return True
        what = f"{queue.topic}: give up {count} dead letters of {queue.group}"
        what += ", and delete the records of all groups?" if purge else "?"
        if not yes and not typer.confirm(what, err=True):
            return False
        stops = {tp: left.stop for tp, left in ranges.items()}
        transactions = transactions_of(context.cluster, queue)
        await transactions.start()
        if stops:
            await transactions.commit(group=queue.cursor, offsets=stops)
        if purge:
            await delete_records(context.cluster, await _ends(context, queue))
    typer.echo(f"{queue.topic}: {count} dropped{', the records deleted' if purge else ''}")
    return True


async def _ends(context: Context, queue: Queue) -> dict[TopicPartition, int]:
    from gateway.core.log.record import TopicPartition
    from gateway.kafka.fetch.piece import bounds

    known = await context.topic(queue.topic)
    tps = [TopicPartition(queue.topic, each) for each in sorted(known.partitions)]
    return {tp: log.stop for tp, log in (await bounds(context.cluster, tps)).items()}


async def _waiting(queue: Queue) -> int:
    """Letters, not offsets."""
    count = 0
    async for letters, _ in queue.letters(await queue.ranges()):
        count += len(letters)
    return count
