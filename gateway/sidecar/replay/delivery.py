"""Deliver records of a replay to the back end of a reactive group, as that group delivers its own.

It has the group's formats, batches, retries and dead letters. Only headers differ: one of each
batch and some of each record name the replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence, Set

import httpx

from gateway.config.sections.sidecar import Group
from gateway.core.delivery.delivery_queue import SettledRecords
from gateway.core.delivery.verdict import Verdict
from gateway.core.log.record import Record, TopicPartition
from gateway.sidecar.context import Context
from gateway.sidecar.reactive.backend import BackendClient, BatchEncoder
from gateway.sidecar.reactive.dead_letters import DeadLetterWriter
from gateway.sidecar.reactive.lane_runner import LaneContext, LaneRunner, audit_settled, build_rules

from .job import REPLAY_ID_HEADER, DeliveryResult


class BackendReplayDelivery:
    """Deliver portions of records by a lane of its own; the component creates one for each job."""

    def __init__(
        self, context: Context, settings: Group, client: httpx.AsyncClient, id: str
    ) -> None:
        self._context = context
        self._settings = settings
        self._back_end = _ReplayBackendClient(
            client,
            settings.backend,
            accept_empty=settings.accept_empty,
            headers={REPLAY_ID_HEADER: id},
        )
        self._runner: LaneRunner | None = None
        self._task: asyncio.Task[None] | None = None
        self._in_flight = 0  # records in the lane whose outcome was not returned yet
        self._settled_batches: list[SettledRecords] = []
        self._has_settled = asyncio.Event()

    def restart(self) -> None:
        self.close()
        self._runner = LaneRunner(
            build_rules(self._settings), self._create_lane_context(), lambda runner: None
        )
        self._in_flight, self._settled_batches = 0, []
        self._task = asyncio.create_task(self._runner.run())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def __call__(self, records: Sequence[Record], timeout_s: float) -> DeliveryResult:
        runner = self._runner
        assert runner is not None, "call restart first"
        # The caller passes records that are not settled again; the lane has them already.
        if not self._in_flight:
            self._in_flight = len(records)
            runner.queue.put(records)
            runner.wake()
        if not self._settled_batches:
            self._has_settled.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._has_settled.wait()
            except TimeoutError:  # the lane goes on; the caller asks again
                return DeliveryResult(0, reason=runner.queue.problem)
        batches, self._settled_batches = self._settled_batches, []
        settled = sum(len(batch.processed) + len(batch.dead_letters) for batch in batches)
        self._in_flight -= settled
        return DeliveryResult(settled, sum(len(batch.dead_letters) for batch in batches))

    def _create_lane_context(self) -> LaneContext:
        settings, context = self._settings, self._context
        return LaneContext(
            settings.group,
            self._back_end,
            BatchEncoder(context.codecs, context.section, settings),
            DeadLetterWriter.from_group(context, settings),
            _ReplayProgress(),
            self._on_settled,
        )

    def _on_settled(self, settled: SettledRecords) -> None:
        self._settled_batches.append(settled)
        self._has_settled.set()
        audit_settled(self._context.auditor, settled)


class _ReplayBackendClient(BackendClient):
    def __init__(self, *args: object, headers: Mapping[str, str], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._headers = headers

    async def post(
        self, body: bytes, records: Sequence[Record], headers: Mapping[str, str] | None = None
    ) -> Verdict:
        return await super().post(body, records, {**(headers or {}), **self._headers})


class _ReplayProgress:
    """Store nothing: the group's offsets stay, and the job writes its progress to its own topic.

    It gives the lane the next records after that, which bounds how many are sent again.
    """

    def enqueue(self, offsets: Mapping[TopicPartition, int]) -> None: ...

    def find_held(
        self, tps: Collection[TopicPartition], wake: Callable[[], None]
    ) -> Set[TopicPartition]:
        return frozenset()
