"""Dead letters that are tried again, or given up."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gateway.cli.commands import EXIT_FAILURE
from gateway.errors import Fenced, GatewayError

from .context import find_queue, open_context
from .report import show_progress

if TYPE_CHECKING:
    from gateway.core.log.record import TopicPartition
    from gateway.kafka.produce.transactional_producer import TransactionalProducer
    from gateway.sidecar.context import Context
    from gateway.sidecar.deadletter.queue import DeadLetterQueue
    from gateway.sidecar.deadletter.retry import RetryResult

MAX_BATCH_RECORDS = 500
MAX_BATCH_BYTES = 1 << 20  # bytes of keys and values


async def retry_dead_letters(
    file: Path, topic: str, group: str | None, to_backend: bool, limit: int | None, give_up: bool
) -> None:
    """Raises typer.Exit 1 where something failed again, GatewayError where it could not go on."""
    from gateway.sidecar.deadletter.retry import create_transactions

    async with open_context(file) as context:
        queue = await find_queue(context, topic, group)
        transactions = create_transactions(context.cluster, queue)
        await transactions.start()
        try:
            counts = await (_retry_to_backend if to_backend else _retry_to_topic)(
                context, queue, transactions, limit, give_up
            )
        except Fenced:
            what = "is retried or dropped by another one just now; try again when it is through"
            raise GatewayError(f"{queue.topic} {what}") from None
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    typer.echo(f"{queue.topic}: {told or 'no dead letters wait'}")
    if counts["returned"] or counts["parked"]:
        raise typer.Exit(EXIT_FAILURE)


async def _retry_to_topic(
    context: Context,
    queue: DeadLetterQueue,
    transactions: TransactionalProducer,
    limit: int | None,
    give_up: bool,
) -> Counter[str]:
    from gateway.sidecar.deadletter.retry import DeadLetterCopier

    copies = DeadLetterCopier(queue, context)
    counts = Counter[str]()
    until = {tp: left.stop for tp, left in (await queue.fetch_ranges()).items()}
    with show_progress(limit or await _count_waiting(queue)) as advance:
        while limit is None or counts.total() < limit:
            most = (
                MAX_BATCH_RECORDS
                if limit is None
                else min(MAX_BATCH_RECORDS, limit - counts.total())
            )
            some, points = await queue.fetch_letters(most, MAX_BATCH_BYTES, end_offsets=until)
            counts += (await copies.copy_batch(transactions, some, points)).counts
            advance(len(some))
            if not some:
                break
    return counts


async def _retry_to_backend(
    context: Context,
    queue: DeadLetterQueue,
    transactions: TransactionalProducer,
    limit: int | None,
    give_up: bool,
) -> Counter[str]:
    import httpx

    from gateway.sidecar.backends import get_group
    from gateway.sidecar.deadletter.retry import DeadLetterRetry
    from gateway.sidecar.reactive.backend import BackendClient
    from gateway.sidecar.reactive.batch_encoder import BatchEncoder

    settings = get_group(context.section, queue.group)
    counts = Counter[str]()
    until = {tp: left.stop for tp, left in (await queue.fetch_ranges()).items()}
    async with httpx.AsyncClient(trust_env=False, timeout=None) as client:
        back_end = BackendClient(client, settings.backend, accept_empty=settings.accept_empty)
        writer = BatchEncoder(context.codecs, context.section, settings)
        again = DeadLetterRetry(queue, back_end, writer, context.auditor)
        with show_progress(limit or await _count_waiting(queue)) as advance:
            while limit is None or counts.total() < limit:
                most = settings.max_poll_records
                most = most if limit is None else min(most, limit - counts.total())
                some, points = await queue.fetch_letters(
                    most, settings.request_max_bytes, end_offsets=until
                )
                result = await again.retry_batch(transactions, some, points, last=give_up)
                counts += result.counts
                advance(len(result.letters))
                if not some:
                    break
                _require_back_end(queue, result, counts)
    return counts


def _require_back_end(queue: DeadLetterQueue, result: RetryResult, counts: Counter[str]) -> None:
    if result.backend_failure:
        done = f"{counts.total()} were tried before" if counts else "nothing was changed"
        raise GatewayError(f"{queue.topic}: the back end is away: {result.backend_failure}; {done}")


async def drop_dead_letters(
    file: Path, topic: str, group: str | None, purge: bool, confirmed: bool
) -> bool:
    """False: not after all."""
    from gateway.kafka.admin.delete_records import delete_records
    from gateway.sidecar.deadletter.retry import create_transactions

    async with open_context(file) as context:
        queue = await find_queue(context, topic, group)
        ranges = await queue.fetch_ranges()
        count = await _count_waiting(queue)
        if not count and not purge:
            typer.echo(f"{queue.topic}: no dead letters of {queue.group} wait")
            return True
        what = f"{queue.topic}: give up {count} dead letters of {queue.group}"
        what += ", and delete the records of all groups?" if purge else "?"
        if not confirmed and not typer.confirm(what, err=True):
            return False
        stops = {tp: left.stop for tp, left in ranges.items()}
        transactions = create_transactions(context.cluster, queue)
        await transactions.start()
        if stops:
            await transactions.commit(group=queue.offsets_group, offsets=stops)
        if purge:
            await delete_records(context.cluster, await _fetch_end_offsets(context, queue))
    typer.echo(f"{queue.topic}: {count} dropped{', the records deleted' if purge else ''}")
    return True


async def _fetch_end_offsets(context: Context, queue: DeadLetterQueue) -> dict[TopicPartition, int]:
    from gateway.core.log.record import TopicPartition
    from gateway.kafka.fetch.committed_read import fetch_log_bounds

    known = await context.get_topic(queue.topic)
    tps = [TopicPartition(queue.topic, each) for each in sorted(known.partitions)]
    return {tp: log.stop for tp, log in (await fetch_log_bounds(context.cluster, tps)).items()}


async def _count_waiting(queue: DeadLetterQueue) -> int:
    """Letters, not offsets."""
    count = 0
    async for letters, _ in queue.iter_letters(await queue.fetch_ranges()):
        count += len(letters)
    return count
