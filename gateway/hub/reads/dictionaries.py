"""Make compression dictionaries of the records of a view, the same on every replica (RFC 9842).

A dictionary holds the last records before a position, as the view shows them. Its id is the resume
token of that position, so any replica, also one that was just started, can make it again when a
client names it. A client has a dictionary only for what it may see: the dictionary is looked up by
the view of its own request, and is used only if it has the digest that the client names.

What a client names is a claim. It costs one bounded read of Kafka, few of which are under way at a
time; meanwhile, and if the dictionary is another one by now (its records were compacted, say), the
client is served without.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import Context
from typing import NamedTuple

from gateway.background_tasks import BackgroundTasks
from gateway.core.channel.channel import Encoder
from gateway.core.log.position import NO_EPOCH, UNVERIFIED_LINEAGE, PartitionPosition
from gateway.core.log.record import Record, TopicPartition
from gateway.core.log.tail import Tail
from gateway.core.token.resume_token import parse_token, seal_token
from gateway.errors import BrokerUnavailable, GatewayError
from gateway.hub.fanout.shared_tail import SharedTail
from gateway.hub.fanout.view import View
from gateway.wire import sse
from gateway.wire.zstd import CompressionDictionary

from .position_resolver import build_position
from .services import ReadServices
from .start_lookup import fetch_ends

log = logging.getLogger(__name__)

MAX_CONTENT_BYTES = 16 * 1024
"""More than this makes orders of 230 bytes not 1 % smaller."""
EMPTY_CONTENT = b"data: {}\n\n"
"""Of a dictionary without records; eight bytes at least."""
MAX_SAMPLED_PARTITIONS = 8
RECORDS_PER_PARTITION = 64
MIN_RECORDS = 16  # of a dictionary that is kept for long
MAX_ID_CHARS = 1024  # RFC 9842 2.1.3
MAX_DICTIONARIES = 64  # in a hub; each takes `DICTIONARY_BYTES`
DICTIONARY_BYTES = 256 * 1024
MAX_BUILDS = 4  # at a time
BUILD_TIMEOUT_S = 2.0
LIFETIME_S = 6 * 3600.0  # seconds after which new clients are offered a newer one
SHORT_LIFETIME_S = 60.0  # of one that has fewer than `MIN_RECORDS`
FAILURE_TTL_S = 30.0  # seconds until what could not be made is tried again
MAX_FAILURES = 256  # that are remembered


class ViewDictionary(NamedTuple):
    """A dictionary of a view.

    Attributes:
        dictionary: The dictionary.
        id: The resume token of the position that it ends at; empty if it is too long to be an id.
        record_count: How many records it holds.
        created_at: When it was made here, by the loop's clock.
    """

    dictionary: CompressionDictionary
    id: str
    record_count: int
    created_at: float

    def is_outdated(self, now: float) -> bool:
        """Return whether new clients should be offered a newer one."""
        lifetime = LIFETIME_S if self.record_count >= MIN_RECORDS else SHORT_LIFETIME_S
        return now - self.created_at > lifetime


class _Key(NamedTuple):
    """Identify a dictionary: one that is wanted by its id, or the newest (empty)."""

    view: View
    route: str
    id: str


class Dictionaries:
    """The dictionaries of a hub, which creates and closes it.

    Args:
        services: What the hub reads with.
        keep_open: Keeps the topics of a view open for a while, and returns their tail.
        get_encoder: Returns what encodes the records of a view.
    """

    def __init__(
        self,
        services: ReadServices,
        keep_open: Callable[[View], SharedTail],
        get_encoder: Callable[[View], Encoder],
    ) -> None:
        self._services = services
        self._keep_open = keep_open
        self._get_encoder = get_encoder
        self._tasks = BackgroundTasks(log)
        # The most recently used last. The newest of a view is there by its id and by the id "".
        self._made: OrderedDict[_Key, ViewDictionary] = OrderedDict()
        self._builds: dict[_Key, asyncio.Task[ViewDictionary | None]] = {}
        self._failed_at: dict[_Key, float] = {}

    async def close(self) -> None:
        """Cancel what is being made."""
        self._tasks.cancel()
        await self._tasks.wait()

    def clear(self) -> None:
        """Forget all dictionaries: after a change of the configuration they may show too much."""
        self._tasks.cancel()
        self._made.clear()
        self._builds.clear()
        self._failed_at.clear()

    @property
    def used_bytes(self) -> int:
        """Return about how many bytes the dictionaries take."""
        return DICTIONARY_BYTES * len({id(each.dictionary) for each in self._made.values()})

    async def get_newest(self, view: View, route: str) -> ViewDictionary:
        """Return the dictionary that clients of a view are offered.

        Args:
            view: The view, before what the client chooses of it.
            route: The route of the view.

        Raises:
            BrokerUnavailable: It could not be made in time.
        """
        key = _Key(view, route, "")
        found = self._made.get(key)
        if found is None or found.is_outdated(self._now()):
            found = await self._build(key) or found
        if found is None:
            raise BrokerUnavailable("no records could be read for a dictionary; try again")
        self._remember(key, found)
        return found

    async def find(
        self, view: View, route: str, digest: bytes, id: str
    ) -> CompressionDictionary | None:
        """Return the dictionary that a client has; None if it cannot be used here.

        Args:
            view: The view of the client, before what it chooses of it.
            route: The route of the view.
            digest: The SHA-256 of the dictionary that the client has.
            id: Its id, as the client names it; empty if it names none.
        """
        newest = self._made.get(_Key(view, route, ""))
        if newest is not None and newest.dictionary.digest == digest:
            return newest.dictionary
        if not id or len(id) > MAX_ID_CHARS:
            return None
        key = _Key(view, route, id)
        found = self._made.get(key) or await self._build(key)
        if found is None or found.dictionary.digest != digest:
            return None
        self._remember(key, found)
        if newest is None:  # a client of another replica: clients here are to share its dictionary
            self._remember(_Key(view, route, ""), found)
        return found.dictionary

    def _remember(self, key: _Key, made: ViewDictionary) -> None:
        self._made[key] = made
        self._made.move_to_end(key)
        while len(self._made) > MAX_DICTIONARIES:
            self._made.popitem(last=False)

    async def _build(self, key: _Key) -> ViewDictionary | None:
        """Make a dictionary, together with all who want it now; None if that fails or takes long.

        The time is that of the caller: what takes longer may be ready for the next one.
        """
        if self._now() - self._failed_at.get(key, -math.inf) < FAILURE_TTL_S:
            return None
        task = self._builds.get(key)
        if task is None:
            if len(self._builds) >= MAX_BUILDS:
                return None
            task = self._builds[key] = self._tasks.start(
                self._make(key), "a compression dictionary", context=Context()
            )
            task.add_done_callback(lambda done: self._end_build(key, done))
        done, _ = await asyncio.wait([task], timeout=BUILD_TIMEOUT_S)
        return task.result() if done and not task.cancelled() else None

    def _end_build(self, key: _Key, task: asyncio.Task[ViewDictionary | None]) -> None:
        if self._builds.get(key) is task:  # another one may have begun after `clear`
            del self._builds[key]

    async def _make(self, key: _Key) -> ViewDictionary | None:
        try:
            async with asyncio.timeout(2 * BUILD_TIMEOUT_S):
                made = await self._read_dictionary(key)
        except (GatewayError, TimeoutError) as exc:
            log.debug("no dictionary for %s: %s", ", ".join(key.view.topics), exc)
            made = None
        if made is None:
            self._failed_at[key] = self._now()
            if len(self._failed_at) > MAX_FAILURES:
                del self._failed_at[next(iter(self._failed_at))]
            return None
        self._failed_at.pop(key, None)
        self._remember(key, made)
        if made.id:
            self._remember(key._replace(id=made.id), made)
        return made

    async def _read_dictionary(self, key: _Key) -> ViewDictionary:
        view, services = key.view, self._services
        with services.topics.hold(view.topics):
            deadline = self._now() + BUILD_TIMEOUT_S
            await services.topics.open_topics(deadline, view.topics, may_be_missing=False)
            tail = self._keep_open(view).tail
            if key.id:
                ends = await self._parse_id(key, tail)
            else:
                ends = await fetch_ends(services.cluster, tail, "latest")
            id = key.id or self._create_id(key, tail, ends)
            id = id if len(id) <= MAX_ID_CHARS else ""
            content, record_count = await self._read_content(view, tail, ends, id)
        return ViewDictionary(CompressionDictionary(content), id, record_count, self._now())

    async def _parse_id(self, key: _Key, tail: Tail) -> dict[TopicPartition, int]:
        """Return where the partitions end in a dictionary of this id.

        Raises:
            TokenError: It is no id of a dictionary of this view.
        """
        verifier = self._services.token_verifier
        token = await verifier.verify(parse_token(key.id), key.view, key.route, None)
        position = build_position(token, tail)
        return {
            tp: each.offset
            for tp, each in position.items()
            if each.offset is not None and tp in tail.logs
        }

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
        """Return the content of a dictionary, and how many records it holds.

        It is determined by the view and the id: which partitions, which records, and their order.
        """
        filled = [tp for tp, end in ends.items() if end]
        sampled = heapq.nsmallest(MAX_SAMPLED_PARTITIONS, filled, key=lambda tp: (-ends[tp], tp))
        encoder, samples, count = self._get_encoder(view), [], 0
        for tp in sampled:
            # Ids are long and alike: the last event of each partition has one.
            end_of_event = sse.encode_id(id.encode()) if id else b"\n"
            left = MAX_CONTENT_BYTES // len(sampled)
            for record in reversed(await self._read_records(view, tail, tp, ends[tp])):
                event = encoder.encode_entry(record)
                if event is None:
                    continue
                count += 1
                samples.append(event[:left] + end_of_event)
                left -= len(event)
                if left <= 0:
                    break
                end_of_event = b"\n"
        return b"".join(reversed(samples)) or EMPTY_CONTENT, count

    async def _read_records(
        self, view: View, tail: Tail, tp: TopicPartition, end: int
    ) -> list[Record]:
        """Return the records that the view shows of the last offsets before an end."""
        accepts = view.filters.matches if view.filters.filters else None
        records: list[Record] = []
        offset = max(0, end - RECORDS_PER_PARTITION)
        while offset < end:
            position = PartitionPosition(offset, NO_EPOCH, tail.logs[tp].lineage)
            for entry in await self._services.backfill_reader.read(tp, position):
                offset = max(offset, entry.next_offset)
                if type(entry) is not Record or entry.offset >= end:
                    continue
                if accepts is None or accepts(entry):
                    records.append(entry)
        return records

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
