"""Follow the topic of claims and answers, from which all replicas know who has which key.

Claims and answers have partitions of their own, because readers of committed records stop at an
open transaction, and those of requests may be long. `core.delivery.claims` says what a claim is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from gateway.config.sections.sidecar import Producer as Settings
from gateway.config.types.units import format_duration
from gateway.core.caches import SizedCache
from gateway.core.delivery.claims import CLAIM_SLACK_S, Claim, ClaimResult, Claims
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable, KafkaError, PartitionFailed
from gateway.kafka.client.offsets import LATEST, OffsetAndTimestamp
from gateway.kafka.client.outages import format_topic_label
from gateway.kafka.fetch.bounded_read import fetch_offset, read_committed
from gateway.kafka.fetch.topic_follower import RETRY_DELAY_S, TopicFollower
from gateway.kafka.protocol.requests import TopicMetadata
from gateway.kafka.protocol.topic_messages import BROKER_DEFAULT
from gateway.sidecar.context import Context
from gateway.sidecar.http.status import StatusError
from gateway.sidecar.lookups import get_or_create_topic

log = logging.getLogger(__name__)

SWEEP_INTERVAL_S = 60.0  # between two sweeps of expired claims and results
MAX_RECENT_RESPONSE_BYTES = 16 << 20  # of answers that are kept in memory; Kafka has all
_RESPONSE_OVERHEAD_BYTES = 200  # of each, beside its body
KEY_BYTES = 16  # of a hashed key, and of a digest; a claim's record has its owner after the key


class Layout(NamedTuple):
    """The topic that is read and its used partitions (1, or an even number) decide where a key is.

    The id is None where brokers do not have topic ids.
    """

    topic_id: UUID | None
    partitions: int


class ClaimLog:
    """What this process knows of the topic. The `IdempotencyStore` creates and runs it.

    `layout` and the offsets of `follower` change together, when the topic was found or found again:
    any offset is meaningless under another layout, so callers compare it before and after an await.
    """

    def __init__(self, context: Context, settings: Settings, claim_timeout_s: float) -> None:
        self.topic = settings.idempotency.topic
        self.claims = Claims(settings.idempotency.keys, settings.idempotency.window)
        self.layout: Layout | None = None
        self.follower = TopicFollower(
            context.cluster, self.topic, self.find_start_offsets, self.is_current, self._apply,
            (format_topic_label(self.topic), "is read"),
        )  # fmt: skip
        self._context = context
        self._section = settings.idempotency
        self._claim_timeout_s = claim_timeout_s
        # By the place of the answer, too: a key gets another one after its window.
        self._recent_responses: SizedCache[tuple[bytes, TopicPartition, int], bytes] = SizedCache(
            MAX_RECENT_RESPONSE_BYTES
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.follower.run())
            tasks.create_task(self._sweep())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self.claims.expire(time.time())

    # The topic

    async def find_start_offsets(self) -> Mapping[TopicPartition, int]:
        cluster, section = self._context.cluster, self._section
        retention_ms = int((section.window + 2 * CLAIM_SLACK_S) * 1000)
        topic = await get_or_create_topic(
            self._context,
            self.topic,
            "requests with an Idempotency-Key",
            partitions=section.partitions,
            replicas=BROKER_DEFAULT if section.replication is None else section.replication,
            configs={"cleanup.policy": "compact,delete", "retention.ms": str(retention_ms)},
        )
        await self._check_retention(retention_ms)
        layout = self._layout_of(topic)
        tps = [TopicPartition(topic.name, number) for number in range(layout.partitions)]
        since = int((time.time() - section.window - CLAIM_SLACK_S) * 1000)
        # The ends first: where no record is new enough, reading starts at the end, and a claim that
        # is written between the two requests must be read.
        ends = await cluster.list_offsets(dict.fromkeys(tps, LATEST))
        starts = await cluster.list_offsets(dict.fromkeys(tps, since))
        next_offsets: dict[TopicPartition, int] = {}
        for tp in tps:
            end, start = ends[tp], starts[tp]
            if not isinstance(end, OffsetAndTimestamp) or not isinstance(start, OffsetAndTimestamp):
                code = end if isinstance(start, OffsetAndTimestamp) else start
                raise BrokerUnavailable(f"{tp} cannot be read (code {code})")
            next_offsets[tp] = start.offset if start.offset >= 0 else end.offset
        self.claims.restart()
        self.layout = layout
        return next_offsets

    async def _check_retention(self, needed_ms: int) -> None:
        """Warn where `window` became longer after the topic was created."""
        configs = await self._context.cluster.fetch_configs(self.topic, "retention.ms")
        kept_ms = int(configs.get("retention.ms") or -1)
        if 0 <= kept_ms < needed_ms:
            log.warning(
                "%s keeps answers for %s only: a request whose key comes again later, within "
                "idempotency.window, is done twice; set its retention.ms to %d",
                self.topic, format_duration(kept_ms / 1000), needed_ms,
            )  # fmt: skip

    def _layout_of(self, topic: TopicMetadata) -> Layout:
        """Return how a topic is used: by at most as many partitions as it is created with.

        Later ones are not used, so that replicas that started before and after look for a key in
        the same partition.
        """
        used = min(len(topic.partitions), self._section.partitions)
        # Pairs of one for claims and one for answers; a single partition has both.
        return Layout(topic.topic_id, used if used == 1 else used // 2 * 2)

    def is_current(self) -> bool:
        topic = self._context.cluster.get_topic(self.topic)
        return topic is not None and not topic.error and self._layout_of(topic) == self.layout

    def get_partitions(self, key: bytes) -> tuple[TopicPartition, TopicPartition]:
        """Return the partition of a key's claims, and that of its answer."""
        assert self.layout is not None, "the topic is not found yet"
        pairs = self.layout.partitions // 2
        number = 2 * (int.from_bytes(key[:4]) % pairs) if pairs else 0
        return TopicPartition(self.topic, number), TopicPartition(
            self.topic, number + 1 if pairs else 0
        )

    # Records

    def _apply(self, tp: TopicPartition, records: Sequence[Record], next_offset: int) -> None:
        now = time.time()
        for record in records:
            key = (record.key or b"")[:KEY_BYTES]
            owner = (record.key or b"")[KEY_BYTES:].decode("latin-1")
            value, written_at = record.value, record.timestamp / 1000
            # With an owner: a claim, or a release without a value. Without one: an answer.
            if owner and value is None:
                self.claims.on_release(key, owner, record.offset)
            elif owner and value is not None:
                claim = Claim(owner, value, record.offset, written_at + self._claim_timeout_s)
                self.claims.on_claim(key, claim, now)
            elif value is not None:
                result = ClaimResult(value[:KEY_BYTES], tp, record.offset, written_at)
                self.claims.on_result(key, result)
        self.claims.set_read_position(tp, next_offset)

    async def fetch_ends(self, key: bytes) -> dict[TopicPartition, int]:
        """Return the ends of a key's partitions in the topic as it is now, with open transactions.

        Positions in a replaced topic mean nothing: they are beyond the new one's ends.
        """
        while True:
            try:
                ends = {tp: await self._fetch_end(tp) for tp in self.get_partitions(key)}
                if self.is_current():
                    return ends
            except (PartitionFailed, BrokerUnavailable) as exc:
                log.debug("the topic of keys cannot be read to its end: %s", exc)
            await asyncio.sleep(RETRY_DELAY_S)  # `run` starts to read a new topic soon

    async def _fetch_end(self, tp: TopicPartition) -> int:
        """Return the end of a partition of the topic that is known by its id."""
        end = await fetch_offset(self._context.cluster, tp, LATEST)
        # ListOffsets names the topic. A fetch has its id, so it fails if the topic was replaced.
        await read_committed(self._context.cluster, tp, end, max_wait=0.0)
        return end

    async def wait_read(
        self,
        ends: Mapping[TopicPartition, int],
        layout: Layout | None,
        *,
        unless_done: bytes | None = None,
    ) -> None:
        """Wait until partitions are read to these ends, or the layout is another one.

        Records read from a deleted topic do not count. A result of the key `unless_done` ends the
        wait.
        """

        def is_read() -> bool:
            if layout != self.layout:
                return True
            if unless_done is not None and self.claims.get_result(unless_done, time.time()):
                return True
            return self.is_current() and self.follower.is_read(ends)

        await self.follower.wait_for(is_read)

    # Answers

    async def load_response(self, key: bytes, result: ClaimResult) -> bytes:
        """Return the answer of a result, from memory or from Kafka.

        Raises BrokerUnavailable (with `timeout` once the records are written), or StatusError 409
        if the answer is gone.
        """
        body = self._recent_responses.get((key, result.tp, result.offset))
        if body is None:
            try:
                # An answer has a batch of its own, which comes whatever the limit is.
                batch = await read_committed(
                    self._context.cluster, result.tp, result.offset, max_bytes=1
                )
            except KafkaError as exc:
                problem = f"it was done, and its answer cannot be read: {exc}"
                raise build_in_doubt_error(problem) from exc
            # The topic may have been replaced, with another record at the offset, or none.
            record = batch.records[0] if batch.records else None
            if record is None and not self.claims.has_read_result(key):
                raise build_in_doubt_error("it was done, and its answer cannot be read yet")
            if record is None or (record.offset, record.key) != (result.offset, key):
                problem = "it was done, and its answer is not there any more"
                raise StatusError(
                    409, f"{problem}; use another Idempotency-Key for another request"
                )
            body = (record.value or b"")[KEY_BYTES:]
            self.store_response(key, result, body)
        return body

    def store_response(self, key: bytes, result: ClaimResult, body: bytes) -> None:
        place = key, result.tp, result.offset
        self._recent_responses.store(place, body, len(body) + _RESPONSE_OVERHEAD_BYTES)


def build_in_doubt_error(problem: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"{problem}; try again with the same Idempotency-Key", timeout=True, retry_after=1.0
    )
