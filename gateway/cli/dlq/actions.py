"""Retry and drop dead letters, for `gateway dlq retry` and `gateway dlq drop`."""

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
    from gateway.sidecar.dead_letter_retry.queue import DeadLetterQueue
    from gateway.sidecar.dead_letter_retry.retry import RetryResult

MAX_BATCH_RECORDS = 500  # records in one transaction of a retry to the topic
MAX_BATCH_BYTES = 1 << 20  # likewise, bytes of keys and values


async def retry_dead_letters(
    file: Path, topic: str, group: str | None, to_backend: bool, limit: int | None, give_up: bool
) -> None:
    """Retry the dead letters of a topic that are waiting now, and print a summary.

    Args:
        give_up: With `to_backend`: do not keep a record that fails again as a dead letter.
    """
    from gateway.sidecar.dead_letter_retry.retry import create_transactions

    async with open_context(file) as context:
        queue = await find_queue(context, topic, group)
        transactions = create_transactions(context, queue)
        await transactions.start()
        try:
            counts = await (_retry_to_backend if to_backend else _retry_to_topic)(
                context, queue, transactions, limit, give_up
            )
        except Fenced:
            what = "is being retried or dropped by another process; try again when that has ended"
            raise GatewayError(f"{queue.topic} {what}") from None
    summary = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    typer.echo(f"{queue.topic}: {summary or 'no dead letters wait'}")
    if counts["returned"] or counts["parked"]:
        raise typer.Exit(EXIT_FAILURE)


async def _retry_to_topic(
    context: Context,
    queue: DeadLetterQueue,
    transactions: TransactionalProducer,
    limit: int | None,
    give_up: bool,
) -> Counter[str]:
    from gateway.sidecar.dead_letter_retry.retry import PARKED, DeadLetterCopier

    copier = DeadLetterCopier(queue, context)
    counts = Counter[str]()
    end_offsets = {tp: waiting.stop for tp, waiting in (await queue.fetch_ranges()).items()}
    with show_progress(limit or await _count_waiting(queue)) as advance:
        while limit is None or counts.total() < limit:
            max_records = MAX_BATCH_RECORDS
            if limit is not None:
                max_records = min(max_records, limit - counts.total())
            letters, offsets = await queue.fetch_dead_letters(
                max_records, MAX_BATCH_BYTES, end_offsets=end_offsets
            )
            result = await copier.copy_batch(transactions, letters, offsets)
            for each in result.letters:
                if each.outcome == PARKED:
                    place = f"{each.queued.record.tp} offset {each.queued.record.offset}"
                    typer.echo(f"{place} is not copied: {each.reason}", err=True)
            counts += result.counts
            advance(len(letters))
            if not letters:
                break
    return counts


async def _retry_to_backend(
    context: Context,
    queue: DeadLetterQueue,
    transactions: TransactionalProducer,
    limit: int | None,
    give_up: bool,
) -> Counter[str]:
    from gateway.sidecar.backends import get_group
    from gateway.sidecar.dead_letter_retry.retry import DeadLetterRetry
    from gateway.sidecar.reactive.backend import BackendClient, create_http_client
    from gateway.sidecar.reactive.batch_encoder import BatchEncoder

    settings = get_group(context.section, queue.group)
    counts = Counter[str]()
    end_offsets = {tp: waiting.stop for tp, waiting in (await queue.fetch_ranges()).items()}
    async with create_http_client() as client:
        backend = BackendClient(client, settings.backend, accept_empty=settings.accept_empty)
        encoder = BatchEncoder(
            context.codecs, context.section, settings, missing_schema_timeout_s=0.0
        )
        retry = DeadLetterRetry(queue, backend, encoder, context.auditor)
        with show_progress(limit or await _count_waiting(queue)) as advance:
            while limit is None or counts.total() < limit:
                max_records = settings.max_poll_records
                if limit is not None:
                    max_records = min(max_records, limit - counts.total())
                letters, offsets = await queue.fetch_dead_letters(
                    max_records, settings.request_max_bytes, end_offsets=end_offsets
                )
                result = await retry.retry_batch(transactions, letters, offsets, last=give_up)
                counts += result.counts
                advance(len(result.letters))
                if not letters:
                    break
                _require_backend(queue, result, counts)
    return counts


def _require_backend(queue: DeadLetterQueue, result: RetryResult, counts: Counter[str]) -> None:
    if result.backend_failure:
        done = f"{counts.total()} were retried before" if counts else "nothing was changed"
        raise GatewayError(f"{queue.topic}: the back end is away: {result.backend_failure}; {done}")


async def drop_dead_letters(
    file: Path, topic: str, group: str | None, purge: bool, confirmed: bool
) -> bool:
    """Drop the waiting dead letters of a topic; return False if the user did not confirm.

    Args:
        purge: Delete all records of the topic of dead letters, of all groups.
    """
    from gateway.kafka.admin import delete_records
    from gateway.sidecar.dead_letter_retry.retry import create_transactions

    async with open_context(file) as context:
        queue = await find_queue(context, topic, group)
        ranges = await queue.fetch_ranges()
        count = await _count_waiting(queue)
        if not count and not purge:
            typer.echo(f"{queue.topic}: no dead letters of {queue.group} wait")
            return True
        question = f"{queue.topic}: give up {count} dead letters of {queue.group}"
        question += ", and delete the records of all groups?" if purge else "?"
        if not confirmed and not typer.confirm(question, err=True):
            return False
        end_offsets = {tp: waiting.stop for tp, waiting in ranges.items()}
        transactions = create_transactions(context, queue)
        await transactions.start()
        if end_offsets:
            await transactions.commit(group=queue.offsets_group, offsets=end_offsets)
        if purge:
            await delete_records(context.cluster, await _fetch_end_offsets(context, queue))
    typer.echo(f"{queue.topic}: {count} dropped{', the records deleted' if purge else ''}")
    return True


async def _fetch_end_offsets(context: Context, queue: DeadLetterQueue) -> dict[TopicPartition, int]:
    from gateway.core.log.record import TopicPartition
    from gateway.kafka.fetch.bounded_read import fetch_log_bounds

    topic_metadata = await context.get_topic(queue.topic)
    tps = [TopicPartition(queue.topic, each) for each in sorted(topic_metadata.partitions)]
    return {tp: log.stop for tp, log in (await fetch_log_bounds(context.cluster, tps)).items()}


async def _count_waiting(queue: DeadLetterQueue) -> int:
    """Count dead letters by reading: offsets also count markers and other groups' letters."""
    count = 0
    async for letters, _ in queue.iter_dead_letters(await queue.fetch_ranges()):
        count += len(letters)
    return count
