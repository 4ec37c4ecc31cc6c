"""Make compression dictionaries of the records of a view, the same on every replica (RFC 9842).

A dictionary holds the last records before a position, as the view shows them. Its id is the resume
token of that position, so any replica can make it again when a client names it. It is looked up by
the view of the client's own request, and used only if it has the digest that the client names.

The id that a client names is a claim. It costs one bounded read of Kafka, of records that exist,
and few are under way at a time; meanwhile, and if the dictionary is another one by now (its records
were compacted, say), the client is served without. It is kept only if the client really has it, and
nobody else is offered it.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import logging
import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakValueDictionary

from gateway.background_tasks import BackgroundTasks
from gateway.core.channel.channel import Encoder
from gateway.core.channel.tail import Tail
from gateway.core.log.record import (
    NO_EPOCH,
    UNVERIFIED_LINEAGE,
    PartitionPosition,
    Record,
    TopicPartition,
)
from gateway.core.token.resume_token import parse_token, seal_token
from gateway.errors import BrokerUnavailable, GatewayError, RecordTooLarge, TokenForeign
from gateway.wire import sse
from gateway.wire.zstd import CompressionDictionary

from .position_resolver import build_position, fetch_ends, has_recreated_topic
from .services import ReadServices
from .shared_tail import SharedTail
from .view import View

log = logging.getLogger(__name__)

MAX_CONTENT_BYTES = 16 * 1024
"""More than this makes orders of 230 bytes not 1 % smaller."""
EMPTY_CONTENT = b"data: {}\n\n"
"""Of a dictionary without records; eight bytes at least."""
MAX_SAMPLED_PARTITIONS = 8
RECORDS_PER_PARTITION = 64
MAX_READ_BYTES = 8 << 20  # of payloads for one dictionary; larger records have none
MIN_RECORDS = 16  # of a dictionary that is kept for long
MAX_ID_CHARS = 1024  # RFC 9842 2.1.3
MAX_DICTIONARIES = 64  # in a hub, with those that only streams still use
DICTIONARY_BYTES = 128 * 1024  # that each takes
MAX_BUILDS = 4  # at a time, of those that are offered, and of those that clients name
# A stream waits for a dictionary that its client names, and begins without it after this time.
NAMED_TIMEOUT_S = 2.0
# A browser loads the offered one while it has nothing else to do, and not again on the same page.
# On two cores with a load of 20, the first one of a gateway that was just started took over 2 s.
OFFERED_TIMEOUT_S = 10.0
LIFETIME_S = 6 * 3600.0  # seconds after which new clients are offered a newer one
SHORT_LIFETIME_S = 60.0  # of one that has fewer than `MIN_RECORDS`
FAILURE_TTL_S = 30.0  # seconds until what a client names, and cannot be made, is tried again
MAX_FAILURES = 256  # that are remembered


@dataclass(slots=True)
class ViewDictionary:
    """A dictionary of a view.

    `id` is the resume token of the position that it ends at; empty if it is too long to be an id.
    At `checked_at`, by the loop's clock, Kafka was last known to have its records.
    """

    dictionary: CompressionDictionary
    id: str
    record_count: int
    created_at: float
    checked_at: float

    def is_outdated(self, now: float) -> bool:
        lifetime = LIFETIME_S if self.record_count >= MIN_RECORDS else SHORT_LIFETIME_S
        return now - self.created_at > lifetime


class _Key(NamedTuple):
    """The key of a dictionary: one that is named by its id, or the newest (empty)."""

    view: View
    route: str
    id: str

    @property
    def timeout_s(self) -> float:
        return NAMED_TIMEOUT_S if self.id else OFFERED_TIMEOUT_S


@dataclass(eq=False)
class Dictionaries:
    """The dictionaries of a hub, which creates and closes it.

    Every `check_interval_s`, it is checked whether Kafka still has the records of a dictionary.
    """

    _services: ReadServices
    _keep_open: Callable[[View], SharedTail]
    _get_encoder: Callable[[View], Encoder]
    check_interval_s: float = 60.0
    _tasks: BackgroundTasks = field(default_factory=lambda: BackgroundTasks(log))
    # The most recently used last. The newest of a view is there by its id and by the id "".
    _made: OrderedDict[_Key, ViewDictionary] = field(default_factory=OrderedDict)
    # All that exist, also those that only channels hold by now. Equal ones are one object, so that
    # their clients share channels.
    _by_digest: WeakValueDictionary[bytes, CompressionDictionary] = field(
        default_factory=WeakValueDictionary
    )
    _builds: dict[_Key, asyncio.Task[ViewDictionary | None]] = field(default_factory=dict)
    _offer_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_BUILDS))
    _failed_at: dict[_Key, float] = field(default_factory=dict)
    _generation: int = 0  # counts calls of `clear`

    async def close(self) -> None:
        self._tasks.cancel()
        await self._tasks.wait()

    def clear(self) -> None:
        """Forget all dictionaries, also unfinished ones: other settings may show less."""
        self._generation += 1
        self._tasks.cancel()
        self._made.clear()
        self._builds.clear()
        self._failed_at.clear()

    @property
    def used_bytes(self) -> int:
        return DICTIONARY_BYTES * len(self._by_digest)

    async def get_newest(self, view: View, route: str) -> ViewDictionary:
        """Return the dictionary that clients are offered, whatever they choose of the view.

        Raises:
            BrokerUnavailable: It could not be made in time.
        """
        key, generation = _Key(view, route, ""), self._generation
        found = self._made.get(key)
        if found is not None and await self._is_current(key, found):
            self._remember(key, found)
            return found
        found = await self._wait_for_build(key) if generation == self._generation else None
        if found is None or generation != self._generation:
            raise BrokerUnavailable(
                "the dictionary could not be made in time; load it again later", retry_after=2.0
            )
        return found

    async def find(
        self, view: View, route: str, digest: bytes, id: str
    ) -> CompressionDictionary | None:
        """Return the dictionary that a client has; None if it cannot be used here.

        `view` is that before what the client chooses of it; `digest` is a SHA-256. `id` is empty
        if the client names none.
        """
        newest = self._made.get(_Key(view, route, ""))
        if newest is not None and newest.dictionary.digest == digest:
            return newest.dictionary
        key, generation = _Key(view, route, id), self._generation
        if not id or len(id) > MAX_ID_CHARS:
            return None
        found = self._made.get(key)
        if found is None and not self._has_failed(key):
            found = await self._wait_for_build(key)
        if found is None or generation != self._generation:
            return None
        if found.dictionary.digest != digest:
            self._note_failure(key)
            return None
        self._remember(key, found)
        return found.dictionary

    async def _is_current(self, key: _Key, found: ViewDictionary) -> bool:
        """Return whether a dictionary is not too old, and Kafka still lets its records be read."""
        generation, now = self._generation, self._now()
        if found.is_outdated(now):
            return False
        if now - found.checked_at <= self.check_interval_s:
            return True
        again = await self._wait_for_build(key._replace(id=found.id)) if found.id else None
        if again is None or again.dictionary is not found.dictionary:
            return False
        found.checked_at = self._now()
        return generation == self._generation

    def _remember(self, key: _Key, made: ViewDictionary) -> None:
        self._made[key] = made
        self._made.move_to_end(key)
        while len(self._made) > MAX_DICTIONARIES:
            self._made.popitem(last=False)

    def _has_failed(self, key: _Key) -> bool:
        return self._now() - self._failed_at.get(key, -math.inf) < FAILURE_TTL_S

    def _note_failure(self, key: _Key) -> None:
        self._failed_at[key] = self._now()
        if len(self._failed_at) > MAX_FAILURES:
            del self._failed_at[next(iter(self._failed_at))]

    async def _wait_for_build(self, key: _Key) -> ViewDictionary | None:
        """Make a dictionary, together with all who want it now; None if that fails or takes long.

        A build that takes longer may be ready for the next caller.
        """
        task = self._builds.get(key)
        if task is None:
            if key.id and sum(bool(each.id) for each in self._builds) >= MAX_BUILDS:
                return None
            name = "a compression dictionary"
            task = self._builds[key] = self._tasks.start(self._build(key), name, context=Context())
            task.add_done_callback(lambda done: self._end_build(key, done))
        done, _ = await asyncio.wait([task], timeout=key.timeout_s)
        # An error is in the log already. The stream does without.
        return task.result() if done and not (task.cancelled() or task.exception()) else None

    def _end_build(self, key: _Key, task: asyncio.Task[ViewDictionary | None]) -> None:
        if self._builds.get(key) is task:  # another one may have begun after `clear`
            del self._builds[key]

    async def _build(self, key: _Key) -> ViewDictionary | None:
        """Make a dictionary. The newest is remembered, and others only once a client has them."""
        generation = self._generation
        try:
            async with asyncio.timeout(max(key.timeout_s, 2 * NAMED_TIMEOUT_S)):
                if key.id:
                    made = await self._read_dictionary(key)
                else:
                    async with self._offer_slots:
                        made = await self._read_dictionary(key)
        except (GatewayError, TimeoutError) as exc:
            log.debug("no dictionary for %s: %s", ", ".join(key.view.topics), exc)
            if key.id:
                self._note_failure(key)
            return None
        if generation != self._generation:
            return None
        if not key.id:
            self._remember(key, made)
            if made.id:
                self._remember(key._replace(id=made.id), made)
        return made

    async def _read_dictionary(self, key: _Key) -> ViewDictionary:
        view, services = key.view, self._services
        with services.topics.hold(view.topics):
            deadline = self._now() + key.timeout_s
            await services.topics.open_topics(deadline, view.topics, may_be_missing=False)
            tail = self._keep_open(view).tail
            lookups = services.backfill_reader.lookups
            ends: Mapping[TopicPartition, int] = await fetch_ends(lookups, tail, "latest")
            if key.id:
                ends = await self._parse_id(key, tail, ends)
            id = key.id or self._create_id(key, tail, ends)
            id = id if len(id) <= MAX_ID_CHARS else ""
            content, record_count = await self._read_content(view, tail, ends, id)
        now = self._now()
        return ViewDictionary(self._create_dictionary(content), id, record_count, now, now)

    def _create_dictionary(self, content: bytes) -> CompressionDictionary:
        """Return the only dictionary of some content; BrokerUnavailable if there are too many."""
        existing = self._by_digest.get(hashlib.sha256(content).digest())
        if existing is not None:
            return existing
        while len(self._by_digest) >= MAX_DICTIONARIES and self._made:
            self._made.popitem(last=False)
        if len(self._by_digest) >= MAX_DICTIONARIES:
            raise BrokerUnavailable("too many dictionaries are in use")
        dictionary = CompressionDictionary(content)
        self._by_digest[dictionary.digest] = dictionary
        return dictionary

    async def _parse_id(
        self, key: _Key, tail: Tail, ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return where the partitions end in a dictionary of this id; they end at `ends` now.

        Raises:
            TokenError: It is no id of a dictionary of this view.
        """
        verifier = self._services.token_verifier
        token = await verifier.verify(parse_token(key.id), key.view, key.route, None)
        position = build_position(token, tail)
        claimed = {
            tp: each.offset
            for tp, each in position.items()
            if each.offset is not None and tp in tail.logs
        }
        # A read beyond the end would wait for records, and others' reads would wait for it.
        if has_recreated_topic(token, tail) or any(
            end > ends.get(tp, 0) for tp, end in claimed.items()
        ):
            raise TokenForeign("the id of the dictionary is of records that do not exist")
        return claimed

    def _create_id(self, key: _Key, tail: Tail, ends: Mapping[TopicPartition, int]) -> str:
        verifier = self._services.token_verifier
        writer = tail.create_token_writer(
            {tp: PartitionPosition(end, NO_EPOCH, UNVERIFIED_LINEAGE) for tp, end in ends.items()}
        )
        seal = verifier.create_seal(verifier.bind_route(key.view, key.route))
        return seal_token(writer.to_text(), seal).decode()

    async def _read_content(
        self, view: View, tail: Tail, ends: Mapping[TopicPartition, int], id: str
    ) -> tuple[bytes, int]:
        """Return the content of a dictionary, which view and id determine, and its record count."""
        filled = [tp for tp, end in ends.items() if end]
        sampled = heapq.nsmallest(MAX_SAMPLED_PARTITIONS, filled, key=lambda tp: (-ends[tp], tp))
        encoder, samples, count = self._get_encoder(view), list[bytes](), 0
        read_bytes = 0
        for tp in reversed(sampled):
            quota = MAX_CONTENT_BYTES // len(sampled)
            sample, sample_bytes = deque[bytes](), 0
            async for record in self._iter_records(tail, tp, ends[tp]):
                read_bytes += record.payload_size
                if read_bytes > MAX_READ_BYTES:
                    raise RecordTooLarge("the records are too large for a dictionary")
                event = encoder.encode_entry(record) if view.filters(record) else None
                if event is None:
                    continue
                sample.append(event)
                sample_bytes += len(event)
                while sample_bytes - len(sample[0]) >= quota:
                    sample_bytes -= len(sample.popleft())
            if sample:
                count += len(sample)
                # Ids are long and alike: the last event of each partition has one.
                id_line = sse.encode_id(id.encode()) if id else b"\n"
                samples.append(b"\n".join(sample)[-quota:] + id_line)
        return b"".join(samples) or EMPTY_CONTENT, count

    async def _iter_records(
        self, tail: Tail, tp: TopicPartition, end: int
    ) -> AsyncIterator[Record]:
        """Yield the last records before an end; TokenForeign if the log went back meanwhile."""
        offset = max(0, end - RECORDS_PER_PARTITION)
        while offset < end:
            position = PartitionPosition(offset, NO_EPOCH, tail.logs[tp].lineage)
            # A named answer would be kept while the next read waits.
            for entry in await self._services.backfill_reader.read(tp, position):
                if type(entry) is Record and entry.offset < end:
                    yield entry
            if entry.next_offset <= offset:
                raise TokenForeign("the log of the dictionary went back")
            offset = entry.next_offset

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
