"""Find the latest record of a key, for clients that want a document and not a stream.

It is looked up in the tables of snapshots, after these are brought up to where the partition ended
at some time after the request: a client whose write was acknowledged finds its record. A topic is
read whole for the first document, and from where that ended for the next ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.channel.filters import MATCH_ALL, Filter, Filters
from gateway.core.client.terms import ClientKey
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable, TableTooLarge

from .key_indexes import KeyPartitions
from .services import ReadServices
from .shared_tail import SharedTail
from .tables import TableSpilled
from .view import View


@dataclass(eq=False)
class DocumentReader:
    """Find documents within `timeout_s` each. `Hub` creates one at each start."""

    _services: ReadServices
    _key_partitions: KeyPartitions
    _keep_open: Callable[[View], SharedTail]
    timeout_s: float = 10.0

    async def get_latest(
        self,
        topic: str,
        key: bytes,
        filters: Filters = MATCH_ALL,
        client_key: ClientKey = "",
        *,
        is_settled: bool = False,
    ) -> Record | None:
        """Return the latest record of a key among those that the filters accept.

        Returns None if there is none, or if it was deleted. With `is_settled` it is the latest of
        all that were acknowledged: else those behind an open transaction are not seen yet.

        Raises:
            UnknownTopic: The topic does not exist.
            AccessDenied: The brokers do not let the gateway read the topic.
            AuthenticationFailed: The brokers refuse the gateway's credentials.
            BrokerUnavailable: The record was not found in time.
            TransactionOpen: With `is_settled`, a transaction did not end in time.
            TableTooLarge: The latest records of the topic are more than its cache.
        """
        deadline = asyncio.get_running_loop().time() + self.timeout_s
        view = View((topic,), Filters((Filter(key),)), "value", "error")
        with self._services.topics.hold(view.topics):
            await self._services.topics.open_topics(deadline, view.topics, may_be_missing=False)
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._find_latest(view, key, filters, client_key, is_settled)
            except TimeoutError:
                reason = self._services.cluster.error or f"not all of {topic} can be read for now"
                raise BrokerUnavailable(f"{reason}; try again", retry_after=1.0) from None
            except TableSpilled:
                raise TableTooLarge(
                    f"the keys of {topic} are more than its cache, or than memory leaves for them; "
                    "raise cache.bytes of the topic, or memory"
                ) from None

    async def _find_latest(
        self, view: View, key: bytes, filters: Filters, client_key: ClientKey, is_settled: bool
    ) -> Record | None:
        """Return the latest record of the key over all partitions that may hold it."""
        shared_tail = self._keep_open(view)
        reads_partition = self._key_partitions.build_known_partition_predicate(view)
        tps = [tp for tp in shared_tail.tail.logs if reads_partition is None or reads_partition(tp)]
        tables = self._services.snapshots.tables
        lookups = self._services.backfill_reader.lookups
        find_end = lookups.find_settled_end if is_settled else lookups.find_end

        async def read_latest(tp: TopicPartition) -> Record | None:
            return await tables.get_latest(tp, await find_end(tp), key, filters, client_key)

        latest = await asyncio.gather(*map(read_latest, tps))
        return max(filter(None, latest), key=_sort_key, default=None)


def _sort_key(record: Record) -> tuple[int, int]:
    return record.timestamp, record.offset
