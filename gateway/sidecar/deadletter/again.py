"""Dead letters to the back end once more, and what becomes of them: in one transaction.

What is processed is done with. What fails again goes behind the last of the dead letters, its count
of retries one up, so that it holds up nothing; at the last retry it is parked instead: audited, and
passed over, and in the topic for as long as that keeps records. Each is one transaction with how
far the group is, by an id that only one has at a time: whatever crashes, a letter is never lost nor
there twice, though the back end may be asked for one twice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gateway.core.delivery.verdict import Answered, Away, Item, Suspect, Verdict
from gateway.errors import RegistryUnavailable
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.produce.transactions import Transactions, Write
from gateway.sidecar.context import Audit, Context
from gateway.sidecar.http.ids import current
from gateway.sidecar.reactive.backend import BackEnd
from gateway.sidecar.reactive.dead_letters import partition
from gateway.sidecar.reactive.letter import RETRIES
from gateway.sidecar.reactive.runner import GROUP
from gateway.sidecar.reactive.written import Writer

from .queue import Found, Points, Queue

PROCESSED, RETURNED, PARKED, COPIED = "processed", "returned", "parked", "copied"


class Told(NamedTuple):
    """What became of one. reason: why it failed; empty otherwise."""

    found: Found
    outcome: str
    reason: str = ""


@dataclass(slots=True)
class Result:
    """away: why the back end was asked for no more; retry_after: seconds, as it wants."""

    told: list[Told] = field(default_factory=list)
    away: str = ""
    retry_after: float = 0.0

    @property
    def counts(self) -> Counter[str]:
        return Counter(each.outcome for each in self.told)


def transactions_of(cluster: Cluster, queue: Queue) -> Transactions:
    """The one writer of what the group does with its letters in that topic."""
    return Transactions(cluster, f"dead-letters-{queue.group}-{queue.topic}")


class Again:
    """One batch at a time. audit: told of what is done with."""

    def __init__(self, queue: Queue, back_end: BackEnd, writer: Writer, audit: Audit) -> None:
        self._queue = queue
        self._back_end = back_end
        self._writer = writer
        self._audit = audit

    async def batch(
        self, transactions: Transactions, some: Sequence[Found], points: Points, *, last: bool
    ) -> Result:
        """points: behind all of them. Raises KafkaError: then nothing has become of them, but that
        the back end may have processed some."""
        result = Result()
        for item, found in zip(await self._handed(some, result), some, strict=False):
            outcome = PROCESSED if item.processed else PARKED if last else RETURNED
            result.told.append(Told(found, outcome, item.reason))
        if len(result.told) < len(some):
            points = _points(some[: len(result.told)])
        if points:
            writes = [_returned(each) for each in result.told if each.outcome == RETURNED]
            await transactions.commit(writes, group=self._queue.cursor, offsets=points)
        for each in result.told:
            self._audited(each)
        return result

    async def _handed(self, some: Sequence[Found], result: Result) -> Sequence[Item]:
        """Of all, or of those before the one at which the back end went away."""
        if not some:
            return []
        verdict = await self._verdict(some)
        match verdict:
            case Answered(items):
                return items
            case Suspect(reason) if len(some) == 1:
                unwell = await self._back_end.unwell()
                if not unwell:
                    return [Item(False, reason)]
                result.away = f"{reason}; {unwell}"
            case Suspect():
                return await self._one_by_one(some, result)
            case Away(reason, retry_after):
                result.away, result.retry_after = reason, retry_after
        return []

    async def _one_by_one(self, some: Sequence[Found], result: Result) -> Sequence[Item]:
        """One of them may be what the back end stumbles over."""
        items: list[Item] = []
        for each in some:
            items += await self._handed([each], result)
            if result.away:
                break
        return items

    async def _verdict(self, some: Sequence[Found]) -> Verdict:
        try:
            written = await self._writer.write([each.origin for each in some])
        except RegistryUnavailable as error:
            return Away(str(error), error.retry_after)
        verdict: Verdict = Answered([])
        if written.sent:
            retries = max(each.letter.retries for each in some) + 1
            ids = dict(current().pairs())
            headers = {GROUP: self._queue.group, RETRIES: str(retries), **ids}
            verdict = await self._back_end.post(written.body, written.sent, headers)
        return written.judged(verdict)

    def _audited(self, told: Told) -> None:
        if told.outcome == RETURNED:
            return
        letter = told.found.letter
        self._audit.consumed(
            letter.origin.topic, letter.origin.partition, letter.offset, letter.key,
            reactive=True, correlation=letter.correlation_id,
            traceability=letter.traceability_id, error=told.reason or None,
        )  # fmt: skip


class Copies:
    """Back to the topics that they are from: as any record there, for all groups that read it.

    The header X-Dead-Letter-Retries says so. context: to know those topics by.
    """

    def __init__(self, queue: Queue, context: Context) -> None:
        self._queue = queue
        self._context = context

    async def batch(
        self, transactions: Transactions, some: Sequence[Found], points: Points
    ) -> Result:
        """points: behind all of them. Raises KafkaError: then nothing has become of them."""
        writes = [await self._write(each) for each in some]
        if points:
            await transactions.commit(writes, group=self._queue.cursor, offsets=points)
        return Result([Told(each, COPIED) for each in some])

    async def _write(self, found: Found) -> Write:
        letter, origin = found.letter, found.letter.origin
        tp = partition(await self._context.topic(origin.topic), letter)
        kept = [each for each in letter.headers if each[0] != RETRIES]
        headers = [*kept, (RETRIES, str(letter.retries + 1).encode())]
        return Write(tp, letter.key, letter.value, headers, letter.timestamp)


def _points(some: Sequence[Found]) -> Points:
    return {each.record.tp: each.record.next for each in some}


def _returned(told: Told) -> Write:
    letter = replace(
        told.found.letter, retries=told.found.letter.retries + 1, stacktrace=told.reason
    )
    tp, now = told.found.record.tp, time.time_ns() // 1_000_000
    return Write(tp, letter.key, letter.value, letter.sealed(), now)
