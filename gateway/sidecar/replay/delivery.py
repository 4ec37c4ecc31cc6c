"""Records of a replay to the back end of a reactive group, as that would hand them over.

Its formats, its batches, its retries and dead letters; but for the header that says which replay
it is, and those that say so of every record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import httpx

from gateway.config.sections.sidecar import Group
from gateway.core.delivery.batch import Settled as Portion
from gateway.core.delivery.verdict import Verdict
from gateway.core.log.record import Record, TopicPartition
from gateway.sidecar.context import Context
from gateway.sidecar.reactive.backend import BackEnd
from gateway.sidecar.reactive.dead_letters import DeadLetters
from gateway.sidecar.reactive.points import Points
from gateway.sidecar.reactive.runner import Runner, Works, audited, rules_of
from gateway.sidecar.reactive.written import Writer

from .job import ID, Settled


class Delivery:
    """See the module, and `job.Deliver`. `close` it."""

    def __init__(
        self, context: Context, settings: Group, client: httpx.AsyncClient, id: str
    ) -> None:
        self._context = context
        self._settings = settings
        self._back_end = _Marked(
            client, settings.backend, accept_empty=settings.accept_empty, headers={ID: id}
        )
        self._runner: Runner | None = None
        self._task: asyncio.Task[None] | None = None
        self._given = 0
        self._portions: list[Portion] = []
        self._some = asyncio.Event()

    def begin(self) -> None:
        self.close()
        self._runner = Runner(rules_of(self._settings), self._works(), lambda runner: None)
        self._given, self._portions = 0, []
        self._task = asyncio.create_task(self._runner.run())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def __call__(self, records: Sequence[Record], within: float) -> Settled:
        runner = self._runner
        assert runner is not None, "begin it"
        if not self._given:
            self._given = len(records)
            runner.lane.put(records)
            runner.wake()
        if not self._portions:
            self._some.clear()
            try:
                async with asyncio.timeout(within):
                    await self._some.wait()
            except TimeoutError:
                return Settled(0, why=runner.lane.trouble)
        portions, self._portions = self._portions, []
        done = sum(len(each.processed) + len(each.dead) for each in portions)
        self._given -= done
        return Settled(done, sum(len(each.dead) for each in portions))

    def _works(self) -> Works:
        settings, context = self._settings, self._context
        return Works(
            settings.group,
            self._back_end,
            Writer(context.codecs, context.section, settings),
            DeadLetters(
                context,
                settings.group,
                settings.dead_letter_topic_ext,
                make=settings.dead_letter_make,
            ),
            Points(settings.group, _uncommitted),
            self._settled,
        )

    def _settled(self, portion: Portion) -> None:
        self._portions.append(portion)
        self._some.set()
        audited(self._context.audit, portion)


class _Marked(BackEnd):
    """headers: of every batch."""

    def __init__(self, *how: object, headers: Mapping[str, str], **more: object) -> None:
        super().__init__(*how, **more)  # type: ignore[arg-type]
        self._headers = headers

    async def post(
        self, body: bytes, sent: Sequence[Record], headers: Mapping[str, str] | None = None
    ) -> Verdict:
        return await super().post(body, sent, {**(headers or {}), **self._headers})


async def _uncommitted(points: Mapping[TopicPartition, int]) -> None:
    """How far a replay is stands in its topic; the group's own offsets are not touched."""
